"""The drivers for a person: a table, then what is wrong, then options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gpuplug.commands.layout import laid_out, listed, printable, rows
from gpuplug.observe.drivers import LEFT_OUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from gpuplug.observe.drivers import InstalledDriver

_PREFIX: Final = "gpuplug_"


def show(drivers: Sequence[InstalledDriver], stream: TextIO, environ: Mapping[str, str]) -> None:
    """Print it all; colours only on a terminal, and not with NO_COLOR."""
    lines = laid_out(stream, environ, lambda console: _print(console, drivers))
    stream.writelines(f"{line}\n" for line in lines)


def _print(console: Console, drivers: Sequence[InstalledDriver]) -> None:
    bad = any(driver.problems for driver in drivers)
    console.print(Text(headline(drivers), "bold red" if bad or not drivers else "bold green"))
    if not drivers:
        return
    console.print(_table(drivers))
    for title, pairs in (("Problems", list(_problems(drivers))), ("Options", list(_options(drivers)))):
        if pairs:
            console.print()
            console.print(Text(title, "bold"))
            console.print(rows(pairs))


def headline(drivers: Sequence[InstalledDriver]) -> str:
    """Say in one sentence how it stands."""
    if not drivers:
        return "No driver is installed: install one, such as gpuplug-intel, where gpuplug is."
    count = "1 driver is" if len(drivers) == 1 else f"{len(drivers)} drivers are"
    bad = sum(1 for driver in drivers if driver.problems)
    wrong = "" if not bad else "; 1 has a problem" if bad == 1 else f"; {bad} have problems"
    return f"{count} installed{wrong}."


def _table(drivers: Sequence[InstalledDriver]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, title=" ")
    for name in ("Driver", "Package", "Hooks", "Resources", "GPUs here"):
        table.add_column(name, overflow="fold", no_wrap=name == "Driver")
    for driver in drivers:
        table.add_row(
            *(
                Text(printable(text))
                for text in (
                    driver.name,
                    f"{driver.package} {driver.version}".strip(),
                    _hooks(driver),
                    ", ".join(driver.resources),
                    listed(driver.gpus) or ("none" if driver.loaded else ""),
                )
            )
        )
    return table


def _hooks(driver: InstalledDriver) -> str:
    if not driver.loaded:
        return LEFT_OUT if driver.left_out else "not loaded"
    names = ", ".join(hook.removeprefix(_PREFIX) for hook in driver.hooks)
    return f"{names} (a fallback)" if driver.fallback else names


def _problems(drivers: Sequence[InstalledDriver]) -> Iterator[tuple[str, str]]:
    for driver in drivers:
        for problem in driver.problems:
            yield driver.name, problem


def _options(drivers: Sequence[InstalledDriver]) -> Iterator[tuple[str, str]]:
    for driver in drivers:
        for option in driver.options:
            default = "" if option.value == option.default else f" (default: {option.default or 'none'})"
            yield driver.name, f"{option.flag}={option.value}{default}: {option.help}"
