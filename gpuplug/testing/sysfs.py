"""The contents of the sysfs files of a made-up machine, as the kernel words them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONNECTOR_FILES: Final[Mapping[str, str]] = {
    "status": "disconnected\n",
    "enabled": "disabled\n",
    "dpms": "Off\n",
    "modes": "",
    "edid": "",
    "uevent": "DEVTYPE=drm_connector\n",
}
"""A display connector with nothing plugged in."""

_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")


def check_pci_address(address: str) -> None:
    """Raise ``ValueError`` for what cannot be the sysfs name of a PCI function."""
    if not _PCI_ADDRESS.fullmatch(address):
        raise ValueError(f"{address!r} is not a PCI address such as 0000:03:00.0")


def pci_files(
    address: str, vendor: int, device: int, pci_class: int, numa_node: int | None
) -> dict[str, str]:
    """Return the files of a PCI function (the kernel's drivers/pci/pci-sysfs.c)."""
    base, sub, interface = pci_class >> 16, pci_class >> 8 & 0xFF, pci_class & 0xFF
    alias = f"pci:v{vendor:08X}d{device:08X}sv{vendor:08X}sd00000000bc{base:02X}sc{sub:02X}i{interface:02X}"
    uevent = (
        f"PCI_CLASS={pci_class:X}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SUBSYS_ID={vendor:04X}:0000\n"
        f"PCI_SLOT_NAME={address}\nMODALIAS={alias}\n"
    )
    return {
        "vendor": f"0x{vendor:04x}\n",
        "device": f"0x{device:04x}\n",
        "class": f"0x{pci_class:06x}\n",
        "subsystem_vendor": f"0x{vendor:04x}\n",
        "subsystem_device": "0x0000\n",
        "revision": "0x08\n",
        "numa_node": f"{-1 if numa_node is None else numa_node}\n",
        "enable": "1\n",
        "power_state": "D0\n",
        "driver_override": "(null)\n",
        "modalias": f"{alias}\n",
        "uevent": uevent,
    }


def other_files(bus: str, name: str, numa_node: int | None) -> dict[str, str]:
    """Return the files of a device off the PCI bus: no ids; a NUMA node only where one is known."""
    alias = f"{bus}:{name}"
    files = {"modalias": f"{alias}\n", "driver_override": "(null)\n", "uevent": f"MODALIAS={alias}\n"}
    if numa_node is not None:
        files["numa_node"] = f"{numa_node}\n"
    return files


def node_files(name: str, major: int, minor: int) -> dict[str, str]:
    """Return the files of a DRM node."""
    uevent = f"MAJOR={major}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor\n"
    return {"dev": f"{major}:{minor}\n", "uevent": uevent}


def state_driver(uevent: Path, driver: str | None) -> None:
    """Rewrite a bus device's ``uevent`` for the driver that it has now; a missing file is left so."""
    try:
        lines = uevent.read_text().splitlines(keepends=True)
    except (OSError, ValueError):
        return  # a test has taken it away or made it unreadable
    kept = [line for line in lines if not line.startswith("DRIVER=")]
    uevent.write_text("".join(([f"DRIVER={driver}\n"] if driver else []) + kept))
