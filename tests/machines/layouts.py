"""Node layouts as they are met in the field, each a small builder on a made-up machine.

A layout is what the node has, the driver packages that are installed, and the settings. ``inspect``'s
output on each is kept in ``snapshots/``; README.md says how to renew it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import gpuplug_amdgpu
import gpuplug_drm
import gpuplug_intel.i915
import gpuplug_intel.xe

from gpuplug import Declined
from gpuplug.pciids import read_pci_ids
from gpuplug.plugins.hookspecs import hookimpl
from gpuplug.plugins.loader import BrokenDriver, Loaded, LoadedDriver, from_modules
from gpuplug.settings import Settings
from gpuplug.testing import Lie, Machine, break_node
from gpuplug.testing.variants import add_amd_gpu, add_vfs, add_virtio_gpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuplug.model import DeviceSpec, Gpu, Verdict

IGPU, ARC, OTHER = "0000:00:02.0", "0000:03:00.0", "0000:04:00.0"

_PACKAGE: Final = "gpuplug-intel 0.1.0"
INTEL: Final = Loaded(
    (
        LoadedDriver("i915", gpuplug_intel.i915, _PACKAGE),
        LoadedDriver("xe", gpuplug_intel.xe, _PACKAGE),
    )
)


def _amd(**chosen: str) -> Loaded:
    driver = LoadedDriver("amdgpu", gpuplug_amdgpu, "gpuplug-amdgpu 0.1.0")
    driver.choose(chosen)
    return Loaded((driver,))


def _drm(*kernel_drivers: str) -> Loaded:
    driver = LoadedDriver("drm", gpuplug_drm, "gpuplug-drm 0.1.0")
    driver.choose({"kernel-drivers": kernel_drivers})
    return Loaded((driver,))


AMD: Final = _amd()
AMD_MIXED: Final = _amd(**{"resource-naming-strategy": "mixed"})
BOTH: Final = Loaded((*AMD.drivers, *INTEL.drivers))
ALL: Final = Loaded((*AMD.drivers, *_drm("amdgpu", "panfrost", "virtio_gpu").drivers, *INTEL.drivers))

PCI_IDS: Final = """\
# The few ids that the layouts have, in the form of pci.ids.
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]
\t74a0  Aqua Vanjaram [Instinct MI300A]
10de  NVIDIA Corporation
\t2684  AD102 [GeForce RTX 4090]
1af4  Red Hat, Inc.
\t1050  Virtio 1.0 GPU
8086  Intel Corporation
\t4680  AlderLake-S GT1
\t56a0  DG2 [Arc A770]
\t56a2  DG2 [Arc A580]
\t56c1  ATS-M [Data Center GPU Flex 140]
\t9a49  TigerLake-LP GT2 [Iris Xe Graphics]
\t9bc8  CometLake-S GT2 [UHD Graphics 630]
C 03  Display controller
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """A node, and what is installed on it."""

    name: str
    about: str
    build: Callable[[Machine], object]
    loaded: Loaded = INTEL
    settings: Settings = field(default_factory=Settings)
    snapshot: bool = True


def _module(machine: Machine, *names: str) -> None:
    """Load kernel modules."""
    for name in names:
        (machine.sys / "module" / name).mkdir(parents=True)


def _driver(**hooks: Callable[..., object]) -> object:
    """Make a driver's module of hooks, by their names without ``gpuplug_``."""
    return SimpleNamespace(**{f"gpuplug_{name}": hookimpl(hook) for name, hook in hooks.items()})


def _claim(gpu: Gpu) -> str:
    del gpu
    return "gpu.example.com/any"


def _hybrid(machine: Machine) -> None:
    _module(machine, "i915")
    machine.add_gpu(IGPU, device=0x4680)
    machine.add_gpu(ARC)


def _i915_and_xe(machine: Machine) -> None:
    _module(machine, "i915", "xe")
    machine.add_gpu(IGPU, device=0x4680)
    machine.add_gpu(ARC, driver="xe", numa_node=0)


def _egpu(machine: Machine) -> None:
    _module(machine, "i915")
    machine.add_gpu(IGPU, device=0x9A49, card=1, render=128)
    machine.add_gpu("0000:31:00.0", device=0x56A2, card=0, render=129)


