"""What was measured, as tables for the end of a run."""

from collections.abc import Iterable, Iterator

from .remote import Run


def latency_table(runs: Iterable[Run]) -> Iterator[tuple[str, list[str]]]:
    """Make the tables: how long each kernel's machine ran, and how soon a kubelet knew of a GPU."""
    runs = list(runs)
    if not runs:
        return
    yield (
        "virtual machines",
        [f"{run.release:<24} {run.seconds:6.1f} s from power on to its last test" for run in runs],
    )
    lines = []
    for run in runs:
        for measured in run.measured():
            cells = "  ".join(f"{name} {value}" for name, value in measured.items() if name != "what")
            lines.append(f"{run.release:<24} {measured['what']:<46} {cells}")
    if lines:
        yield "from the kernel's event to the list at the kubelet", lines
