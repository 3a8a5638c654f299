"""A made-up node in a folder: the sysfs and devfs of a machine with GPUs.

::

    machine = Machine(tmp_path)
    gpu = machine.add_gpu("0000:03:00.0", driver="i915", numa_node=0)
    machine.add_gpu("0000:04:00.0", driver="xe", card=False)  # renders, has no display
    machine.remove_gpu(gpu.address)

All is plain synchronous file operations, and the folder is the only state: a second
``Machine`` on it (in another process, say) goes on where the first one is. The order
of effects and the shape of the files are the kernel's, as of 6.1 to 6.17, with two
liberties: every bus number is a root bus (bridges say nothing about GPUs), and there is
no /sys/dev/char.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from gpuplug.testing import sysfs
from gpuplug.testing.devfs import Devfs, Kind, NodeMode, free_minor, minor_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Number = int | Literal[False] | None
"""The number of a node to make; ``None`` takes the next free one, ``False`` makes no node."""

_ADDRESSES_PER_BUS: Final = 32


@dataclass(frozen=True, slots=True)
class FakeGpu:
    """What ``Machine`` made of one GPU: a record of that moment."""

    address: str
    """The sysfs name of the bus device."""
    card: str | None
    """``card0``; ``None`` where there is no such node."""
    render: str | None
    """``renderD128``; ``None`` where there is no such node."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes, sorted."""
        return tuple(name for name in (self.card, self.render) if name is not None)


