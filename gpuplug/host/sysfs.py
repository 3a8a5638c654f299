"""Read GPUs from sysfs and devfs: listing, ``stat`` and small text files, and nothing else.

A GPU node is never opened: what is known of it comes from ``stat``. Sources: the kernel's
``Documentation/ABI/testing/sysfs-bus-pci`` and ``sysfs-class`` layouts, and drm(7).

sysfs can lie, or change while it is read; whatever is wrong with one GPU costs that GPU
alone, and becomes a reason in words.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from dataclasses import replace
from glob import glob
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuplug.host.attributes import (
    GONE,
    Roots,
    Wrong,
    bearer,
    driver_of,
    link_name,
    read_count,
    read_hexadecimal,
    read_numa_node,
    read_text,
    shown,
)
from gpuplug.model import CompanionNode, DrmNode, Gpu, RefusalCode, Rejected, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["SETTLING", "Roots", "look", "scan"]

SETTLING: Final = 0.03
"""Seconds that a GPU's newest node must be old before the GPU counts as settled.

The card node follows the render node after 1 to 6 ms.
"""

_NODE: Final = re.compile(r"(card|renderD)[0-9]+", re.ASCII)
_NUMBERS: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_GLOB_LIMIT: Final = 256


def scan(
    roots: Roots,
    attributes: Iterable[str] = (),
    companions: Iterable[str] = (),
    *,
    now: float | None = None,
) -> Snapshot:
    """See every GPU of the machine.

    :param attributes: sysfs paths or globs, below the bus device or from /sys on, to read into
        ``Gpu.attributes``.
    :param companions: paths of nodes outside /dev/dri, to look up for ``Gpu.companions``.
    :param now: seconds since the epoch; nodes younger than ``SETTLING`` make a GPU fresh.
    """
    now = time.time() if now is None else now
    wanted = sorted(set(attributes))
    own = [path for path in wanted if not path.startswith("/")]
    shared = _attributes(roots.prefix, [path for path in wanted if path.startswith("/")])
    beside = _companions(roots, companions)
    gpus: list[Gpu] = []
    rejected: list[Rejected] = []
    fresh: dict[str, float] = {}
    devices = sorted(
        (shown(os.path.basename(bearer(device))), device, names)
        for device, names in _by_device(roots, rejected).items()
    )
    bearers = Counter(address for address, _, _ in devices)
    for address, device, names in devices:
        if bearers[address] > 1:  # their Device ids would be the same
            continue
        try:
            gpu, changed = _gpu(roots, device, names, own)
        except Wrong as error:
            rejected.append(Rejected(address, str(error), error.code))
            continue
        if 0 <= now - changed < SETTLING:  # a node "from the future" means that the clock was set
            fresh[address] = changed + SETTLING - now
        if gpu.nodes:
            attributes = MappingProxyType({**gpu.attributes, **shared}) if shared else gpu.attributes
            gpus.append(replace(gpu, attributes=attributes, companions=beside) if shared or beside else gpu)
        elif gpu.missing:
            reason = f"none of its nodes is in /dev/dri: {', '.join(gpu.missing)}"
            rejected.append(Rejected(address, reason, RefusalCode.NODES_MISSING))
    rejected += [
        Rejected(address, f"{count} bus devices have this name", RefusalCode.SAME_NAME)
        for address, count in bearers.items()
        if count > 1
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
        kernel_driver = driver_of(device)
        nodes, missing, _ = _nodes(roots, f"{device}/drm", names)
    except (OSError, Wrong):
        return _look_everywhere(roots, gpu)
    if kernel_driver != gpu.kernel_driver or not nodes:
        return _look_everywhere(roots, gpu)
    return replace(gpu, nodes=nodes, missing=missing, companions=_companions(roots, gpu.companions))


def _look_everywhere(roots: Roots, gpu: Gpu) -> Gpu | None:
    """Find the GPU by a full scan: its DRM devices hang lower than the bus device (virtio)."""
    for seen in scan(roots).gpus:
        if seen.address == gpu.address and seen.kernel_driver == gpu.kernel_driver:
            beside = _companions(roots, gpu.companions)
            return replace(gpu, nodes=seen.nodes, missing=seen.missing, companions=beside)
    return None


def _companions(roots: Roots, paths: Iterable[str]) -> Mapping[str, CompanionNode]:
    """Look up those of the nodes that are there, and are character devices."""
    found: dict[str, CompanionNode] = {}
    for path in sorted(set(paths)):
        try:
            node = os.stat(f"{roots.prefix}{path}")
        except OSError:
            continue
        if stat.S_ISCHR(node.st_mode):
            major, minor = os.major(node.st_rdev), os.minor(node.st_rdev)
            found[path] = CompanionNode(path, roots.on_node(path), major, minor)
    return MappingProxyType(found)


def _by_device(roots: Roots, rejected: list[Rejected]) -> dict[str, list[str]]:
    """Pair the DRM minors by the bus device that they hang on; the names alone say nothing."""
    try:
        names = sorted(name for name in os.listdir(roots.drm) if _NODE.fullmatch(name))
    except OSError as error:
        if error.errno not in GONE:
            reason = f"it cannot be listed: {error.strerror}"
            rejected.append(Rejected(roots.drm, reason, RefusalCode.UNREADABLE))
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
    home = bearer(device)
    address = os.path.basename(home)
    if address != shown(address):
        raise Wrong("its name is not text")
    bus = link_name(home, "subsystem")
    pci = bus == "pci"  # elsewhere files of these names may be anything
    return Gpu(
        address=address,
        bus=bus,
        kernel_driver=driver_of(device),
        nodes=nodes,
        missing=missing,
        vendor=read_hexadecimal(home, "vendor") if pci else None,
        device=read_hexadecimal(home, "device") if pci else None,
        pci_class=read_hexadecimal(home, "class") if pci else None,
        numa_node=read_numa_node(roots, home),
        virtual_functions=read_count(home, "sriov_numvfs") if pci else 0,
        attributes=MappingProxyType(_attributes(home, wanted)),
    ), changed


def _nodes(
    roots: Roots, folder: str, names: Sequence[str]
) -> tuple[tuple[DrmNode, ...], tuple[str, ...], float]:
    """Return the nodes present, the names of those missing, and the newest change in devfs."""
    nodes: list[DrmNode] = []
    missing: list[str] = []
    changed = 0.0
    for name in names:
        text = read_text(f"{folder}/{name}/dev")
        if text is None:
            if os.path.lexists(f"{folder}/{name}"):
                raise Wrong(f"{name}: sysfs gives no device number")
            continue  # gone between the listing and now
        numbers = _NUMBERS.fullmatch(text)
        if numbers is None:
            raise Wrong(f"{name}: sysfs gives {text[:20]!r} as its device number")
        major, minor = int(numbers[1]), int(numbers[2])
        path = f"{roots.dri}/{name}"
        try:
            link, node = os.lstat(path), os.stat(path)
        except OSError as error:
            if error.errno not in GONE:
                raise Wrong(f"{path} cannot be examined: {error.strerror}", RefusalCode.UNREADABLE) from error
            missing.append(name)
            continue
        if not stat.S_ISCHR(node.st_mode):
            reason = f"{path} is {_kind(node.st_mode)}, not a character device"
            raise Wrong(reason, RefusalCode.NODE_MISMATCH)
        actual = os.major(node.st_rdev), os.minor(node.st_rdev)
        if actual != (major, minor):
            reason = f"{path} is device {actual[0]}:{actual[1]}, and sysfs says {major}:{minor}"
            raise Wrong(reason, RefusalCode.NODE_MISMATCH)
        changed = max(changed, link.st_ctime)
        inside = f"/dev/dri/{name}"
        nodes.append(DrmNode(name, inside, roots.on_node(inside), major, minor))
    return tuple(nodes), tuple(missing), changed


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISREG, "a regular file"), (stat.S_ISDIR, "a folder"), (stat.S_ISBLK, "a block device"))
    return next((name for test, name in kinds if test(mode)), "a file of another kind")


def _attributes(folder: str, wanted: Sequence[str]) -> dict[str, str]:
    """Read what drivers asked for, below a device or from the prefix on; what cannot be read is left out."""
    found: dict[str, str] = {}
    for pattern in wanted:
        lead = "/" if pattern.startswith("/") else ""
        path = pattern.lstrip("/")
        paths = sorted(glob(path, root_dir=f"{folder}/"))[:_GLOB_LIMIT] if _has_wildcard(path) else [path]
        for each in paths:
            try:
                text = read_text(f"{folder}/{each}")
            except Wrong:
                continue
            if text is not None:
                found[lead + each] = text
    return found


def _has_wildcard(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")
