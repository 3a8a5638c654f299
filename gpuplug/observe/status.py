"""What the kubelet believes beside what the machine has: who holds what, what is free, where they differ.

``build_status`` is a pure join of a ``Report`` and a ``Belief``. Not everything that the kubelet tells is
gpuplug's: a resource counts as ours if the Report has it, if one of its Devices bears the address of a
GPU of this machine that some driver package might have claimed before, or if one bears a PCI address
that nothing on this machine has.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuplug.core.identity import split_device_id
from gpuplug.model import ALL, RefusalCode
from gpuplug.observe.differences import Told, differences, not_registered, split
from gpuplug.observe.disagreements import grouped

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuplug.core.belief import Belief
    from gpuplug.observe.disagreements import Disagreement, State
    from gpuplug.observe.report import GpuReport, Report

_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """One Device in the hands of one container."""

    share: int
    device: str
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """One GPU on one resource, as the machine and the kubelet have it."""

    resource: str
    address: str
    state: State
    reason: str = ""
    """Why it is in this state, in words; empty where it is healthy."""
    shares: int = 0
    """Devices that gpuplug advertises for it."""
    offered: int | None = None
    """Devices of it that the kubelet can give out, held ones included; ``None`` where it does not say."""
    free: int | None = None
    """Those of them that no container holds."""
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """One resource, as the machine and the kubelet have it."""

    name: str
    gpus: int
    devices: int
    """What gpuplug advertises."""
    healthy: int
    offered: int | None
    """What the kubelet can give out, held ones included; ``None`` where it does not say."""
    held: int
    """Devices that some container holds."""
    free: int | None


@dataclass(frozen=True, slots=True)
class MonitoringStatus:
    """A monitoring resource: its one Device gives a container all GPUs, and holds none of them back."""

    name: str
    offered: bool | None
    """Whether the kubelet can give it out; ``None`` where it does not say."""
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class OtherResource:
    """A resource of another device plugin: named, so that nothing that the kubelet tells gets lost."""

    name: str
    offered: int
    held: int


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Who holds what, what is free, and where kubelet and machine differ."""

    told: bool
    """Whether the kubelet says what it can give out."""
    resources: tuple[ResourceStatus, ...]
    """By name."""
    gpus: tuple[GpuStatus, ...]
    """Every GPU that is advertised, and every one that the kubelet knows; by resource and address."""
    refused: tuple[GpuReport, ...]
    """GPUs that neither side counts: ``gpuplug inspect`` says why."""
    disagreements: tuple[Disagreement, ...]
    monitoring: tuple[MonitoringStatus, ...]
    """By name; their Devices count nowhere else."""
    others: tuple[OtherResource, ...]

    @property
    def agree(self) -> bool:
        """Whether there is nothing to mend."""
        return not self.disagreements


def shares_told(belief: Belief, addresses: Collection[str]) -> int:
    """Say how many shares a GPU has by what the kubelet was told; 1 where it was told nothing.

    :param addresses: those of the GPUs of this machine.
    """
    offered = [id_ for devices in (belief.allocatable or {}).values() for id_ in devices]
    ids = offered or [id_ for holder in belief.holders for id_ in holder.devices]
    split = [parts for id_ in ids if (parts := split_device_id(id_)) is not None and parts[0] in addresses]
    return max((share for _, share in split), default=0) + 1


