"""The StatusReport for a person: where the two sides differ first, then who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gpuplug.commands.layout import laid_out, listed, printable, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rich.console import Console

    from gpuplug.observe.status import GpuStatus, ResourceStatus, StatusReport


def lines(status: StatusReport, stream: TextIO, environ: Mapping[str, str]) -> list[str]:
    """Lay it all out for this stream."""
    return laid_out(stream, environ, lambda console: _print(console, status))


def _print(console: Console, status: StatusReport) -> None:
    console.print(Text(headline(status), "bold green" if status.agree else "bold red"))
    for one in status.disagreements:
        console.print()
        console.print(
            rows(
                [
                    ("Differs", listed(one.about)),
                    *([("Resource", one.resource)] if one.about != (one.resource,) else []),
                    ("Why", one.reason),
                    ("Do next", one.advice),
                    ("Kind", one.code.value),
                ]
            )
        )
    if status.resources:
        console.print(_resources(status.resources))
        console.print(_gpus(status.gpus))
    notes = list(_notes(status))
    if notes:
        console.print()
        console.print(rows(notes))


def headline(status: StatusReport) -> str:
    """Say in one sentence how it stands."""
    if not status.resources:
        return "There is nothing: no GPU is advertised, and none is held."
    parts = []
    for resource in status.resources:
        free = "" if resource.free is None else f", {resource.free} free"
        parts.append(f"{resource.name}: {resource.held} held{free}")
    count = len(status.disagreements)
    things = "agree" if status.agree else f"differ in {'1 thing' if count == 1 else f'{count} things'}"
    return printable(f"Kubelet and machine {things}. {'; '.join(parts)}.")


def _resources(resources: Iterable[ResourceStatus]) -> Table:
    table = _table("Resource", "GPUs", "Devices", "Healthy", "At the kubelet", "Held", "Free")
    for one in resources:
        counts = (one.gpus, one.devices, one.healthy, one.offered, one.held, one.free)
        table.add_row(printable(one.name), *(_number(count) for count in counts))
    return table


def _gpus(gpus: Iterable[GpuStatus]) -> Table:
    table = _table("GPU", "At the kubelet", "Free")
    for name in ("State", "Held by"):
        table.add_column(name, overflow="fold")
    resource = ""
    for gpu in gpus:
        if gpu.resource != resource:
            resource = gpu.resource
            table.add_row(Text(printable(resource), "dim"))
        style = "" if gpu.state == "healthy" else "red"
        holders = "\n".join(_holders(gpu)) or ("nobody" if gpu.state == "healthy" else "")
        table.add_row(
            f"  {printable(gpu.address)}",
            _number(gpu.offered),
            _number(gpu.free),
            Text(gpu.state, style),
            holders,
        )
    return table


def _holders(gpu: GpuStatus) -> Iterator[str]:
    several = gpu.shares > 1 or any(held.share for held in gpu.held)
    for held in gpu.held:
        share = f"share {held.share}: " if several else ""
        yield printable(f"{share}{held.namespace}/{held.pod}, {held.container}")


def _notes(status: StatusReport) -> Iterator[tuple[str, str]]:
    if not status.told:
        yield "Note", "this kubelet does not say what it can give out (GetAllocatableResources)"
    if status.refused:
        some = "1 GPU is" if len(status.refused) == 1 else f"{len(status.refused)} GPUs are"
        yield "Note", f"{some} not advertised: `gpuplug inspect` says why"
    for one in status.monitoring:
        who = ", ".join(f"{held.namespace}/{held.pod}, {held.container}" for held in one.held) or "nobody"
        yield "Monitoring", f"{one.name}: held by {who}"
    if status.others:
        names = [f"{other.name} ({other.held} held)" for other in status.others]
        yield "Others", f"of other device plugins the kubelet has {listed(names)}"


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, title_justify="left", title=" ")
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _number(count: int | None) -> str:
    return "?" if count is None else str(count)
