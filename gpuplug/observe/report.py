"""What is true now, and why: one value, of which all that people and machines are told is a view.

Every GPU that is there is either advertised or refused, with a reason and what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuplug.model import PciDisplay, RefusalCode, Rejected
from gpuplug.observe.refusals import WSL, Refusal, refuse, refuse_display, refuse_nothing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuplug.model import DrmNode, Gpu, Inventory, Offer, ResourceName, Surroundings

DXG = "/dev/dxg"
"""What stands for the GPU of a WSL where the PCI bus does not show it."""


@dataclass(frozen=True, slots=True)
class DriverReport:
    """A driver package's entry point, and why it is not used if it is not."""

    name: str
    package: str = ""
    """Name and version of the distribution that it came in; empty where unknown."""
    problem: str = ""
    """Why it could not be loaded; empty where it could."""
    options: tuple[tuple[str, str], ...] = ()
    """Its own options, each with the value that holds."""


@dataclass(frozen=True, slots=True)
class ServingState:
    """How one resource stands with the kubelet."""

    streaming: bool
    """Whether the kubelet has registered it and follows its list."""
    phase: str
    """The same in words, with the other phases that there are."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResourceReport:
    """One resource that is advertised."""

    name: ResourceName
    gpus: int
    devices: int
    """What the kubelet shows as the node's capacity."""
    healthy: int
    """What it shows as allocatable."""
    serving: ServingState | None = None
    """Known only to the process that serves."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU, or what looked like one: either ``offer`` or ``refusal`` is there."""

    address: str
    """The name of its bus device; a path, or a DRM node's name, where not even that is known."""
    bus: str = ""
    vendor: int | None = None
    device: int | None = None
    pci_class: int | None = None
    kernel_driver: str = ""
    numa_node: int | None = None
    nodes: tuple[DrmNode, ...] = ()
    missing: tuple[str, ...] = ()
    physical_function: str = ""
    """The address of the physical function that it is a virtual function of."""
    virtual_functions: int = 0
    total_functions: int = 0
    resource: ResourceName | None = None
    offer: Offer | None = None
    package: str = ""
    """Name and version of the distribution whose driver claimed it."""
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What is true now, and why."""

    gpus: tuple[GpuReport, ...]
    """By address."""
    resources: tuple[ResourceReport, ...]
    """By name."""
    drivers: tuple[DriverReport, ...]
    """By name; those that could not be loaded, too."""
    problems: tuple[str, ...]
    """Faults of drivers that were met, and double claims."""
    around: Surroundings
    nothing: Refusal | None
    """Why there is no GPU at all, if there is none."""

    @property
    def advertised(self) -> tuple[GpuReport, ...]:
        """The GPUs that are advertised, healthy or not."""
        return tuple(gpu for gpu in self.gpus if gpu.offer is not None)

    @property
    def refused(self) -> tuple[GpuReport, ...]:
        """The GPUs that are not."""
        return tuple(gpu for gpu in self.gpus if gpu.refusal is not None)


def build_report(
    inventory: Inventory,
    drivers: Sequence[DriverReport],
    around: Surroundings,
    serving: Mapping[ResourceName, ServingState] | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """Put together what is true now; all that matters of the Snapshot is in the Inventory made from it.

    :param drivers: all that are installed.
    :param around: what there is besides DRM devices.
    :param serving: how each resource stands with the kubelet, where that is known.
    :param notes: what was noted of drivers before any GPU was looked at.
    """
    displays = {display.address: display for display in around.displays}
    rows = _of_drm(inventory, drivers, displays)
    listed = {row.address for row in rows}
    rows += [
        replace(_of_display(display), refusal=refuse_display(display, around.modules))
        for address, display in displays.items()
        if address not in listed
    ]
    if around.dxg and not any(row.kernel_driver == "dxgkrnl" for row in rows):
        rows.append(GpuReport(DXG, refusal=WSL))
    return Report(
        gpus=tuple(sorted(rows, key=lambda row: row.address)),
        resources=tuple(
            ResourceReport(
                name,
                gpus=len(resource.offers),
                devices=len(resource),
                healthy=resource.healthy,
                serving=None if serving is None else serving.get(name),
            )
            for name, resource in sorted(inventory.served.items())
        ),
        drivers=tuple(sorted(drivers, key=lambda driver: (driver.name, driver.problem))),
        problems=tuple(dict.fromkeys([*notes, *inventory.all_problems])),
        around=around,
        nothing=None if rows else refuse_nothing(around),
    )


def _of_drm(
    inventory: Inventory, drivers: Sequence[DriverReport], displays: Mapping[str, PciDisplay]
) -> list[GpuReport]:
    """Report on all that DRM has: what could be read, then what could not."""
    packages = {driver.name: driver.package for driver in drivers if not driver.problem}
    broken = [(driver.name, driver.problem) for driver in drivers if driver.problem]
    rejected = _by_address(inventory, displays)
    rows = []
    for resource in inventory.resources.values():
        for offer in resource.offers:
            row = _of_gpu(offer.gpu, displays)
            package = packages.get(offer.driver, "")
            rows.append(replace(row, resource=resource.name, offer=offer, package=package))
    for address, rejection in rejected.items():
        judgement, display = inventory.judgements.get(address), displays.get(address)
        if judgement is not None:
            row = _of_gpu(judgement.gpu, displays)
        else:
            row = GpuReport(address) if display is None else _of_display(display)
            if display is not None and rejection.code is RefusalCode.NODES_MISSING:
                row = replace(row, missing=display.drm)
        rows.append(replace(row, refusal=refuse(rejection, row.kernel_driver, broken)))
    return rows


def _by_address(inventory: Inventory, displays: Mapping[str, PciDisplay]) -> dict[str, Rejected]:
    """Give each rejection the address of its GPU, if it bears a DRM node's name instead.

    Where sysfs does not lead from ``card0`` to its device, the PCI bus may lead back.
    """
    bearers = {node: display.address for display in displays.values() for node in display.drm}
    offered = {offer.gpu.address for resource in inventory.resources.values() for offer in resource.offers}
    found: dict[str, Rejected] = {}
    for rejected in inventory.rejected:
        address, reason = rejected.address, rejected.reason
        bearer = bearers.get(address, address)
        if bearer != address and bearer not in offered and bearer not in inventory.judgements:
            address, reason = bearer, f"{rejected.address}: {reason}"
        before = found.get(address)
        if before is not None:
            reason = f"{before.reason}; {reason}"
        found[address] = Rejected(address, reason, before.code if before else rejected.code)
    return found


def _of_gpu(gpu: Gpu, displays: Mapping[str, PciDisplay]) -> GpuReport:
    display = displays.get(gpu.address, PciDisplay(gpu.address))
    return GpuReport(
        gpu.address,
        gpu.bus,
        gpu.vendor,
        gpu.device,
        gpu.pci_class,
        gpu.kernel_driver,
        gpu.numa_node,
        gpu.nodes,
        gpu.missing,
        display.physical_function,
        gpu.virtual_functions,
        display.total_functions,
    )


def _of_display(display: PciDisplay) -> GpuReport:
    return GpuReport(
        display.address,
        "pci",
        display.vendor,
        display.device,
        display.pci_class,
        display.kernel_driver,
        display.numa_node,
        physical_function=display.physical_function,
        virtual_functions=display.virtual_functions,
        total_functions=display.total_functions,
    )
