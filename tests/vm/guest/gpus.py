"""Plugs GPUs in and pulls them out, binds and unbinds their drivers, and tells what is there."""

import os
import subprocess
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anyio import to_thread

from .qmp import Qmp
from .slots import Slot
from .waiting import until

DRI: Final = Path("/dev/dri")
QEMU_DEVICES: Final = {
    "i915": "pci-testdev",
    "xe": "edu",
    "amdgpu": "pvpanic-pci",
    "foogpu": "sdhci-pci",
}
"""The device of QEMU that each kernel driver of our module binds to by itself."""
_PCI: Final = Path("/sys/bus/pci")
_PARAMETERS: Final = Path("/sys/module/gpustub/parameters")
_PCIEHP: Final = Path("/sys/bus/pci_express/drivers/pciehp")
_FIRST_PORT: Final = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A DRM node that a GPU has, by sysfs."""

    name: str
    number: str
    """major:minor"""

    @property
    def path(self) -> Path:
        """Where devfs has it."""
        return DRI / self.name


class Gpus:
    """The GPUs of this machine; slots are numbered from 0. What it starts, `remove_all` ends."""

    def __init__(self) -> None:
        self.qmp: Final = Qmp()
        self._plugged: set[int] = set()
        subprocess.run(["modprobe", "drm"], check=True)
        self.load()

    def load(self) -> None:
        """Load our module: its drivers bind to all that they know at once."""
        if not _PARAMETERS.exists():
            subprocess.run(["insmod", os.environ["GPUPLUG_VM_STUB"]], check=True)

    def unload(self) -> None:
        """Unload our module, and all its GPUs go at once."""
        subprocess.run(["rmmod", "gpustub"], check=True)

    def address(self, slot: int) -> str:
        """Return the bus address that whatever is plugged in there has."""
        return f"0000:{int((_port(slot) / 'secondary_bus_number').read_text()):02x}:00.0"

    async def plug(self, slot: int, kind: str = "i915") -> str:
        """Plug a GPU in, as far as the machine's other side goes; the kernel takes it from there."""
        device = QEMU_DEVICES.get(kind, kind)
        await to_thread.run_sync(
            lambda: self.qmp.execute("device_add", driver=device, id=f"gpu{slot}", bus=f"port{slot}")
        )
        self._plugged.add(slot)
        return self.address(slot)

    async def unplug(self, slot: int) -> None:
        """Ask for a GPU's end and wait until the kernel has let go of it."""
        await self.there(self.address(slot))

        def ask() -> None:
            self.qmp.execute("device_del", id=f"gpu{slot}")
            self.qmp.wait_for("DEVICE_DELETED", device=f"gpu{slot}")

        await to_thread.run_sync(ask)
        self._plugged.discard(slot)

    async def tear_out(self, *slots: int) -> None:
        """Have GPUs be gone without asking; wait until the kernel has noticed and left their slots.

        Only where the kernel's own PCIe hotplug is in charge.
        """
        torn = [Slot(_port(slot)) for slot in slots]
        for slot in torn:
            await until("the kernel to be done with turning the slot on", slot.lit)
        for slot in torn:
            slot.empty()
        for slot in torn:
            await until("the kernel to turn the empty slot off", slot.dark)
        self._plugged.difference_update(slots)

    async def bind(self, address: str, driver: str) -> None:
        """Bind a kernel driver to a device."""
        await _write(_PCI / "drivers" / driver / "bind", address)

    async def unbind(self, address: str) -> None:
        """Take a device's kernel driver away; its nodes go at once, whoever uses them."""
        await _write(_PCI / "devices" / address / "driver/unbind", address)

    async def rebind(self, address: str, driver: str) -> None:
        """Give a device another kernel driver than the one that knows it by itself."""
        await _write(_PCI / "devices" / address / "driver_override", driver)
        await self.unbind(address)
        await _write(_PCI / "drivers_probe", address)

    async def there(self, address: str) -> None:
        """Wait until the kernel has met a device."""
        await until(f"{address} to be there", (_PCI / "devices" / address / "driver_override").exists)

    async def bound(self, address: str, driver: str) -> None:
        """Wait until a kernel driver is bound to a device and has made its nodes."""

        def made() -> bool:  # sysfs tells of a node a moment before devtmpfs has made it
            nodes = self.nodes(address).values()
            return bool(nodes) and all(node.path.exists() for node in nodes)

        await until(f"{address} on {driver}", lambda: self.driver(address) == driver and made())

    def driver(self, address: str) -> str:
        """Name the kernel driver that is bound; empty for none."""
        try:
            return (_PCI / "devices" / address / "driver").readlink().name
        except FileNotFoundError:
            return ""

    def nodes(self, address: str) -> dict[str, Node]:
        """Return a GPU's nodes as sysfs has them, by `card` and `renderD`."""
        found = {}
        for path in (_PCI / "devices" / address).glob("drm/[cr]*[0-9]/dev"):
            if path.parent.name.startswith("controlD"):
                continue  # an old name that some kernels keep as a link to the card
            with suppress(OSError):  # on its way out
                node = Node(path.parent.name, path.read_text().strip())
                found[node.name.rstrip("0123456789")] = node
        return found

    def behave(self, **parameters: int) -> None:
        """Tell our module how probes are to go from now on."""
        for name, value in parameters.items():
            (_PARAMETERS / name).write_text(str(value))

    async def remove_all(self) -> None:
        """Pull everything out and have probes go well again."""
        self.load()
        for path in _PARAMETERS.iterdir():
            path.write_text("0")
        if any(_PCIEHP.glob("0000:*")):
            await self.tear_out(*self._plugged)
        for slot in sorted(self._plugged):
            await self.unplug(slot)
        await until("/dev/dri to go with the last node", lambda: not DRI.exists())


def listed(folder: Path = DRI) -> Collection[str]:
    """Name what is in a folder, if it is there."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []


def _port(slot: int) -> Path:
    return _PCI / f"devices/0000:00:{_FIRST_PORT + slot:02x}.0"


async def _write(path: Path, text: str) -> None:
    """Write to sysfs; the write returns when the kernel has done it, and others go on meanwhile."""
    await to_thread.run_sync(path.write_text, text)
