"""The values that flow through gpuplug; the words are those of the design.

All are frozen: a scan makes them new, comparison tells what changed, and no
thread or task can alter what another one reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NewType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DeviceId = NewType("DeviceId", str)
"""What the kubelet calls one Device (v1beta1 ``Device.ID``)."""

ResourceName = NewType("ResourceName", str)
"""An extended resource name, ``domain/name``."""

NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, order=True)
class DrmNode:
    """A DRM character device that sysfs states and devfs has.

    Minor numbers are reused and card and render numbers are not in step, so a
    node is only ever found through sysfs (``/sys/class/drm/*/device``).
    """

    name: str
    """File name in /dev/dri: ``card0``, ``renderD128``."""
    path: str
    """The path inside a container, ``/dev/dri/<name>``; never carries ``--prefix``."""
    host_path: str
    """The path on the node, ``--prefix`` included."""
    major: int
    minor: int

    @property
    def is_render(self) -> bool:
        """Whether this is a render node (``renderD*``), which needs no DRM master."""
        return self.name.startswith("renderD")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the kernel has it: the bus device that DRM nodes hang on."""

    address: str
    """The sysfs name of the bus device: ``0000:03:00.0``, or a platform device's name."""
    bus: str
    """``pci``, ``platform``, ``virtio``, ``faux`` …; empty where sysfs does not say."""
    kernel_driver: str
    """The module bound to it (``i915``); empty for a device without a driver link (vgem)."""
    nodes: tuple[DrmNode, ...]
    """The nodes present, by name."""
    missing: tuple[str, ...] = ()
    """Names of nodes that sysfs lists and devfs does not have (yet, or any more)."""
    vendor: int | None = None
    """PCI vendor id; ``None`` off the PCI bus."""
    device: int | None = None
    """PCI device id."""
    pci_class: int | None = None
    """PCI class code, 24 bit: ``0x030000`` is a VGA controller."""
    numa_node: int | None = None
    """NUMA node; ``None`` where the kernel says -1 or nothing."""
    attributes: Mapping[str, str] = field(default_factory=lambda: NO_ATTRIBUTES, hash=False)
    """The sysfs attributes that drivers asked for, by path relative to the bus device."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A GPU (or what looked like one) that is not advertised, and why, in words."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one scan of sysfs and devfs saw."""

    gpus: tuple[Gpu, ...] = ()
    """By address."""
    rejected: tuple[Rejected, ...] = ()
    """What could not be read as a GPU, by address."""
    fresh: frozenset[str] = frozenset()
    """Addresses with a node so young that others may follow."""
    settled_in: float = 0.0
    """Seconds until the last of the fresh ones counts as settled."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device node for a container (v1beta1 ``DeviceSpec``): the node and its cgroup rule."""

    container_path: str
    host_path: str
    permissions: Literal["r", "rw", "rwm"] = "rw"


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount for a container (v1beta1 ``Mount``)."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """A driver's word on a GPU's health, with the reason that a person will read."""

    healthy: bool
    reason: str = ""


HEALTHY: Final = Verdict(healthy=True)


@dataclass(frozen=True, slots=True)
class Device:
    """One schedulable unit as the kubelet knows it: a GPU, or one share of it."""

    id: DeviceId
    gpu: Gpu
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Offer:
    """A GPU as it is advertised on a Resource: what its driver decided, once per change.

    A GPU's shares differ in their id only, so they are not kept one by one:
    12,800 Devices on 128 GPUs are 128 offers.
    """

    gpu: Gpu
    driver: str
    """The entry-point name of the Driver that claimed the GPU."""
    shares: int
    specs: tuple[DeviceSpec, ...]
    mounts: tuple[Mount, ...] = ()
    verdict: Verdict = HEALTHY

    def ids(self) -> Iterator[DeviceId]:
        """Yield the Device ids, one per share; share 0 bears the bare address."""
        yield DeviceId(self.gpu.address)
        for share in range(1, self.shares):
            yield DeviceId(f"{self.gpu.address}::{share}")


@dataclass(frozen=True, slots=True)
class Resource:
    """An extended resource name and the GPUs that are advertised under it."""

    name: ResourceName
    offers: tuple[Offer, ...] = ()
    """By GPU address."""

    def devices(self) -> Iterator[Device]:
        """Every Device, in the order of the list that the kubelet gets."""
        for offer in self.offers:
            for id_ in offer.ids():
                yield Device(id_, offer.gpu, offer.verdict.healthy)

    def __len__(self) -> int:
        """Count the Devices."""
        return sum(offer.shares for offer in self.offers)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was decided about one GPU: an Offer on a Resource, or the reason for none."""

    gpu: Gpu
    resource: ResourceName | None = None
    offer: Offer | None = None
    reason: str = ""
    problems: tuple[str, ...] = ()
    """Faults of Drivers that were met while it was decided."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All Resources of the node at one moment, and what was left out."""

    resources: Mapping[ResourceName, Resource] = field(default_factory=dict)
    """Those that have a GPU, by name."""
    rejected: tuple[Rejected, ...] = ()
    """Every GPU that is not advertised, by address."""
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    """What was decided about each GPU that could be read, by address."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container is given (v1beta1 ``ContainerAllocateResponse``)."""

    specs: tuple[DeviceSpec, ...] = ()
    mounts: tuple[Mount, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
