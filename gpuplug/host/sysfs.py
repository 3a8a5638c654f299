"""Read GPUs from sysfs and devfs: listing, ``stat`` and small text files, and nothing else.

A GPU node is never opened: what is known of it comes from ``stat``. Sources: the kernel's
``Documentation/ABI/testing/sysfs-bus-pci`` and ``sysfs-class`` layouts, and drm(7).

sysfs can lie, or change while it is read; whatever is wrong with one GPU costs that GPU
alone, and becomes a reason in words.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import Counter
from dataclasses import dataclass, replace
from glob import glob
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuplug.model import DrmNode, Gpu, Rejected, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SETTLING: Final = 0.03
"""Seconds that a GPU's newest node must be old before the GPU counts as settled.

The card node follows the render node after 1 to 6 ms.
"""

_NODE: Final = re.compile(r"(card|renderD)[0-9]+", re.ASCII)
_NUMBERS: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_RANGE: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_ATTRIBUTE_LIMIT: Final = 4096
"""Bytes of a sysfs attribute: the kernel gives it one page."""
_GLOB_LIMIT: Final = 64
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class _Wrong(Exception):  # noqa: N818 - not an error of ours: it ends as a reason in words
    """Something about one GPU is not as sysfs should have it."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the machine is: ``/sys`` and ``/dev``, below a prefix if there is one."""

    prefix: str = ""

    @property
    def drm(self) -> str:
        """The class folder with one link per DRM minor and connector."""
        return f"{self.prefix}/sys/class/drm"

    @property
    def dri(self) -> str:
        """The folder with the nodes; the kernel removes it with the last one."""
        return f"{self.prefix}/dev/dri"


def scan(roots: Roots, attributes: Iterable[str] = (), *, now: float | None = None) -> Snapshot:
    """See every GPU of the machine.

    :param attributes: sysfs paths or globs below the bus device, to read into ``Gpu.attributes``.
    :param now: seconds since the epoch; nodes younger than ``SETTLING`` make a GPU fresh.
    """
    now = time.time() if now is None else now
    wanted = sorted(set(attributes))
    gpus: list[Gpu] = []
    rejected: list[Rejected] = []
    fresh: dict[str, float] = {}
    devices = sorted(
        (_shown(os.path.basename(_home(device))), device, names)
        for device, names in _by_device(roots, rejected).items()
    )
    bearers = Counter(address for address, _, _ in devices)
    for address, device, names in devices:
        if bearers[address] > 1:  # their Device ids would be the same
            continue
        try:
            gpu, changed = _gpu(roots, device, names, wanted)
        except _Wrong as error:
            rejected.append(Rejected(address, str(error)))
            continue
        if 0 <= now - changed < SETTLING:  # a node "from the future" means that the clock was set
            fresh[address] = changed + SETTLING - now
        if gpu.nodes:
            gpus.append(gpu)
        elif gpu.missing:
            reason = f"none of its nodes is in /dev/dri: {', '.join(gpu.missing)}"
            rejected.append(Rejected(address, reason))
    rejected += [
        Rejected(a, f"{count} bus devices have this name") for a, count in bearers.items() if count > 1
    ]
    rejected.sort(key=lambda r: r.address)
    return Snapshot(tuple(gpus), tuple(rejected), frozenset(fresh), max(fresh.values(), default=0.0))


def look(roots: Roots, gpu: Gpu) -> Gpu | None:
    """See one GPU's nodes as they are now, found by its address; ``None`` if it is gone or lies.

    Node numbers are reused, so what an earlier scan saw may be another GPU's by now. What
    cannot change while the kernel driver stays bound is taken from ``gpu``.
    """
    device = f"{roots.prefix}/sys/bus/{gpu.bus}/devices/{gpu.address}"
    try:
        names = sorted(name for name in os.listdir(f"{device}/drm") if _NODE.fullmatch(name))
        kernel_driver = _kernel_driver(device)
        nodes, missing, _ = _nodes(roots, f"{device}/drm", names)
    except (OSError, _Wrong):
        return _look_everywhere(roots, gpu)
    if kernel_driver != gpu.kernel_driver or not nodes:
        return _look_everywhere(roots, gpu)
    return replace(gpu, nodes=nodes, missing=missing)


