"""The values that flow through gpuplug; the words are those of the design.

All are frozen: a scan makes them new, comparison tells what changed, and no
thread or task can alter what another one reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
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
    """The path on the node, as the kubelet knows it: below ``--node-root``, or else ``--prefix``."""
    major: int
    minor: int

    @property
    def is_render(self) -> bool:
        """Whether this is a render node (``renderD*``), which needs no DRM master."""
        return self.name.startswith("renderD")


@dataclass(frozen=True, slots=True)
class CompanionNode:
    """A character device outside /dev/dri that GPUs need beside their own nodes: ``/dev/kfd``."""

    path: str
    """The path inside a container, and the one that the driver declared; never carries ``--prefix``."""
    host_path: str
    """The path on the node, as the kubelet knows it: below ``--node-root``, or else ``--prefix``."""
    major: int
    minor: int


NO_COMPANIONS: Final[Mapping[str, CompanionNode]] = MappingProxyType({})


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
    virtual_functions: int = 0
    """SR-IOV virtual functions that are turned on: more than 0 makes it a physical function in use."""
    attributes: Mapping[str, str] = field(default_factory=lambda: NO_ATTRIBUTES, hash=False)
    """The sysfs attributes that drivers asked for, by path: relative to the bus device, or from /sys on."""
    companions: Mapping[str, CompanionNode] = field(default_factory=lambda: NO_COMPANIONS, hash=False)
    """The companion nodes that drivers asked for and the machine has, by path; all GPUs have the same."""


class RefusalCode(StrEnum):
    """The kinds of reasons for which a GPU is not advertised: stable names, for scripts and for the docs."""

    NO_GPU = "no-gpu"
    """There is none."""
    MODULE_NOT_LOADED = "module-not-loaded"
    """No kernel driver is bound, and the module that usually drives it is not loaded."""
    MODULE_NOT_BINDING = "module-not-binding"
    """No kernel driver is bound, though the module that usually drives it is loaded."""
    MODULE_UNKNOWN = "module-unknown"
    """No kernel driver is bound, and which one usually is we do not know."""
    KEPT_FOR_VMS = "kept-for-vms"
    """It is bound to vfio-pci or its like, for virtual machines."""
    NO_DRM = "no-drm"
    """Its kernel driver makes no DRM device."""
    WSL = "wsl"
    """It is the GPU of the Windows below, reached through /dev/dxg."""
    NODES_MISSING = "nodes-missing"
    """sysfs lists DRM nodes, and /dev/dri has none of them."""
    NODE_MISMATCH = "node-mismatch"
    """A file in /dev/dri is not the device that sysfs says."""
    SYSFS_WRONG = "sysfs-wrong"
    """sysfs says something that cannot be."""
    UNREADABLE = "unreadable"
    """Something in /sys or /dev cannot be looked at."""
    SAME_NAME = "same-name"
    """Several bus devices have its name."""
    SRIOV_PF = "sriov-pf"
    """It is an SR-IOV physical function with virtual functions turned on."""
    NO_DRIVER_PACKAGE = "no-driver-package"
    """No driver package claims it."""
    DRIVER_PACKAGE_BROKEN = "driver-package-broken"
    """No driver package claims it, and one cannot be loaded."""
    DECLINED = "declined"
    """The driver package whose GPU it is says that it is not to be advertised."""
    DRIVER_FAILED = "driver-failed"
    """A driver package failed while it was asked about it, or gave an answer that cannot be used."""
    BAD_ADDRESS = "bad-address"
    """Its address cannot be part of a Device id."""
    LIST_FULL = "list-full"
    """The kubelet's list has no room for it."""
    DENIED = "denied"
    """The operator left it out by its PCI device id."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A GPU (or what looked like one) that is not advertised, and why, in words."""

    address: str
    reason: str
    code: RefusalCode = field(default=RefusalCode.SYSFS_WRONG, compare=False)
    """The kind of the reason, from which it follows."""