def _vfs(machine: Machine) -> None:
    _module(machine, "i915")
    machine.add_gpu(IGPU, device=0x4680)
    add_vfs(machine, IGPU, 3)


def _vfs_for_vms(machine: Machine) -> None:
    _module(machine, "i915")
    machine.add_gpu(ARC, device=0x56C1, pci_class=0x038000, card=False)
    add_vfs(machine, ARC, 2, driver=None)


def _headless(machine: Machine) -> None:
    machine.add_gpu(ARC, driver="xe", device=0x56C1, pci_class=0x038000, card=False, numa_node=1)
    machine.add_gpu(OTHER, driver="xe", device=0x56C1, pci_class=0x038000, card=False, numa_node=1)


def _wsl(machine: Machine) -> None:
    _module(machine, "dxgkrnl")
    machine.add_gpu(
        "27e3:00:00.0",
        driver="dxgkrnl",
        vendor=0x1414,
        device=0x8E,
        pci_class=0x30200,
        card=False,
        render=False,
    )
    (machine.dev / "dxg").symlink_to("/dev/null")


def _wsl_without_pci(machine: Machine) -> None:
    (machine.dev / "dxg").symlink_to("/dev/null")


def _virtio(machine: Machine) -> None:
    _module(machine, "virtio_gpu")
    add_virtio_gpu(machine)


def _virtio_without_module(machine: Machine) -> None:
    add_virtio_gpu(machine)
    machine.unbind(IGPU)
    (machine.device(IGPU) / "virtio0/driver").unlink()
    machine.bind(IGPU, "virtio-pci", card=False, render=False)


def _arm(machine: Machine) -> None:
    machine.add_gpu("fd940000.gpu", bus="platform", driver="panfrost")
    machine.add_gpu("display-subsystem", bus="platform", driver="rockchip-drm", render=False)


def _comet_lake(machine: Machine) -> None:
    _module(machine, "i915")
    machine.add_gpu(IGPU, driver=None, device=0x9BC8, card=False, render=False)


def _no_module(machine: Machine) -> None:
    machine.add_gpu(ARC, driver=None, card=False, render=False)
    machine.add_gpu(OTHER, driver=None, vendor=0x1A03, device=0x2000, card=False, render=False)
    machine.add_gpu("0000:05:00.0", driver=None, vendor=0x1ED5, device=0x0222, card=False, render=False)


def _card1(machine: Machine) -> None:
    machine.add_gpu(IGPU, device=0x9A49, card=1, render=128)


def _mixed(machine: Machine) -> None:
    _module(machine, "i915", "amdgpu", "nvidia", "ast")
    machine.add_gpu("0000:02:00.0", driver="ast", vendor=0x1A03, device=0x2000, render=False)
    machine.add_gpu(ARC, numa_node=0)
    machine.add_gpu(OTHER, driver="amdgpu", vendor=0x1002, device=0x744C, numa_node=0)
    machine.add_gpu(
        "0000:81:00.0", driver="nvidia", vendor=0x10DE, device=0x2684, card=False, render=False, numa_node=1
    )


def _amd_kfd(machine: Machine) -> None:
    _module(machine, "amdgpu")
    machine.add_device("kfd")
    machine.add_gpu(ARC, driver="amdgpu", vendor=0x1002, device=0x744C, numa_node=0)


def _amd_partitions(machine: Machine) -> None:
    _module(machine, "amdgpu")
    machine.add_device("kfd")
    add_amd_gpu(machine, "0000:02:00.0", compute="CPX", memory="NPS4", in_use=6)
    add_amd_gpu(machine, "0001:02:00.0")


def _amd_confined(machine: Machine) -> None:
    _module(machine, "amdgpu")
    machine.add_device("kfd")
    add_amd_gpu(machine, "0000:02:00.0", compute="CPX", memory="NPS1", topology=False)


def _fallback(machine: Machine) -> None:
    _amd_kfd(machine)
    machine.add_gpu(IGPU, device=0x4680)
    add_virtio_gpu(machine, "0000:05:00.0")
    _arm(machine)