def _look_everywhere(roots: Roots, gpu: Gpu) -> Gpu | None:
    """Find the GPU by a full scan: its DRM devices hang lower than the bus device (virtio)."""
    for seen in scan(roots).gpus:
        if seen.address == gpu.address and seen.kernel_driver == gpu.kernel_driver:
            return replace(gpu, nodes=seen.nodes, missing=seen.missing)
    return None


def _by_device(roots: Roots, rejected: list[Rejected]) -> dict[str, list[str]]:
    """Pair the DRM minors by the bus device that they hang on; the names alone say nothing."""
    try:
        names = sorted(name for name in os.listdir(roots.drm) if _NODE.fullmatch(name))
    except OSError as error:
        if error.errno not in _GONE:
            rejected.append(Rejected(roots.drm, f"it cannot be listed: {error.strerror}"))
        return {}
    found: dict[str, list[str]] = {}
    for name in names:
        link = f"{roots.drm}/{name}/device"
        try:
            device = os.path.realpath(link, strict=True)
        except OSError as error:
            if os.path.lexists(f"{roots.drm}/{name}"):  # the kernel removes this one first
                rejected.append(Rejected(name, f"its sysfs device link cannot be followed: {error.strerror}"))
            continue
        if os.path.islink(link) and os.path.isdir(device):
            found.setdefault(device, []).append(name)
        else:
            rejected.append(Rejected(name, "its sysfs device is not a link to a folder"))
    return found


def _gpu(roots: Roots, device: str, names: Sequence[str], wanted: Sequence[str]) -> tuple[Gpu, float]:
    """Read one GPU from scratch; return it and the time of its newest node."""
    nodes, missing, changed = _nodes(roots, roots.drm, names)
    home = _home(device)
    address = os.path.basename(home)
    if address != _shown(address):
        raise _Wrong("its name is not text")
    bus = _link(home, "subsystem")
    pci = bus == "pci"  # elsewhere files of these names may be anything
    return Gpu(
        address=address,
        bus=bus,
        kernel_driver=_kernel_driver(device),
        nodes=nodes,
        missing=missing,
        vendor=_hexadecimal(home, "vendor") if pci else None,
        device=_hexadecimal(home, "device") if pci else None,
        pci_class=_hexadecimal(home, "class") if pci else None,
        numa_node=_numa_node(roots, home),
        attributes=MappingProxyType(_attributes(home, wanted)),
    ), changed


def _home(device: str) -> str:
    """Return the device that gives the GPU its address.

    virtioN is numbered by order of appearance; the PCI device above it has the lasting name.
    """
    return os.path.dirname(device) if _link(device, "subsystem") == "virtio" else device


def _kernel_driver(device: str) -> str:
    """Name the module bound to the device; below virtio-pci it is the child's that counts."""
    driver = _link(device, "driver")
    if driver == "virtio-pci":
        for child in sorted(glob("virtio[0-9]*", root_dir=device)):
            return _link(f"{device}/{child}", "driver") or driver
    return driver