def build_status(report: Report, belief: Belief, on_the_bus: Collection[str]) -> StatusReport:
    """Join what the machine has with what the kubelet says.

    :param on_the_bus: the addresses of all devices on the PCI bus, GPUs or not.
    """
    every = _by_gpu(belief)
    watching = {key[0]: one for key, one in every.items() if _is_monitoring(*key)}
    told = {key: one for key, one in every.items() if not _is_monitoring(*key)}
    gpus = {gpu.address: gpu for gpu in report.gpus}
    advertised = {str(gpu.resource) for gpu in report.advertised}
    ours = advertised | {
        resource
        for resource, address in told
        if (address in gpus and not _foreign(gpus[address]))
        or (_PCI_ADDRESS.fullmatch(address) and address not in gpus and address not in on_the_bus)
    }
    keys = {(str(gpu.resource), gpu.address) for gpu in report.advertised}
    keys |= {key for key in told if key[0] in ours}
    asked = belief.allocatable is not None
    rows = tuple(_row(*key, gpus.get(key[1]), told.get(key, Told()), asked=asked) for key in sorted(keys))
    registered = set(belief.allocatable or ())
    found = [
        one
        for row in rows
        for one in differences(row, gpus.get(row.address), told.get((row.resource, row.address)), registered)
    ]
    if asked:
        expected = {str(resource.name) for resource in report.resources}
        found += [not_registered(name) for name in expected - advertised - registered]
    known = {row.address for row in rows}
    return StatusReport(
        told=asked,
        resources=tuple(_total(name, [row for row in rows if row.resource == name]) for name in sorted(ours)),
        gpus=rows,
        refused=tuple(gpu for gpu in report.refused if gpu.address not in known),
        disagreements=grouped(found),
        monitoring=tuple(
            MonitoringStatus(name, bool(one.offered) if asked else None, tuple(sorted(one.held)))
            for name, one in sorted(watching.items())
        ),
        others=_others(told, ours),
    )


def _by_gpu(belief: Belief) -> dict[tuple[str, str], Told]:
    """Sort all that the kubelet says by resource and GPU; an id that is none of ours stands for a GPU."""
    told: dict[tuple[str, str], Told] = {}
    for resource, devices in (belief.allocatable or {}).items():
        for id_, nodes in devices.items():
            told.setdefault((resource, split(id_)[0]), Told()).offered[id_] = nodes
    for holder in belief.holders:
        for id_ in holder.devices:
            address, share = split(id_)
            held = Held(share, id_, holder.namespace, holder.pod, holder.container)
            told.setdefault((holder.resource, address), Told()).held.add(held)
    return told


def _foreign(gpu: GpuReport) -> bool:
    """Whether no driver package claims the GPU: who gives it out is another device plugin."""
    return gpu.refusal is not None and gpu.refusal.code is RefusalCode.NO_DRIVER_PACKAGE


def _is_monitoring(resource: str, address: str) -> bool:
    return address == ALL and resource.endswith(("_monitoring", "/monitoring"))


def _row(resource: str, address: str, gpu: GpuReport | None, told: Told, *, asked: bool) -> GpuStatus:
    state, reason = _state(resource, address, gpu)
    taken = {held.device for held in told.held}
    return GpuStatus(
        resource,
        address,
        state,
        reason,
        shares=gpu.offer.shares if gpu is not None and gpu.offer and state in {"healthy", "unhealthy"} else 0,
        offered=len(told.offered) if asked else None,
        free=len(told.offered.keys() - taken) if asked else None,
        held=tuple(sorted(told.held)),
    )


def _state(resource: str, address: str, gpu: GpuReport | None) -> tuple[State, str]:
    if gpu is None:
        if _PCI_ADDRESS.fullmatch(address):
            return "gone", "this machine has no such GPU any more"
        return "unknown", "no GPU of this machine has such an id"
    if gpu.offer is None:
        return "refused", f"it is not advertised: {gpu.refusal.reason if gpu.refusal else 'nobody says why'}"
    if gpu.resource != resource:
        return "moved", f"it is advertised as {gpu.resource} now"
    verdict = gpu.offer.verdict
    if not verdict.healthy:
        return "unhealthy", f"it is unhealthy: {verdict.reason or 'its driver does not say why'}"
    return "healthy", ""


def _total(name: str, rows: list[GpuStatus]) -> ResourceStatus:
    here = [row for row in rows if row.shares]
    offered = [row.offered for row in rows if row.offered is not None]
    free = [row.free for row in rows if row.free is not None]
    return ResourceStatus(
        name,
        gpus=len(here),
        devices=sum(row.shares for row in here),
        healthy=sum(row.shares for row in here if row.state == "healthy"),
        offered=sum(offered) if len(offered) == len(rows) else None,
        held=sum(len({held.device for held in row.held}) for row in rows),
        free=sum(free) if len(free) == len(rows) else None,
    )


def _others(told: Mapping[tuple[str, str], Told], ours: Collection[str]) -> tuple[OtherResource, ...]:
    offered: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for (resource, _), one in told.items():
        if resource not in ours:
            offered[resource] += len(one.offered)
            held[resource] += len({each.device for each in one.held})
    return tuple(OtherResource(name, offered[name], held[name]) for name in sorted(offered))