def _vfio(machine: Machine) -> None:
    _module(machine, "i915")
    machine.add_gpu(ARC)
    machine.add_gpu(OTHER, driver="vfio-pci", card=False, render=False)


def _nouveau(machine: Machine) -> None:
    _module(machine, "nouveau")
    machine.add_gpu("0000:01:00.0", driver="nouveau", vendor=0x10DE, device=0x2684)


def _vgem(machine: Machine) -> None:
    machine.add_gpu("vgem", bus="faux", driver=None)


def _nothing(machine: Machine) -> None:
    _module(machine, "i915")


def _no_drm(machine: Machine) -> None:
    (machine.sys / "class/drm/version").unlink()
    (machine.sys / "class/drm").rmdir()


def _lying(machine: Machine) -> None:
    for address, lie in (
        ("0000:03:00.0", Lie.NODE_IS_FILE),
        ("0000:04:00.0", Lie.DEV_GARBAGE),
        ("0000:05:00.0", Lie.DEVICE_DANGLES),
        ("0000:06:00.0", None),
        ("0000:07:00.0", Lie.NODE_MISSING),
    ):
        gpu = machine.add_gpu(address, render=False)
        if lie is not None:
            break_node(machine, gpu.nodes[0], lie)
    machine.write_attribute("0000:06:00.0", "vendor", "Intel\n")


def _unreadable(machine: Machine) -> None:
    machine.add_gpu(ARC)
    machine.add_gpu(OTHER)
    break_node(machine, "card0", Lie.NODE_CIRCLES)


def _twins(machine: Machine) -> None:
    """Two devices called gpu. No address is used twice while they are made, for a Machine forbids it."""
    machine.add_gpu("gpu", bus="platform", driver="panfrost")
    other = machine.add_gpu("gpu-b", bus="faux", driver=None)
    home = machine.device("gpu-b")
    twin = home.rename(home.with_name("gpu"))
    for name in other.nodes:
        for path, target in (
            (machine.sys / "class/drm" / name, twin / "drm" / name),
            (twin / "drm" / name / "device", twin),
        ):
            path.unlink()
            path.symlink_to(target)


def _stale_dri(machine: Machine) -> None:
    machine.add_gpu(ARC)
    for name in machine.nodes_of(ARC):
        break_node(machine, name, Lie.NODE_MISSING)


def _half_there(machine: Machine) -> None:
    gpu = machine.add_gpu(ARC)
    machine.devfs.remove(str(gpu.card))


def _unlisted(machine: Machine) -> None:
    machine.add_gpu(ARC)
    (machine.sys / "class/drm/card0").unlink()
    (machine.sys / "class/drm/renderD128").unlink()


def _strange_address(machine: Machine) -> None:
    machine.add_gpu("gpu::0\x1b[31m", bus="platform", driver="panfrost")


def _crowd(machine: Machine) -> None:
    machine.add_gpus(180)


def _failing_health(gpu: Gpu) -> Verdict:
    raise KeyError(gpu.address)


def _decline(gpu: Gpu) -> Declined:
    return Declined(f"{gpu.nodes[0].name} drives the screen of this machine")


def _no_node(gpu: Gpu) -> list[DeviceSpec]:
    del gpu
    return []


BROKEN: Final = replace(
    INTEL,
    drivers=tuple(driver for driver in INTEL.drivers if driver.name != "i915"),
    broken=(BrokenDriver("i915", "driver i915 cannot be imported: ImportError: no libfoo.so.1"),),
)
FAILING: Final = from_modules({"any": _driver(resource_name=_claim, health=_failing_health)})
EMPTY_HANDED: Final = from_modules({"any": _driver(resource_name=_claim, device_specs=_no_node)})
DECLINING: Final = from_modules({"any": _driver(resource_name=_decline)})
ANY: Final = from_modules({"any": _driver(resource_name=_claim), "more": _driver(resource_name=_claim)})

_SHARES = Settings(shared_dev_num=10)
_DENIED = Settings(deny_ids=read_pci_ids("0x4680"))
_MONITORED = Settings(shared_dev_num=10, enable_monitoring=True)