def _nodes(
    roots: Roots, folder: str, names: Sequence[str]
) -> tuple[tuple[DrmNode, ...], tuple[str, ...], float]:
    """Return the nodes present, the names of those missing, and the newest change in devfs."""
    nodes: list[DrmNode] = []
    missing: list[str] = []
    changed = 0.0
    for name in names:
        text = _read(f"{folder}/{name}/dev")
        if text is None:
            if os.path.lexists(f"{folder}/{name}"):
                raise _Wrong(f"{name}: sysfs gives no device number")
            continue  # gone between the listing and now
        numbers = _NUMBERS.fullmatch(text)
        if numbers is None:
            raise _Wrong(f"{name}: sysfs gives {text[:20]!r} as its device number")
        major, minor = int(numbers[1]), int(numbers[2])
        path = f"{roots.dri}/{name}"
        try:
            link, node = os.lstat(path), os.stat(path)
        except OSError as error:
            if error.errno not in _GONE:
                raise _Wrong(f"{path} cannot be examined: {error.strerror}") from error
            missing.append(name)
            continue
        if not stat.S_ISCHR(node.st_mode):
            raise _Wrong(f"{path} is {_kind(node.st_mode)}, not a character device")
        actual = os.major(node.st_rdev), os.minor(node.st_rdev)
        if actual != (major, minor):
            raise _Wrong(f"{path} is device {actual[0]}:{actual[1]}, and sysfs says {major}:{minor}")
        changed = max(changed, link.st_ctime)
        nodes.append(DrmNode(name, f"/dev/dri/{name}", path, major, minor))
    return tuple(nodes), tuple(missing), changed


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISREG, "a regular file"), (stat.S_ISDIR, "a folder"), (stat.S_ISBLK, "a block device"))
    return next((name for test, name in kinds if test(mode)), "a file of another kind")


def _link(device: str, name: str) -> str:
    """Return the last part of a sysfs link; empty where there is no such link."""
    try:
        return _shown(os.path.basename(os.readlink(f"{device}/{name}")))
    except OSError:
        return ""


def _shown(name: str) -> str:
    """Return a file's name as text that can be printed and sent, whatever bytes it is made of."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _read(path: str) -> str | None:
    """Read a small text file; ``None`` if it is not there.

    :raises _Wrong: if it cannot be read, or is not one page of text.
    """
    try:
        # Nothing but a file is opened: a FIFO in the place of an attribute must not hold the
        # scan, nor a link lead it to a GPU node; the flags are for what changes in between.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise _Wrong(f"{path} is not a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _Wrong(f"{path} cannot be read: {error.strerror}") from error
    try:
        data = os.read(descriptor, _ATTRIBUTE_LIMIT + 1)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise _Wrong(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > _ATTRIBUTE_LIMIT:
        raise _Wrong(f"{path} is larger than a sysfs attribute")
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise _Wrong(f"{path} is not text") from None


def _hexadecimal(device: str, name: str) -> int | None:
    text = _read(f"{device}/{name}")
    if text is None:
        return None
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text):
        raise _Wrong(f"sysfs gives {text[:20]!r} as its {name}")
    return int(text, 16)


def _numa_node(roots: Roots, device: str) -> int | None:
    """Return the NUMA node, if the kernel names one that is online.

    Only a hint for placement: where it is missing, -1 or unreadable the GPU is offered without it.
    """
    try:
        text = _read(f"{device}/numa_node") or ""
        online = _read(f"{roots.prefix}/sys/devices/system/node/online")
    except _Wrong:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        return None
    node = int(text)
    return node if online is None or _in_list(node, online) else None


def _in_list(number: int, text: str) -> bool:
    """Tell whether a kernel list (``0-1,3``) has the number."""
    ranges = (_RANGE.fullmatch(part) for part in text.split(","))
    return any(int(r[1]) <= number <= int(r[2] or r[1]) for r in ranges if r)


def _attributes(device: str, wanted: Sequence[str]) -> dict[str, str]:
    """Read what drivers asked for; what is absent or unreadable is left out."""
    found: dict[str, str] = {}
    for pattern in wanted:
        paths = sorted(glob(pattern, root_dir=device))[:_GLOB_LIMIT] if _has_wildcard(pattern) else [pattern]
        for path in paths:
            try:
                text = _read(f"{device}/{path}")
            except _Wrong:
                continue
            if text is not None:
                found[path] = text
    return found


def _has_wildcard(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")
