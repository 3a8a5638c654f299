"""The small text files and the links of sysfs: read with care, for sysfs can lie or change meanwhile.

Nothing but a regular file is ever opened.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from glob import glob
from typing import TYPE_CHECKING, Final

from gpuplug.model import RefusalCode

if TYPE_CHECKING:
    from gpuplug.settings import Settings

GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})
"""The errors that say that something is not there (any more)."""

_RANGE: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_ATTRIBUTE_LIMIT: Final = 4096
"""Bytes of a sysfs attribute: the kernel gives it one page."""


class Wrong(Exception):  # noqa: N818 - not an error of ours: it ends as a reason in words
    """Something about one GPU is not as sysfs should have it."""

    def __init__(self, reason: str, code: RefusalCode = RefusalCode.SYSFS_WRONG) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the machine is: ``/sys`` and ``/dev``, below a prefix if there is one."""

    prefix: str = ""
    node_prefix: str | None = None
    """What the kubelet knows the prefix as; ``None`` where it is the same for both."""

    @classmethod
    def of(cls, settings: Settings) -> Roots:
        """Return the roots that the operator chose."""
        told = settings.node_root
        return cls(settings.prefix, told.rstrip("/") if told else None)

    def on_node(self, path: str) -> str:
        """Return what the kubelet calls a path of the machine, such as ``/dev/dri/card0``."""
        return f"{self.prefix if self.node_prefix is None else self.node_prefix}{path}"

    @property
    def drm(self) -> str:
        """The class folder with one link per DRM minor and connector."""
        return f"{self.prefix}/sys/class/drm"

    @property
    def dri(self) -> str:
        """The folder with the nodes; the kernel removes it with the last one."""
        return f"{self.prefix}/dev/dri"


def bearer(device: str) -> str:
    """Return the device that gives the GPU its address.

    virtioN is numbered by order of appearance; the PCI device above it has the lasting name.
    """
    return os.path.dirname(device) if link_name(device, "subsystem") == "virtio" else device


def driver_of(device: str) -> str:
    """Name the kernel driver bound to the device; below virtio-pci it is the child's that counts."""
    driver = link_name(device, "driver")
    if driver == "virtio-pci":
        for child in sorted(glob("virtio[0-9]*", root_dir=device)):
            return link_name(f"{device}/{child}", "driver") or driver
    return driver


def link_name(device: str, name: str) -> str:
    """Return the last part of a sysfs link; empty where there is no such link."""
    try:
        return shown(os.path.basename(os.readlink(f"{device}/{name}")))
    except OSError:
        return ""


def shown(name: str) -> str:
    """Return a file's name as text that can be printed and sent, whatever bytes it is made of."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def read_text(path: str) -> str | None:
    """Read a small text file; ``None`` if it is not there.

    :raises Wrong: if it cannot be read, or is not one page of text.
    """
    try:
        # Nothing but a file is opened: a FIFO in the place of an attribute must not hold the
        # scan, nor a link lead it to a GPU node; the flags are for what changes in between.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise Wrong(f"{path} is not a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise Wrong(f"{path} cannot be read: {error.strerror}", RefusalCode.UNREADABLE) from error
    try:
        data = os.read(descriptor, _ATTRIBUTE_LIMIT + 1)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise Wrong(f"{path} cannot be read: {error.strerror}", RefusalCode.UNREADABLE) from error
    finally:
        os.close(descriptor)
    if len(data) > _ATTRIBUTE_LIMIT:
        raise Wrong(f"{path} is larger than a sysfs attribute")
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise Wrong(f"{path} is not text") from None


def read_hexadecimal(device: str, name: str) -> int | None:
    """Read an id in the form that PCI ids have in sysfs (``0x8086``); ``None`` if it is not there."""
    text = read_text(f"{device}/{name}")
    if text is None:
        return None
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text):
        raise Wrong(f"sysfs gives {text[:20]!r} as its {name}")
    return int(text, 16)


def read_count(device: str, name: str) -> int:
    """Read a number of things; 0 where the device has no such attribute."""
    text = read_text(f"{device}/{name}")
    if text is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        raise Wrong(f"sysfs gives {text[:20]!r} as its {name}")
    return int(text)


def read_numa_node(roots: Roots, device: str) -> int | None:
    """Return the NUMA node, if the kernel names one that is online.

    Only a hint for placement: where it is missing, -1 or unreadable the GPU is offered without it.
    """
    try:
        text = read_text(f"{device}/numa_node") or ""
        online = read_text(f"{roots.prefix}/sys/devices/system/node/online")
    except Wrong:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        return None
    node = int(text)
    return node if online is None or _in_list(node, online) else None


def _in_list(number: int, text: str) -> bool:
    """Tell whether a kernel list (``0-1,3``) has the number."""
    ranges = (_RANGE.fullmatch(part) for part in text.split(","))
    return any(int(r[1]) <= number <= int(r[2] or r[1]) for r in ranges if r)