class Machine:
    """A folder with ``sys`` and ``dev`` in it that look like those of a node with GPUs."""

    def __init__(self, root: Path, *, nodes: NodeMode = "auto") -> None:
        """Make the folder a machine with DRM loaded and no GPU, or take up the one that it is.

        ``nodes`` says how device nodes are made (see ``gpuplug.testing.devfs``); raises
        ``PermissionError`` where ``mknod`` is forced and not allowed.
        """
        self.root: Final = root
        self.sys: Final = root / "sys"
        self.dev: Final = root / "dev"
        self._class: Final = self.sys / "class/drm"
        self._class.mkdir(parents=True, exist_ok=True)
        (self._class / "version").write_text("drm 1.1.0 20060810\n")
        self.dev.mkdir(exist_ok=True)
        self.devfs: Final = Devfs(self.dev, nodes)
        self.dri: Final = self.devfs.dri

    # GPUs

    def add_gpu(  # noqa: PLR0913 - a GPU has that many properties, all with a default
        self,
        address: str = "0000:03:00.0",
        *,
        driver: str | None = "i915",
        vendor: int = 0x8086,
        device: int = 0x56A0,
        pci_class: int = 0x030000,
        numa_node: int | None = None,
        card: Number = None,
        render: Number = None,
        bus: str = "pci",
        attributes: Mapping[str, str | bytes] | None = None,
    ) -> FakeGpu:
        """Plug a GPU in and bind its driver, in the kernel's order: sysfs, renderD, card.

        ``numa_node=None`` writes -1 on the PCI bus, as the kernel does on a machine of one
        NUMA node. ``driver=None`` leaves the driver link out: on the platform bus that is
        vgem; on PCI pass ``card=False, render=False`` too for a GPU that nothing drives.
        Vendor, device and class exist on the PCI bus only. ``attributes`` are further files
        by path relative to the bus device, there before the first node is.

        Raises ``ValueError`` where the address or a node's number is taken.
        """
        home = self._home(address, bus)
        if home.exists():
            raise ValueError(f"{address} is plugged in already")
        if bus == "pci":
            files = sysfs.pci_files(address, vendor, device, pci_class, numa_node)
        else:
            files = sysfs.other_files(bus, address, numa_node)
        home.mkdir(parents=True)
        _write(home, {**files, **(attributes or {})})
        bus_folder = self.sys / "bus" / bus
        (bus_folder / "devices").mkdir(parents=True, exist_ok=True)
        (bus_folder / "drivers").mkdir(exist_ok=True)
        link(home / "subsystem", bus_folder)
        link(bus_folder / "devices" / address, home)
        return self.bind(address, driver, card=card, render=render)

    def add_gpus(self, count: int, *, driver: str = "i915", numa_nodes: int = 0) -> tuple[FakeGpu, ...]:
        """Plug ``count`` PCI GPUs in, from 0000:03:00.0 upwards, 32 to a bus.

        With ``numa_nodes`` they take turns on so many NUMA nodes. Past 64 GPUs the numbers
        of card and render nodes come from one pool, as in Linux since 6.12: renderD192, card193.
        """
        made = []
        for index in range(count):
            bus, slot = divmod(index, _ADDRESSES_PER_BUS)
            numa_node = index % numa_nodes if numa_nodes else None
            made.append(self.add_gpu(f"0000:{3 + bus:02x}:{slot:02x}.0", driver=driver, numa_node=numa_node))
        return tuple(made)

    def remove_gpu(self, address: str) -> None:
        """Unplug a GPU, in the kernel's order: card, renderD, (/dev/dri with the last one), sysfs.

        Raises ``LookupError`` where no such GPU is plugged in.
        """
        home = self.device(address)
        self.unbind(address)
        children = [entry for entry in home.glob("virtio*") if not entry.is_symlink()]
        for device in (home, *children):
            self._forget_driver(device)
            for entry in (self.sys / "bus").glob(f"*/devices/{device.name}"):
                entry.unlink()
        shutil.rmtree(home)

    def bind(
        self, address: str, driver: str | None, *, card: Number = None, render: Number = None
    ) -> FakeGpu:
        """Bind a driver to a plugged GPU that has none: the link appears, then the nodes.

        Raises ``LookupError`` where no such GPU is plugged in, ``ValueError`` where it has a
        driver or the number of a node is taken.
        """
        home = self.device(address)
        if driver is not None:
            if (home / "driver").is_symlink():
                raise ValueError(f"{address} has a driver already")
            drivers = Path(os.path.realpath(home / "subsystem")) / "drivers" / driver
            drivers.mkdir(parents=True, exist_ok=True)
            sysfs.state_driver(home / "uevent", driver)
            link(home / "driver", drivers)
            link(drivers / address, home)
        render_name = None if render is False else self.add_node(address, "renderD", render)
        card_name = None if card is False else self.add_node(address, "card", card)
        return FakeGpu(address, card_name, render_name)

    def unbind(self, address: str) -> None:
        """Take the driver off a GPU, if it has one: card, renderD, then the driver link go.

        Raises ``LookupError`` where no such GPU is plugged in.
        """
        home = self.device(address)
        names = sorted({*self.nodes_of(address), *self._class_links(address)})
        for name in names:
            self.devfs.remove(name)
        for name in names:
            self.remove_sysfs_node(name)
        shutil.rmtree(home / "drm", ignore_errors=True)
        self._forget_driver(home)

    def rebind(
        self, address: str, driver: str | None, *, card: Number = None, render: Number = None
    ) -> FakeGpu:
        """Take one driver off and bind another (i915 to xe): the nodes go and come back.

        Numbers are the next free ones, so a GPU may come back under another name. Raises as
        ``unbind`` and ``bind`` do.
        """
        self.unbind(address)
        return self.bind(address, driver, card=card, render=render)

    # nodes

    def add_node(self, address: str, kind: Kind, number: int | None = None) -> str:
        """Add one node to a GPU, sysfs first; return its name.

        Raises ``LookupError`` where no such GPU is plugged in, ``ValueError`` where the
        number is taken.
        """
        home = self.device(address)
        if number is None:
            number = self._free_number(kind)
        name = f"{kind}{number}"
        entry = home / "drm" / name
        if entry.exists() or os.path.lexists(self._class / name):
            raise ValueError(f"{name} is taken")
        entry.mkdir(parents=True)
        _write(entry, sysfs.node_files(name, *self.devfs.numbers(number)))
        link(entry / "device", home)
        link(entry / "subsystem", self._class)
        link(self._class / name, entry)
        if kind == "card":
            connector = entry / f"{name}-HDMI-A-1"
            connector.mkdir()
            _write(connector, sysfs.CONNECTOR_FILES)
            link(connector / "device", entry)
            link(connector / "subsystem", self._class)
            link(self._class / connector.name, connector)
        self.devfs.add(name)
        return name

    def remove_node(self, name: str) -> None:
        """Remove one node, devfs first, and its sysfs; what is gone already is no error."""
        self.devfs.remove(name)
        self.remove_sysfs_node(name)

    def add_device(self, name: str) -> None:
        """Make a character device in /dev outside /dev/dri, such as ``kfd``, with no sysfs.

        Raises ``FileExistsError`` where there is one.
        """
        self.devfs.add_other(name)

    def remove_sysfs_node(self, name: str) -> None:
        """Remove the sysfs of a node alone, the class links first."""
        entry = self._class / name
        target = Path(os.path.realpath(entry)) if entry.is_symlink() and entry.exists() else None
        for entry_link in (*self._class.glob(f"{name}-*"), entry):
            entry_link.unlink(missing_ok=True)
        if target is not None:
            shutil.rmtree(target)

    # looking, and lying

    def device(self, address: str) -> Path:
        """Return the folder of a bus device in sysfs; raise ``LookupError`` where there is none."""
        for entry in (self.sys / "bus").glob(f"*/devices/{address}"):
            return Path(os.path.realpath(entry))
        raise LookupError(f"no GPU {address} is plugged in")

    def nodes_of(self, address: str) -> tuple[str, ...]:
        """Return the names of the nodes that sysfs lists for a GPU, sorted: cards come first."""
        drm = self.device(address) / "drm"
        if not drm.is_dir():
            return ()
        return tuple(sorted(entry.name for entry in drm.iterdir() if minor_of(entry.name) is not None))

    def node_sysfs(self, name: str) -> Path:
        """Return the folder of a node in sysfs; raise ``LookupError`` where there is none."""
        entry = self._class / name
        if not entry.exists():
            raise LookupError(f"no node {name} in {self._class}")
        return Path(os.path.realpath(entry))

    def write_attribute(self, address: str, path: str, content: str | bytes) -> None:
        """Write a file below a bus device, byte for byte, in place of what was there."""
        _write(self.device(address), {path: content})

    def remove_attribute(self, address: str, path: str) -> None:
        """Remove a file or link below a bus device; raise ``FileNotFoundError`` without one."""
        (self.device(address) / path).unlink()

    def _home(self, address: str, bus: str) -> Path:
        if bus != "pci":
            return self.sys / "devices" / bus / address
        sysfs.check_pci_address(address)
        return self.sys / "devices" / f"pci{address[:-5]}" / address

    def _forget_driver(self, device: Path) -> None:
        for entry in (self.sys / "bus").glob(f"*/drivers/*/{device.name}"):
            entry.unlink()
        if (device / "driver").is_symlink():
            (device / "driver").unlink()
            sysfs.state_driver(device / "uevent", None)

    def _class_links(self, address: str) -> Iterator[str]:
        """Yield the nodes of a GPU by their class links, which are there even where a lie took the rest."""
        for entry in self._class.iterdir():
            is_node = minor_of(entry.name) is not None and entry.is_symlink()
            if is_node and f"/{address}/drm/" in str(entry.readlink()):
                yield entry.name

    def _free_number(self, kind: Kind) -> int:
        names = (entry.name for entry in self._class.iterdir())
        taken = {minor for name in names if (minor := minor_of(name)) is not None}
        return free_minor(kind, taken)


def _write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def link(path: Path, target: Path) -> None:
    """Link as sysfs does: the target's own name is always spelt out (``../../../0000:03:00.0``)."""
    path.symlink_to(Path(os.path.relpath(target.parent, path.parent)) / target.name)