LAYOUTS: Final = (
    Layout("hybrid", "an integrated GPU and an Arc card on i915, 10 shares each", _hybrid, INTEL, _SHARES),
    Layout("i915-and-xe", "one GPU on i915 and one on xe", _i915_and_xe),
    Layout("egpu", "a laptop's GPU, and an Arc card in a box of its own that took card0", _egpu),
    Layout("sriov", "an integrated GPU with three virtual functions, all on i915", _vfs),
    Layout("sriov-for-vms", "a Flex card whose virtual functions are left to virtual machines", _vfs_for_vms),
    Layout("headless", "two Flex cards with render nodes alone", _headless),
    Layout("wsl", "a Linux in Windows, whose GPU is on the PCI bus", _wsl),
    Layout("wsl-vmbus", "a Linux in Windows, whose GPU is /dev/dxg and no more", _wsl_without_pci),
    Layout("virtio", "a virtual machine with a virtio GPU", _virtio),
    Layout("virtio-no-module", "the same without the module virtio_gpu", _virtio_without_module),
    Layout("arm-platform", "an ARM board with a GPU off the PCI bus", _arm),
    Layout("comet-lake", "an integrated GPU that the kernel's i915 is too old for", _comet_lake),
    Layout("no-module", "a GPU, a management controller and an unknown card, without modules", _no_module),
    Layout("card1", "a GPU that is card1, and no card0", _card1),
    Layout("mixed-vendors", "Intel, AMD, NVIDIA without nvidia_drm, a management controller", _mixed, BOTH),
    Layout("amd", "an AMD GPU, and /dev/kfd", _amd_kfd, AMD),
    Layout("amd-partitions", "two MI300A, one in CPX mode with six partitions", _amd_partitions, AMD_MIXED),
    Layout("amd-confined", "an MI300A in CPX mode, seen from a pod that may not open it", _amd_confined, AMD),
    Layout("fallback", "GPUs with packages of their own, and gpuplug-drm for the rest", _fallback, ALL),
    Layout("vfio", "one GPU for containers and one for virtual machines", _vfio),
    Layout("nouveau", "a GPU for which there is no driver package", _nouveau),
    Layout("software", "a GPU that is made by software", _vgem),
    Layout("nothing", "no GPU; i915 is loaded", _nothing),
    Layout("no-drm", "no GPU, and a kernel without DRM", _no_drm),
    Layout("lying-sysfs", "GPUs about which sysfs and devfs say what cannot be", _lying),
    Layout("unreadable-sysfs", "two GPUs, one of whose nodes cannot be examined", _unreadable),
    Layout("unlisted", "a GPU that the PCI bus has and /sys/class/drm has lost", _unlisted),
    Layout("twins", "two devices of the same name on two buses", _twins, ANY),
    Layout("stale-dri", "a container whose /dev/dri is not the node's any more", _stale_dri),
    Layout("half-there", "a GPU of whose nodes one is missing", _half_there, INTEL, _SHARES),
    Layout("broken-package", "two GPUs, and one driver package that cannot be loaded", _i915_and_xe, BROKEN),
    Layout("failing-driver", "a driver package that fails about every GPU", _card1, FAILING),
    Layout("empty-handed-driver", "a driver package that gives a container no node", _card1, EMPTY_HANDED),
    Layout("declined", "a driver package that does not offer a GPU of its own", _card1, DECLINING),
    Layout("two-claims", "two driver packages that claim the same GPU", _card1, ANY),
    Layout("no-packages", "a GPU, and no driver package at all", _card1, Loaded()),
    Layout("strange-address", "a GPU whose name cannot be part of a Device id", _strange_address, ANY),
    Layout("denied", "a GPU that is left out by its id, and another one", _hybrid, INTEL, _DENIED),
    Layout("monitored", "the same two GPUs, with monitoring", _hybrid, INTEL, _MONITORED),
    Layout("crowd", "180 GPUs shared by 764", _crowd, INTEL, Settings(shared_dev_num=764), snapshot=False),
)  # fmt: skip


def build(layout: Layout, machine: Machine) -> None:
    """Make the machine that the layout describes, with users, groups and names of PCI ids."""
    layout.build(machine)
    for name, text in (
        ("usr/share/misc/pci.ids", PCI_IDS),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("etc/group", "root:x:0:\nvideo:x:44:\nrender:x:993:\n"),
    ):
        path = machine.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
