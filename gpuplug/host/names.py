"""What a person wants to read beside the numbers: owners and modes of nodes, names of PCI ids.

Only a command that a person runs needs it. Nodes are examined with ``stat`` and never opened. Names
come from files below ``--prefix``, so they are those of the machine looked at, not those of a container.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gpuplug.host.attributes import Roots
    from gpuplug.model import DrmNode

PCI_IDS: Final = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
"""Where Debian and Fedora keep the names of PCI ids (pci.ids(5)'s format)."""

_TABS: Final = "\t"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may open a node: what ``stat`` says, with names where the machine has them."""

    mode: int
    """``st_mode``, with the file type."""
    uid: int
    gid: int
    user: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class PciName:
    """The names of a PCI vendor and of one of its devices; empty where unknown."""

    vendor: str = ""
    device: str = ""


def access(roots: Roots, nodes: Iterable[DrmNode]) -> dict[str, Access]:
    """Examine nodes; those that are gone are left out. By name of the node."""
    found = {}
    users, groups = _entries(f"{roots.prefix}/etc/passwd"), _entries(f"{roots.prefix}/etc/group")
    for node in nodes:
        try:
            status = os.stat(f"{roots.prefix}{node.path}")
        except OSError:
            continue
        user, group = users.get(status.st_uid, ""), groups.get(status.st_gid, "")
        found[node.name] = Access(status.st_mode, status.st_uid, status.st_gid, user, group)
    return found


def pci_names(
    roots: Roots, wanted: Collection[tuple[int, int]], files: Iterable[str] = PCI_IDS
) -> dict[tuple[int, int], PciName]:
    """Look the names of (vendor, device) up, in the first file that is there; read no further than needed."""
    left = set(wanted)
    found: dict[tuple[int, int], PciName] = {}
    if not left:
        return found
    vendor, vendor_id = "", -1
    for line in _lines(next((f for f in files if os.path.isfile(f"{roots.prefix}{f}")), ""), roots.prefix):
        depth = len(line) - len(line.lstrip(_TABS))
        text, _, name = line.strip().partition("  ")
        if depth > 1 or not name or line.startswith("#"):
            continue
        number = _hexadecimal(text)
        if depth == 0:
            if number is None:  # "C 00  …": the classes follow, and no more vendors
                break
            vendor, vendor_id = name, number
            for one in {pair for pair in wanted if pair[0] == number}:
                found[one] = PciName(vendor)
        elif number is not None and (vendor_id, number) in left:
            found[vendor_id, number] = PciName(vendor, name)
            left.discard((vendor_id, number))
            if not left:
                break
    return found


def _lines(path: str, prefix: str) -> Iterator[str]:
    if path:
        try:
            with open(f"{prefix}{path}", encoding="utf-8", errors="replace") as file:
                for line in file:
                    yield line.rstrip("\n")
        except OSError:
            return


def _entries(path: str) -> dict[int, str]:
    """Read passwd(5) or group(5): the name for each number."""
    found: dict[int, str] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, *rest = line.rstrip("\n").split(":")
                if len(rest) > 1 and rest[1].isascii() and rest[1].isdigit():
                    found.setdefault(int(rest[1]), name)
    except OSError:
        pass
    return found


def _hexadecimal(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None
