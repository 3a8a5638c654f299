"""A sysfs and a devfs that lie: what a scan must survive.

``break_node`` tells one lie about one node of a ``Machine``. The ``put_*`` functions
replace any path, so any attribute can be made to lie with them::

    break_node(machine, "card0", Lie.WRONG_NUMBERS)
    put_huge(machine.device("0000:03:00.0") / "vendor")
    put_file(machine.dri)  # where the folder was
"""

from __future__ import annotations

import os
import shutil
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gpuplug.testing.machine import Machine

HUGE: Final = 1 << 30
"""Bytes of a huge file; it is sparse, so it takes no space."""


class Lie(StrEnum):
    """What may be wrong with one DRM node."""

    NODE_MISSING = "the node is not in devfs"
    NODE_IS_FILE = "the node is a regular file"
    NODE_IS_FOLDER = "the node is a folder"
    NODE_IS_FIFO = "the node is a FIFO, which blocks who opens it"
    NODE_DANGLES = "the node is a link to nothing"
    NODE_CIRCLES = "the node is a link to itself"
    WRONG_NUMBERS = "the node has other numbers than sysfs states"
    DEV_MISSING = "sysfs has no dev file"
    DEV_EMPTY = "the dev file is empty"
    DEV_GARBAGE = "the dev file has words in it"
    DEV_BINARY = "the dev file is binary"
    DEV_NEGATIVE = "the dev file states negative numbers"
    DEV_TOO_LARGE = "the dev file states numbers that no device can have"
    DEV_HUGE = "the dev file is huge"
    DEV_UNREADABLE = "the dev file cannot be read"
    DEV_IS_FOLDER = "the dev file is a folder"
    DEV_CIRCLES = "the dev file is a link to itself"
    DEVICE_MISSING = "sysfs has no device link"
    DEVICE_IS_FILE = "the device link is a file"
    DEVICE_DANGLES = "the device link leads to nothing"
    DEVICE_CIRCLES = "the device link leads to itself"
    CLASS_DANGLES = "the node's sysfs has gone, the class link has not"
    CLASS_IS_FILE = "the class link is a file"


def break_node(machine: Machine, name: str, lie: Lie) -> None:
    """Tell a lie about a node; raise ``LookupError`` where sysfs has no such node."""
    sysfs = machine.node_sysfs(name)
    node = machine.dri / name
    if lie is Lie.NODE_MISSING:
        machine.devfs.remove(name)
    elif lie is Lie.WRONG_NUMBERS:
        remove(node)
        machine.devfs.make_other(name)
    elif lie is Lie.CLASS_DANGLES:
        shutil.rmtree(sysfs)
    elif lie is Lie.CLASS_IS_FILE:
        put_file(machine.sys / "class/drm" / name)
    else:
        folder = {"NODE": node, "DEV": sysfs / "dev", "DEVICE": sysfs / "device"}
        _SIMPLE[lie](folder[lie.name.partition("_")[0]])


def put_file(path: Path, content: bytes = b"") -> None:
    """Put a regular file in place of whatever is there."""
    remove(path)
    path.write_bytes(content)


def put_folder(path: Path) -> None:
    """Put an empty folder in place of whatever is there."""
    remove(path)
    path.mkdir()


def put_fifo(path: Path) -> None:
    """Put a FIFO in place of whatever is there."""
    remove(path)
    os.mkfifo(path)


def put_dangling(path: Path) -> None:
    """Put a link to nothing in place of whatever is there."""
    remove(path)
    path.symlink_to("nowhere")


def put_circle(path: Path) -> None:
    """Put a link to itself in place of whatever is there."""
    remove(path)
    path.symlink_to(path.name)


def put_huge(path: Path) -> None:
    """Put a file of ``HUGE`` zero bytes in place of whatever is there."""
    put_file(path)
    os.truncate(path, HUGE)


def put_unreadable(path: Path) -> None:
    """Put a file that nobody can read in place of whatever is there: EACCES, for root EIO.

    A mode of 0 does not keep root out. For root it is a link to the reader's own memory, of
    which the first page is mapped nowhere; who does not follow links gets ELOOP from it.
    """
    if os.geteuid() != 0:
        put_file(path)
        path.chmod(0)
        return
    remove(path)
    path.symlink_to("/proc/self/mem")


def remove(path: Path) -> None:
    """Remove whatever is there, if anything."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _text(content: bytes) -> Callable[[Path], None]:
    return lambda path: put_file(path, content)


_SIMPLE: Final[Mapping[Lie, Callable[[Path], None]]] = {
    Lie.NODE_IS_FILE: put_file,
    Lie.NODE_IS_FOLDER: put_folder,
    Lie.NODE_IS_FIFO: put_fifo,
    Lie.NODE_DANGLES: put_dangling,
    Lie.NODE_CIRCLES: put_circle,
    Lie.DEV_MISSING: remove,
    Lie.DEV_EMPTY: put_file,
    Lie.DEV_GARBAGE: _text(b"two hundred and twenty-six\n"),
    Lie.DEV_BINARY: _text(bytes(range(256))),
    Lie.DEV_NEGATIVE: _text(b"-226:-128\n"),
    Lie.DEV_TOO_LARGE: _text(b"226:99999999999999999999\n"),
    Lie.DEV_HUGE: put_huge,
    Lie.DEV_UNREADABLE: put_unreadable,
    Lie.DEV_IS_FOLDER: put_folder,
    Lie.DEV_CIRCLES: put_circle,
    Lie.DEVICE_MISSING: remove,
    Lie.DEVICE_IS_FILE: put_file,
    Lie.DEVICE_DANGLES: put_dangling,
    Lie.DEVICE_CIRCLES: put_circle,
}