@dataclass(frozen=True, slots=True)
class PciDisplay:
    """A display device on the PCI bus (class 0x03), whether or not DRM has it."""

    address: str
    vendor: int | None = None
    device: int | None = None
    pci_class: int | None = None
    kernel_driver: str = ""
    """The module bound to it; empty where there is none. Below virtio-pci it is the child's."""
    numa_node: int | None = None
    drm: tuple[str, ...] = ()
    """The DRM nodes that sysfs lists below it, by name; none where DRM does not have it."""
    physical_function: str = ""
    """The address of the SR-IOV physical function that it is a virtual function of."""
    virtual_functions: int = 0
    """SR-IOV virtual functions that are turned on."""
    total_functions: int = 0
    """SR-IOV virtual functions that it could have."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a machine has around its DRM devices: the other places that a GPU may be found at."""

    displays: tuple[PciDisplay, ...] = ()
    """By address."""
    modules: frozenset[str] = frozenset()
    """The kernel modules for GPUs that are loaded (or built in, with parameters)."""
    drm_class: bool = True
    """Whether /sys/class/drm is there."""
    dxg: bool = False
    """Whether /dev/dxg is a character device: the machine is a WSL."""


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
class Declined:
    """A driver's word that a GPU is its own and is not to be advertised, with the reason for a person."""

    reason: str


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
class Entry:
    """What the kubelet's list says of one GPU: all shares of it have this in common."""

    stem: str
    """The id of the first Device; the others add ``::1`` and so on."""
    shares: int
    healthy: bool
    numa_node: int | None = None


ALL: Final = DeviceId("all")
"""The id of the one Device of a monitoring Resource."""


@dataclass(frozen=True, slots=True)
class Resource:
    """An extended resource name and the GPUs that are advertised under it."""

    name: ResourceName
    offers: tuple[Offer, ...] = ()
    """By GPU address."""
    together: bool = False
    """Whether it is a monitoring Resource: one Device, ``all``, that stands for all the GPUs."""

    def entries(self) -> Iterator[Entry]:
        """Yield what the kubelet's list consists of.

        A monitoring Resource has no NUMA node, and is healthy whatever its GPUs are: one that is
        broken is worth watching most.
        """
        if self.together:
            if self.offers:
                yield Entry(ALL, 1, healthy=True)
            return
        for offer in self.offers:
            yield Entry(offer.gpu.address, offer.shares, offer.verdict.healthy, offer.gpu.numa_node)

    def devices(self) -> Iterator[Device]:
        """Every Device, in the order of the list that the kubelet gets."""
        if self.together:
            yield from (Device(ALL, offer.gpu) for offer in self.offers[:1])
            return
        for offer in self.offers:
            for id_ in offer.ids():
                yield Device(id_, offer.gpu, offer.verdict.healthy)

    def __len__(self) -> int:
        """Count the Devices."""
        return sum(entry.shares for entry in self.entries())

    @property
    def healthy(self) -> int:
        """How many of the Devices are healthy."""
        return sum(entry.shares for entry in self.entries() if entry.healthy)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was decided about one GPU: an Offer on a Resource, or the reason for none."""

    gpu: Gpu
    resource: ResourceName | None = None
    offer: Offer | None = None
    reason: str = ""
    code: RefusalCode = field(default=RefusalCode.DRIVER_FAILED, compare=False)
    """The kind of the reason."""
    problems: tuple[str, ...] = ()
    """Faults of Drivers that were met while it was decided."""
    watched: Offer | None = None
    """What the monitoring Resource gives of it, if there is one; a GPU that is left out may have that."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All Resources of the node at one moment, and what was left out."""

    resources: Mapping[ResourceName, Resource] = field(default_factory=dict)
    """Those that have a GPU, by name."""
    rejected: tuple[Rejected, ...] = ()
    """Every GPU that is not advertised, by address."""
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    """What was decided about each GPU that could be read, by address."""
    problems: tuple[str, ...] = ()
    """What is wrong with Drivers, whichever GPU it is about."""

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Those of Drivers, and those that were met at each GPU; each once."""
        met = (problem for judgement in self.judgements.values() for problem in judgement.problems)
        return tuple(dict.fromkeys([*self.problems, *met]))

    monitoring: Mapping[ResourceName, Resource] = field(default_factory=dict)
    """The monitoring Resources, by name; the GPUs in them are no further ones."""

    @property
    def served(self) -> Mapping[ResourceName, Resource]:
        """All that the kubelet is told of."""
        return {**self.resources, **self.monitoring}


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one container is given (v1beta1 ``ContainerAllocateResponse``)."""

    specs: tuple[DeviceSpec, ...] = ()
    mounts: tuple[Mount, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
