"""See the display devices on the PCI bus, and what else tells why there is no DRM device.

Sources: the kernel's ``Documentation/ABI/testing/sysfs-bus-pci`` (``class``, ``driver``, ``physfn``,
``sriov_*``) and ``sysfs-module``. What is read there is what the kernel has in memory: no device is
woken up by it.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from gpuplug.host.attributes import (
    Roots,
    Wrong,
    bearer,
    driver_of,
    link_name,
    read_count,
    read_hexadecimal,
    read_numa_node,
    shown,
)
from gpuplug.model import PciDisplay, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterable

_DISPLAY: Final = 0x03
"""The PCI base class of display controllers: VGA 0x0300, 3D 0x0302, other 0x0380."""
_ACCELERATOR: Final = 0x12
"""The PCI base class of processing accelerators, which AMD's Instinct MI300 says of itself."""
_AMD: Final = 0x1002
"""The one vendor of whom accelerators count: those of others are no GPUs, such as Intel's NPU."""
_NODE: Final = re.compile(r"(card|renderD)[0-9]+", re.ASCII)


def survey(roots: Roots, modules: Iterable[str]) -> Surroundings:
    """See what there is around the DRM devices. What cannot be read counts as not there.

    :param modules: the kernel modules of which to see whether they are loaded.
    """
    return Surroundings(
        displays=displays(roots),
        modules=frozenset(m for m in modules if os.path.isdir(f"{roots.prefix}/sys/module/{m}")),
        drm_class=os.path.isdir(roots.drm),
        dxg=_is_character_device(f"{roots.prefix}/dev/dxg"),
    )


def displays(roots: Roots) -> tuple[PciDisplay, ...]:
    """See every PCI display device, and AMD's accelerators, by address.

    A number that makes no sense counts as unknown.
    """
    bus = f"{roots.prefix}/sys/bus/pci/devices"
    try:
        names = sorted(os.listdir(bus))
    except OSError:
        return ()
    found = []
    for name in names:
        device = f"{bus}/{name}"
        pci_class = _number(device, "class")
        if pci_class is not None and _is_gpu(device, pci_class >> 16):
            found.append(_display(roots, device, pci_class))
    return tuple(found)


def _is_gpu(device: str, base_class: int) -> bool:
    return base_class == _DISPLAY or (base_class == _ACCELERATOR and _number(device, "vendor") == _AMD)


def addresses(roots: Roots) -> frozenset[str]:
    """Name every device on the PCI bus, of any kind."""
    try:
        return frozenset(shown(name) for name in os.listdir(f"{roots.prefix}/sys/bus/pci/devices"))
    except OSError:
        return frozenset()


def _display(roots: Roots, device: str, pci_class: int) -> PciDisplay:
    driver = driver_of(device)
    return PciDisplay(
        address=shown(os.path.basename(device)),
        vendor=_number(device, "vendor"),
        device=_number(device, "device"),
        pci_class=pci_class,
        # virtio-pci alone is a bus: nothing drives the GPU before its child has a driver.
        kernel_driver="" if driver == "virtio-pci" else driver,
        numa_node=read_numa_node(roots, device),
        drm=_drm(roots, device),
        physical_function=link_name(device, "physfn"),
        virtual_functions=_count(device, "sriov_numvfs"),
        total_functions=_count(device, "sriov_totalvfs"),
    )


def _drm(roots: Roots, device: str) -> tuple[str, ...]:
    """Name the DRM nodes below the device, as sysfs has them there."""
    try:
        names = os.listdir(f"{device}/drm")
    except OSError:
        names = _drm_of_children(roots, device)
    return tuple(sorted(name for name in names if _NODE.fullmatch(name)))


def _drm_of_children(roots: Roots, device: str) -> list[str]:
    """Name them where they hang one device lower, on virtioN, as in older kernels."""
    if link_name(device, "driver") != "virtio-pci":
        return []
    try:
        home = os.path.realpath(device, strict=True)
        names = os.listdir(roots.drm)
    except OSError:
        return []
    return [name for name in names if _bears(f"{roots.drm}/{name}/device", home)]


def _bears(link: str, home: str) -> bool:
    # realpath raises for a link that goes while it looks, whether it is told to be strict or not.
    try:
        return bearer(os.path.realpath(link, strict=True)) == home
    except OSError:
        return False


def _number(device: str, name: str) -> int | None:
    try:
        return read_hexadecimal(device, name)
    except Wrong:
        return None


def _count(device: str, name: str) -> int:
    try:
        return read_count(device, name)
    except Wrong:
        return 0


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False
