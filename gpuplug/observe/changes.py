"""What changed between two Inventories, one sentence per GPU: the lines of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from gpuplug.model import RefusalCode
from gpuplug.observe.refusals import NO_GPU, refuse, refuse_display

if TYPE_CHECKING:
    from gpuplug.model import Gpu, Inventory, Offer, PciDisplay, Resource, Surroundings


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence for the log."""

    level: Literal["INFO", "WARNING"]
    text: str
    gpu: str = field(default="", compare=False)
    """The address of the GPU that it is about, if it is about one."""


def changes(old: Inventory | None, new: Inventory) -> tuple[Line, ...]:
    """Say what is new, different and gone; ``old`` is ``None`` at the start.

    A state that stays the same is not mentioned, however often it is looked at.
    """
    before, after = _sayings(old), _sayings(new)
    lines = [line for address, line in after.items() if before.get(address) != line]
    lines += [Line("INFO", f"{address}: gone", address) for address in before if address not in after]
    lines += _monitored(old, new)
    known = _problems(old)
    lines += [Line("WARNING", problem) for problem in _problems(new) if problem not in known]
    if not after and (old is None or before):
        lines.append(Line("INFO", f"no GPU: {NO_GPU}; watching for one"))
    return tuple(lines)


def around(old: Surroundings | None, new: Surroundings) -> tuple[Line, ...]:
    """Say which PCI display devices have no DRM device, and why, if that has changed.

    Nothing is said of one that is gone, or has a DRM device by now: ``changes`` has it then.
    """
    before = () if old is None else _without_drm(old)
    return tuple(line for line in _without_drm(new) if line not in before)


def _without_drm(surroundings: Surroundings) -> tuple[Line, ...]:
    lines = []
    for device in surroundings.displays:
        if not device.drm:
            refusal = refuse_display(device, surroundings.modules)
            text = f"{_describe_display(device)}: not advertised: {refusal.reason}"
            lines.append(
                Line("INFO" if refusal.code is RefusalCode.KEPT_FOR_VMS else "WARNING", text, device.address)
            )
    return tuple(lines)


_MEANT: Final = frozenset({RefusalCode.DECLINED, RefusalCode.DENIED})
"""Reasons that somebody chose."""


def _sayings(inventory: Inventory | None) -> dict[str, Line]:
    """Say one thing about each address."""
    if inventory is None:
        return {}
    lines = {
        rejected.address: Line(
            "INFO" if rejected.code in _MEANT else "WARNING",
            f"{rejected.address}: not advertised: {refuse(rejected).reason}",
            rejected.address,
        )
        for rejected in inventory.rejected
    }
    for resource in inventory.resources.values():
        for offer in resource.offers:
            lines[offer.gpu.address] = _offered(resource, offer)
    return lines


def _offered(resource: Resource, offer: Offer) -> Line:
    shares = f", {offer.shares} shares" if offer.shares > 1 else ""
    text = f"{describe(offer.gpu)}: advertised as {resource.name}{shares}"
    if offer.verdict.healthy:
        return Line("INFO", text, offer.gpu.address)
    return Line("WARNING", f"{text}, unhealthy: {offer.verdict.reason}", offer.gpu.address)


def _monitored(old: Inventory | None, new: Inventory) -> list[Line]:
    """Say which monitoring Resources there are, and of how many GPUs, if that has changed."""
    before = {} if old is None else {name: len(r.offers) for name, r in old.monitoring.items()}
    after = {name: len(resource.offers) for name, resource in new.monitoring.items()}
    lines = [
        Line("INFO", f"{name}: advertised, for monitoring: it gives {count} GPU{'' if count == 1 else 's'}")
        for name, count in after.items()
        if before.get(name) != count
    ]
    return lines + [Line("INFO", f"{name}: gone") for name in before if name not in after]


def _describe_display(device: PciDisplay) -> str:
    ids = (
        "" if device.vendor is None or device.device is None else f" {device.vendor:04x}:{device.device:04x}"
    )
    return f"{device.address} ({device.kernel_driver or 'no kernel driver'}{ids})"


def describe(gpu: Gpu) -> str:
    """Name a GPU for a person: address, kernel driver, ids and nodes."""
    driver = gpu.kernel_driver or "no kernel driver"
    ids = "" if gpu.vendor is None or gpu.device is None else f" {gpu.vendor:04x}:{gpu.device:04x}"
    nodes = ", ".join(node.name for node in gpu.nodes)
    return f"{gpu.address} ({driver}{ids}; {nodes})"


def _problems(inventory: Inventory | None) -> tuple[str, ...]:
    if inventory is None:
        return ()
    return inventory.all_problems
