"""What a run showed, gathered while it runs and printed as tables at its end."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .releases import Release

V = TypeVar("V")


@dataclass(slots=True)
class Ledger:
    """All that a run has to tell beyond passed and failed."""

    cases: dict[tuple[str, str], bool] = field(default_factory=dict)
    """(case, release) → whether all its tests passed so far."""
    outcomes: dict[tuple[str, str], str] = field(default_factory=dict)
    """(what a container was given, release) → how the kernel answered it."""
    seconds: defaultdict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """(what took so long, release) → each time it was measured."""
    words: list[str] = field(default_factory=list)
    """The kubelet's own words."""

    def case(self, case: str, release: str, *, passed: bool) -> None:
        """Note one test of a case: a case is green when all of its tests are."""
        self.cases[case, release] = self.cases.get((case, release), True) and passed

    def outcome(self, given: str, release: Release, results: Iterable[str]) -> None:
        """Note how the kernel answered every attempt of one container."""
        self.outcomes[given, str(release)] = "/".join(sorted(set(results)))

    def measured(self, what: str, release: Release, seconds: float) -> None:
        """Note how long something took."""
        self.seconds[what, str(release)].append(seconds)

    def said(self, release: Release, reason: str, message: str) -> None:
        """Note what the kubelet said about a pod."""
        self.words.append(f"{release}: {reason}: {message}")

    def tables(self) -> list[tuple[str, list[str]]]:
        """Every table that has anything in it: a title and its lines."""
        return [
            (title, lines)
            for title, lines in (
                (
                    "cases",
                    _table(dict(sorted(self.cases.items())), lambda passed: "ok" if passed else "FAILED"),
                ),
                ("open() as uid 1000, by what the container was given", _table(self.outcomes, str)),
                ("seconds (median of all, slowest)", _table(self.seconds, _median)),
                ("the kubelet's own words", self.words),
            )
            if lines
        ]


def _median(measured: Sequence[float]) -> str:
    ordered = sorted(measured)
    return f"{ordered[len(ordered) // 2]:.2f} ({ordered[-1]:.2f})"


def _table(cells: Mapping[tuple[str, str], V], show: Callable[[V], str]) -> list[str]:
    """Lay cells out with a row for each first word and a column for each second, both in order of entry."""
    if not cells:
        return []
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    body = [
        [row, *(show(cells[row, column]) if (row, column) in cells else "-" for column in columns)]
        for row in rows
    ]
    grid = [["", *columns], *body]
    widths = [max(len(line[index]) for line in grid) for index in range(len(grid[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in grid
    ]
