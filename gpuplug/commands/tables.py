"""The Report for a person: text and tables, with colours on a terminal.

The first screen answers "why is it 0": a headline, then what is not advertised, with why and what to
do next; GPUs of the same fate share one paragraph. What there is in detail comes after it.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gpuplug.commands.layout import laid_out, listed, printable, rows
from gpuplug.core.identity import device_id
from gpuplug.observe.refusals import UNHEALTHY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from gpuplug.host.names import Access
    from gpuplug.model import Offer
    from gpuplug.observe.document import Details
    from gpuplug.observe.report import GpuReport, Report


def show(report: Report, details: Details, stream: TextIO, environ: Mapping[str, str]) -> None:
    """Print it all; colours only on a terminal, and not with NO_COLOR."""
    lines = laid_out(stream, environ, lambda console: _print(console, report, details))
    stream.writelines(f"{line}\n" for line in lines)


def _print(console: Console, report: Report, details: Details) -> None:
    console.print(Text(headline(report), "bold green" if report.advertised else "bold red"))
    for paragraph in _why(report):
        console.print()
        console.print(paragraph)
    if report.resources:
        console.print(_resources(report))
    for gpu in report.gpus:
        console.print()
        console.print(Text(printable(gpu.address), "bold"))
        console.print(rows(_facts(gpu, details)))
    console.print()
    console.print(Text("Driver packages", "bold"))
    console.print(rows(_packages(report)))


def headline(report: Report) -> str:
    """Say in one sentence what the kubelet would show."""
    refused = len(report.refused)
    if report.nothing is not None:
        return "Nothing is advertised: this machine has no GPU."
    if not report.resources:
        found = "1 GPU was found, and is" if refused == 1 else f"{refused} GPUs were found, and all are"
        return f"Nothing is advertised: {found} left out."
    parts = []
    for resource in report.resources:
        sick = "" if resource.healthy == resource.devices else f", {resource.healthy} healthy"
        parts.append(f"{resource.name}: {resource.devices}{sick}")
    rest = f" Not advertised: {refused} of {len(report.gpus)} GPUs." if refused else ""
    return f"Advertised: {'; '.join(parts)}.{rest}"


def _why(report: Report) -> Iterator[Table]:
    """Give a paragraph for each kind of refusal and of illness."""
    if report.nothing is not None:
        nothing = report.nothing
        yield rows([("Why", nothing.reason), ("Do next", nothing.advice), ("Kind", nothing.code)])
    fates: dict[tuple[str, str, str], list[str]] = {}
    for gpu in report.gpus:
        if gpu.refusal is not None:
            fate = (gpu.refusal.reason, gpu.refusal.advice, gpu.refusal.code.value)
        elif gpu.offer is not None and not gpu.offer.verdict.healthy:
            fate = (gpu.offer.verdict.reason, UNHEALTHY, "unhealthy")
        else:
            continue
        fates.setdefault(fate, []).append(gpu.address)
    for (reason, advice, kind), addresses in fates.items():
        what = "Unhealthy" if kind == "unhealthy" else "Not advertised"
        why = reason or "its driver does not say"
        yield rows([(what, listed(addresses)), ("Why", why), ("Do next", advice), ("Kind", kind)])


def _resources(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, title_justify="left", title=" ")
    for name in ("Resource", "GPUs", "Devices", "Healthy"):
        table.add_column(name, justify="left" if name == "Resource" else "right", overflow="fold")
    serving = any(resource.serving is not None for resource in report.resources)
    if serving:
        table.add_column("Kubelet", overflow="fold")
    for resource in report.resources:
        row = [resource.name, str(resource.gpus), str(resource.devices), str(resource.healthy)]
        if serving:
            state = resource.serving
            row.append("" if state is None else ": ".join(filter(None, (state.phase, state.reason))))
        table.add_row(*row)
    return table


def _facts(gpu: GpuReport, details: Details) -> Iterator[tuple[str, str]]:
    if gpu.vendor is not None and gpu.device is not None:
        name = details.names.get((gpu.vendor, gpu.device))
        names = f" {name.vendor} {name.device}".rstrip() if name else ""
        kind = "" if gpu.pci_class is None else f", class {gpu.pci_class >> 8:04x}"
        yield "Model", f"{gpu.vendor:04x}:{gpu.device:04x}{names}{kind}"
    if gpu.bus:
        yield (
            "Kernel driver",
            f"{gpu.kernel_driver or 'none'}{'' if gpu.bus == 'pci' else f', bus {gpu.bus}'}",
        )
    for index, node in enumerate(gpu.nodes):
        yield "" if index else "Nodes", f"{node.path} {_access(details.access.get(node.name))}".rstrip()
    if gpu.missing:
        yield "Nodes missing", ", ".join(gpu.missing)
    if gpu.bus:
        yield "NUMA node", "unknown" if gpu.numa_node is None else str(gpu.numa_node)
    if gpu.physical_function:
        yield "SR-IOV", f"virtual function of {gpu.physical_function}"
    elif gpu.total_functions:
        turned_on = f"{gpu.virtual_functions} of {gpu.total_functions} virtual functions turned on"
        yield "SR-IOV", f"physical function, {turned_on}"
    if gpu.refusal is not None:
        yield "Not advertised", gpu.refusal.code.value
    if gpu.offer is not None:
        package = f" ({gpu.package})" if gpu.package else ""
        yield "Resource", f"{gpu.resource}, by driver {gpu.offer.driver}{package}"
        yield "Devices", _devices(gpu.address, gpu.offer.shares)
        yield from _beside(gpu, gpu.offer)
        yield "Health", _health(healthy=gpu.offer.verdict.healthy, reason=gpu.offer.verdict.reason)


def _beside(gpu: GpuReport, offer: Offer) -> Iterator[tuple[str, str]]:
    """Name the nodes that a container gets and that are not the GPU's own."""
    own = {node.path for node in gpu.nodes}
    paths = [spec.container_path for spec in offer.specs if spec.container_path not in own]
    if paths:
        yield "Given as well", ", ".join(paths)


def _access(access: Access | None) -> str:
    if access is None:
        return "(gone meanwhile)"
    owner, group = access.user or str(access.uid), access.group or str(access.gid)
    return f"{stat.filemode(access.mode)} {owner}:{group}"


def _devices(address: str, shares: int) -> str:
    first = device_id(address, 0)
    if shares == 1:
        return first
    rest = device_id(address, 1) if shares == 2 else f"{device_id(address, 1)} to ::{shares - 1}"  # noqa: PLR2004
    return f"{shares} shares: {first}, {rest}"


def _health(*, healthy: bool, reason: str) -> str:
    return f"{'healthy' if healthy else 'unhealthy'}{f': {reason}' if reason else ''}"


def _packages(report: Report) -> Iterator[tuple[str, str]]:
    if not report.drivers:
        yield "none", "install one, such as gpuplug-intel"
    for driver in report.drivers:
        options = ", ".join(f"{option}={value}" for option, value in driver.options)
        yield (
            driver.name,
            driver.problem or "; ".join(filter(None, (driver.package or "of no package", options))),
        )
    for problem in report.problems:
        yield "problem", problem
