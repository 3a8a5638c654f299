"""The devfs of a made-up machine: real device nodes where allowed, honest stand-ins elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

NodeMode = Literal["auto", "mknod", "links"]
"""How nodes are made; ``auto`` is ``mknod`` where this process may, else ``links``."""

Kind = Literal["card", "renderD"]

DRM_MAJOR: Final = 226
"""The major number of all DRM nodes (the kernel's Documentation/admin-guide/devices.txt)."""

_NODE: Final = re.compile(r"(card|renderD)([0-9]+)")
_FIRST: Final[Mapping[Kind, int]] = {"card": 0, "renderD": 128}
_PER_KIND: Final = 64
_EXTENDED: Final = 192
_MOST_SPARES: Final = 100
_STAND_INS: Final = ("null", "zero", "full", "random", "urandom")
_OPEN_TO_ALL: Final = 0o666


def minor_of(name: str) -> int | None:
    """Return the minor of the DRM node of that name; ``None`` where it is no such name."""
    match = _NODE.fullmatch(name)
    return int(match[2]) if match else None


def free_minor(kind: Kind, taken: Collection[int]) -> int:
    """Return the minor that the kernel would take next (its drm_minor_alloc).

    64 are set aside for each kind, the rest is one pool from 192 upwards (Linux 6.12),
    so the 65th GPU has renderD192 and card193.
    """
    first = _FIRST[kind]
    candidates = itertools.chain(range(first, first + _PER_KIND), itertools.count(_EXTENDED))
    return next(minor for minor in candidates if minor not in taken)


class NodeMaker(Protocol):
    """Makes the device node of a DRM minor."""

    def numbers(self, minor: int) -> tuple[int, int]:
        """Return the major and minor that sysfs must state for the node of this DRM minor."""
        ...

    def make(self, path: Path, minor: int) -> None:
        """Make the node; raise ``OSError`` where that fails."""
        ...


@dataclass(frozen=True, slots=True)
class Mknod:
    """Real character devices 226:N, mode 0666.

    Needs CAP_MKNOD. No driver stands behind the numbers, and a file system mounted
    nodev would refuse an open; both do not matter, as nobody opens them.
    """

    def numbers(self, minor: int) -> tuple[int, int]:
        """Return 226 and the DRM minor."""
        return DRM_MAJOR, minor

    def make(self, path: Path, minor: int) -> None:
        """Make the node, then open its mode to all, as udev does: mknod obeys the umask."""
        os.mknod(path, stat.S_IFCHR | _OPEN_TO_ALL, os.makedev(DRM_MAJOR, minor))
        path.chmod(_OPEN_TO_ALL)


def _real_devices() -> tuple[tuple[Path, int, int], ...]:
    found = []
    for name in _STAND_INS:
        path = Path("/dev", name)
        try:
            status = path.stat()
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            found.append((path, os.major(status.st_rdev), os.minor(status.st_rdev)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Links:
    """Links to real character devices, for those who may not mknod.

    gpuplug counts a DRM node when devfs has *a character device with the major and
    minor that sysfs states*. A regular file would need that check to be weakened or
    patched. So the stand-in goes the other way round: the node is a link to a device
    that every machine has (/dev/null is 1:3, /dev/zero 1:5, /dev/full 1:7, /dev/random
    1:8, /dev/urandom 1:9), and the made-up sysfs states *that* device's numbers. The
    check then runs as it is, on a real character device, and can fail as on a real
    node. With more nodes than devices, several nodes share one.
    """

    devices: Sequence[tuple[Path, int, int]] = field(default_factory=_real_devices)
    """Path, major and minor of the devices to link to; at least one."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise FileNotFoundError(f"no character device in /dev to link to, of {', '.join(_STAND_INS)}")

    def numbers(self, minor: int) -> tuple[int, int]:
        """Return the numbers of the real device that this DRM minor is linked to."""
        _, major, real_minor = self.devices[minor % len(self.devices)]
        return major, real_minor

    def make(self, path: Path, minor: int) -> None:
        """Make the link."""
        path.symlink_to(self.devices[minor % len(self.devices)][0])


def node_maker(folder: Path, mode: NodeMode) -> NodeMaker:
    """Return the maker for ``mode``; ``auto`` tries mknod in ``folder`` (which must exist).

    Raises ``PermissionError`` where ``mknod`` is forced and not allowed.
    """
    if mode == "links":
        return Links()
    maker = Mknod()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".mknod-") as trial:
        try:
            maker.make(Path(trial, "node"), 0)
        except OSError:
            if mode == "mknod":
                raise
            return Links()
    return maker


class Devfs:
    """A made-up /dev with the folder ``dri`` that comes with the first node and goes with the last."""

    def __init__(self, dev: Path, mode: NodeMode) -> None:
        """Use the folder ``dev``, which must exist; raises as ``node_maker`` does."""
        self.dri: Final = dev / "dri"
        self._maker: Final = node_maker(dev.parent, mode)
        self._spares: Final = dev.parent / ".spares"

    def numbers(self, minor: int) -> tuple[int, int]:
        """Return the major and minor that sysfs must state for this DRM minor."""
        return self._maker.numbers(minor)

    def add(self, name: str) -> None:
        """Make the node ``name``, and /dev/dri itself if this is the first.

        Raises ``FileExistsError`` where the node exists, ``ValueError`` for a name that is
        not a DRM node's.
        """
        minor = minor_of(name)
        if minor is None:
            raise ValueError(f"{name!r} is not the name of a DRM node")
        if not self.dri.is_dir():
            self._make_dri()
        self._maker.make(self.dri / name, minor)

    def add_other(self, name: str) -> None:
        """Make a character device of that name in /dev itself; its numbers mean nothing.

        Raises ``FileExistsError`` where it exists.
        """
        path = self.dri.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._maker.make(path, 0)

    def make_other(self, name: str) -> None:
        """Make a node of that name with other numbers than sysfs states, in a /dev/dri that is there.

        Raises ``FileExistsError`` where the node exists.
        """
        self._maker.make(self.dri / name, (minor_of(name) or 0) + 1)

    def remove(self, name: str) -> None:
        """Remove the node, and /dev/dri itself with the last; a node that is gone is no error.

        /dev/dri stays while anything else is in it. The next one has another inode number,
        as on the kernel's own devtmpfs: where the file system would hand the same number
        out again, a spare folder beside /dev has it in the meantime.
        """
        path = self.dri / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
        if self.dri.is_dir() and not self.dri.is_symlink() and not any(self.dri.iterdir()):
            self._remove_dri()

    def _make_dri(self) -> None:
        self.dri.mkdir()
        while self._spares.exists() and self.dri.stat().st_ino == self._last_inode():
            self.dri.rmdir()
            self._take_inode()
            self.dri.mkdir()
        shutil.rmtree(self._spares, ignore_errors=True)

    def _remove_dri(self) -> None:
        inode = self.dri.stat().st_ino
        self.dri.rmdir()
        self._spares.mkdir()
        (self._spares / f"last-{inode}").touch()
        for _ in range(_MOST_SPARES):
            if self._take_inode() >= inode:  # file systems give the lowest number that is free
                break

    def _take_inode(self) -> int:
        return Path(tempfile.mkdtemp(dir=self._spares)).stat().st_ino

    def _last_inode(self) -> int:
        return int(next(self._spares.glob("last-*")).name.removeprefix("last-"))
