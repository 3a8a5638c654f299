"""Why a GPU is not advertised, and what to do next: the one place that this wording comes from.

``core`` and ``host`` give the reason where they know the facts, with its ``RefusalCode``; here are the
reasons for GPUs that DRM does not have, and the advice for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuplug.model import RefusalCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gpuplug.model import PciDisplay, Rejected, Surroundings

USUAL_MODULES: Final[Mapping[int, tuple[str, ...]]] = {
    0x1002: ("amdgpu",),
    0x1013: ("cirrus",),
    0x102B: ("mgag200",),
    0x10DE: ("nouveau", "nvidia"),
    0x1234: ("bochs",),
    0x1414: ("hyperv_drm", "dxgkrnl"),
    0x15AD: ("vmwgfx",),
    0x1A03: ("ast",),
    0x1AF4: ("virtio_gpu",),
    0x1B36: ("qxl",),
    0x80EE: ("vboxvideo",),
    0x8086: ("i915", "xe"),
}
"""The kernel modules that usually drive a vendor's display devices, by PCI vendor id.

From the PCI id tables of drivers/gpu/drm in Linux 6.12, and the vendors' own modules.
"""

ALL_MODULES: Final = frozenset(module for modules in USUAL_MODULES.values() for module in modules)

_PACKAGES: Final = {"amdgpu": "gpuplug-amdgpu", "i915": "gpuplug-intel", "xe": "gpuplug-intel"}
"""The driver packages of gpuplug's own that claim a kernel driver."""
_FOR_VMS: Final = frozenset({"vfio-pci", "pci-stub", "pciback", "xen-pciback"})
_DISPLAY_ONLY: Final = frozenset(
    {"ast", "bochs", "cirrus", "hyperv_drm", "mgag200", "qxl", "simpledrm", "simple-framebuffer", "vboxvideo"}
)
"""Kernel drivers of devices that show a picture and compute nothing."""
_PICTURE: Final = "nothing: it shows a picture and cannot compute"
_FOR_A_VM: Final = "nothing, if it is meant for a virtual machine;"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not advertised."""

    code: RefusalCode
    """The kind of the reason: stable."""
    reason: str
    """In words."""
    advice: str
    """What to do next, in words."""


_NODES: Final = (
    "look whether /dev/dri on the node has them: if so, this container sees another /dev, and needs the"
    " whole /dev of the node, since a mount of /dev/dri alone goes stale; if not, they were removed there:"
    " bind the kernel driver anew, or reboot"
)
_ADVICE: Final[Mapping[RefusalCode, str]] = {
    RefusalCode.NODES_MISSING: _NODES,
    RefusalCode.NODE_MISMATCH: (
        "mount the node's own /dev; if this is the node, remove what is there,"
        " and bind the kernel driver anew, or reboot"
    ),
    RefusalCode.SYSFS_WRONG: (
        "look again in a minute, for it may be coming or going;"
        " if it stays, compare with /sys on the node, and report it with this output"
    ),
    RefusalCode.UNREADABLE: (
        "let this user read it: mount /sys and /dev of the node without masks,"
        " and look for denials of SELinux or AppArmor"
    ),
    RefusalCode.SAME_NAME: "report it with this output: Device ids need a name that only one GPU has",
    RefusalCode.SRIOV_PF: (
        "use its virtual functions, which count as GPUs; to have the whole GPU instead,"
        " write 0 to its sriov_numvfs"
    ),
    RefusalCode.DECLINED: "nothing, if that is meant; what would change it is in the driver package's README",
    RefusalCode.DRIVER_FAILED: "mend, update or remove the driver package that is named",
    RefusalCode.BAD_ADDRESS: "lower --shared-dev-num if the id is too long; otherwise report it",
    RefusalCode.DENIED: (
        "nothing, if that is meant; otherwise change the option, which may also be set by"
        " GPUPLUG_ALLOW_IDS or GPUPLUG_DENY_IDS"
    ),
    RefusalCode.LIST_FULL: "lower --shared-dev-num: the list of one resource has 4 MiB",
}


UNHEALTHY: Final = (
    "mend what is said here: the kubelet gives it to no pod as long as it is so, and does again by itself"
)
"""What to do about a GPU that is advertised and unhealthy."""


def refuse(rejected: Rejected, kernel_driver: str = "", broken: Sequence[tuple[str, str]] = ()) -> Refusal:
    """Say what to do about a GPU that the core or the scan left out.

    :param kernel_driver: the kernel driver bound to it, where known.
    :param broken: name and reason of each driver package that could not be loaded.
    """
    code = rejected.code
    if code is not RefusalCode.NO_DRIVER_PACKAGE:
        return Refusal(code, rejected.reason, _ADVICE[code])
    if broken and kernel_driver not in _DISPLAY_ONLY:
        own = [reason for name, reason in broken if name == kernel_driver]
        faults = "; ".join(own or [reason for _, reason in broken])
        advice = f"mend or install anew the package that cannot be loaded: {faults}"
        return Refusal(RefusalCode.DRIVER_PACKAGE_BROKEN, rejected.reason, advice)
    return Refusal(code, rejected.reason, _package_for(kernel_driver))


def _package_for(kernel_driver: str) -> str:
    if kernel_driver in _DISPLAY_ONLY:
        return _PICTURE
    if not kernel_driver:
        return "nothing, unless you wrote a driver package for it: it is made by software alone"
    if kernel_driver in _PACKAGES:
        return f"install the package {_PACKAGES[kernel_driver]} beside gpuplug, which claims {kernel_driver}"
    return (
        f"install a driver package that claims {kernel_driver} beside gpuplug; or have its nodes handed out"
        f" by gpuplug-drm, with --drm-kernel-drivers={kernel_driver}; or write one: see drivers/README.md"
    )


def refuse_display(device: PciDisplay, modules: Collection[str]) -> Refusal:
    """Say why a PCI display device has no DRM device, and what to do.

    :param modules: the kernel modules for GPUs that are loaded.
    """
    if device.kernel_driver == "dxgkrnl":
        return WSL
    if device.kernel_driver in _FOR_VMS:
        return Refusal(
            RefusalCode.KEPT_FOR_VMS,
            f"it is bound to {device.kernel_driver}, which keeps it for virtual machines",
            "nothing, if that is meant; for containers bind it to its own kernel driver:"
            " look for vfio-pci.ids and driver_override",
        )
    if device.drm:
        return Refusal(
            RefusalCode.SYSFS_WRONG,
            f"its sysfs has {', '.join(device.drm)}, and /sys/class/drm does not",
            _ADVICE[RefusalCode.SYSFS_WRONG],
        )
    if device.kernel_driver:
        return Refusal(
            RefusalCode.NO_DRM,
            f"its kernel driver {device.kernel_driver} has made no DRM device for it",
            f"look for errors of {device.kernel_driver} in `dmesg`{_NO_DRM.get(device.kernel_driver, '')}",
        )
    return _unbound(device, modules)


_NO_DRM: Final = {
    "nvidia": ", and load nvidia_drm: without it there are no DRM nodes",
}


def _unbound(device: PciDisplay, modules: Collection[str]) -> Refusal:
    usual = () if device.vendor is None else USUAL_MODULES.get(device.vendor, ())
    loaded = [module for module in usual if module in modules]
    kind = f"a virtual function of {device.physical_function} and " if device.physical_function else ""
    start = f"it is {kind}bound to no kernel driver"
    if not usual:
        advice = "look with `lspci -k` on the node which kernel module knows it, and load that"
        return Refusal(RefusalCode.MODULE_UNKNOWN, start, advice)
    if loaded:
        names = " and ".join(loaded)
        reason = f"{start}, though {names} is loaded, which usually drives it"
        return Refusal(RefusalCode.MODULE_NOT_BINDING, reason, _not_binding(device, loaded[0]))
    reason = f"{start}, and {' or '.join(usual)}, which usually drives it, is not loaded"
    return Refusal(RefusalCode.MODULE_NOT_LOADED, reason, _not_loaded(device, usual[0]))


def _not_loaded(device: PciDisplay, module: str) -> str:
    if module in _DISPLAY_ONLY:
        return _PICTURE
    if device.physical_function:
        return f"{_FOR_A_VM} for containers load {module}"
    return (
        f"`modprobe {module}` on the node; if there is no such module, install the package with the"
        " rest of the kernel's modules, and if it is kept out, look in /etc/modprobe.d"
    )


def _not_binding(device: PciDisplay, module: str) -> str:
    if device.physical_function:
        return f"{_FOR_A_VM} for containers write its address to /sys/bus/pci/drivers/{module}/bind"
    if module in _DISPLAY_ONLY:
        return _PICTURE
    ids = f"{device.device:04x}" if device.device is not None else "its id"
    return (
        f"look for {module} in `dmesg`: a kernel older than the GPU does not know {ids} (take a newer one,"
        f" or try {module}.force_probe={ids}), and nomodeset on the kernel's command line keeps it off"
    )


WSL: Final = Refusal(
    RefusalCode.WSL,
    "it is the GPU of the Windows below, reached through /dev/dxg, and has no DRM device",
    "nothing on this node: no driver package can claim what has no DRM device",
)


def refuse_nothing(around: Surroundings) -> Refusal:
    """Say why a machine without any GPU has none, and what to do."""
    if not around.drm_class:
        advice = (
            "see that /sys is the node's own; if it is, no kernel module for a GPU is loaded:"
            " look with `lspci` on the node for a display device"
        )
        return Refusal(RefusalCode.NO_GPU, NO_DRM_CLASS, advice)
    advice = "if there should be one, look whether it is turned on in the firmware, or passed to this machine"
    if around.modules:
        advice += f"; loaded without a device to drive: {', '.join(sorted(around.modules))}"
    return Refusal(RefusalCode.NO_GPU, NO_GPU, advice)


NO_GPU: Final = "/sys/class/drm has no card and no render node"
NO_DRM_CLASS: Final = "there is no /sys/class/drm"
