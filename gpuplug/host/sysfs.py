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
from dataclasses import dataclass, replace
from glob import glob
from itertools import pairwise
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
    for device, names in sorted(_by_device(roots, rejected).items()):
        address = os.path.basename(device)
        try:
            gpu, changed = _gpu(roots, device, names, wanted)
        except _Wrong as error:
            rejected.append(Rejected(address, str(error)))
            continue
        if 0 <= now - changed < SETTLING:  # a node "from the future" means that the clock was set
            fresh[gpu.address] = changed + SETTLING - now
        if gpu.nodes:
            gpus.append(gpu)
        elif gpu.missing:
            reason = f"none of its nodes is in /dev/dri: {', '.join(gpu.missing)}"
            rejected.append(Rejected(gpu.address, reason))
    gpus.sort(key=lambda g: g.address)
    _refuse_twins(gpus, rejected)
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
    except OSError:
        return {}
    found: dict[str, list[str]] = {}
    for name in names:
        try:
            device = os.path.realpath(f"{roots.drm}/{name}/device", strict=True)
        except OSError as error:
            if os.path.exists(f"{roots.drm}/{name}") or error.errno == errno.ELOOP:
                rejected.append(Rejected(name, f"its sysfs device link cannot be followed: {error.strerror}"))
            continue
        found.setdefault(device, []).append(name)
    return found


def _refuse_twins(gpus: list[Gpu], rejected: list[Rejected]) -> None:
    """Leave out GPUs whose address is not unique: their Device ids would be the same."""
    for one, other in [(a, b) for a, b in pairwise(gpus) if a.address == b.address]:
        for gpu in (one, other):
            if gpu in gpus:
                gpus.remove(gpu)
        rejected.append(Rejected(one.address, "two bus devices have this name"))


def _gpu(roots: Roots, device: str, names: Sequence[str], wanted: Sequence[str]) -> tuple[Gpu, float]:
    """Read one GPU from scratch; return it and the time of its newest node."""
    nodes, missing, changed = _nodes(roots, roots.drm, names)
    bus = _link(device, "subsystem")
    kernel_driver = _kernel_driver(device)
    if bus == "virtio":
        # virtioN is numbered by order of appearance; the PCI device above it has the lasting name.
        device = os.path.dirname(device)
        bus = _link(device, "subsystem")
    return Gpu(
        address=os.path.basename(device),
        bus=bus,
        kernel_driver=kernel_driver,
        nodes=nodes,
        missing=missing,
        vendor=_hexadecimal(device, "vendor"),
        device=_hexadecimal(device, "device"),
        pci_class=_hexadecimal(device, "class"),
        numa_node=_numa_node(roots, device),
        attributes=_attributes(device, wanted),
    ), changed


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
        if text is None:  # gone between the listing and now
            continue
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
        return os.path.basename(os.readlink(f"{device}/{name}"))
    except OSError:
        return ""


def _read(path: str) -> str | None:
    """Read a small text file; ``None`` if it is not there.

    :raises _Wrong: if it cannot be read, or is not one page of text.
    """
    try:
        # A FIFO in the place of an attribute must not hold the scan, nor a link lead it to a GPU node.
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
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()) and int(first) <= number <= int(last or first):
            return True
    return False


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
