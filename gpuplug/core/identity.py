"""Names that must stay the same: Device ids and socket files."""

from __future__ import annotations

import re
from binascii import crc32
from typing import Final

from gpuplug.model import DeviceId
from gpuplug.settings import MAX_SOCKET_PATH

MAX_DEVICE_ID: Final = 63
"""Characters of a Device id (v1beta1 ``Device.ID``: it is used like a label value)."""

SOCKET_PREFIX: Final = "gpuplug-"
_SEPARATOR: Final = "::"
_SLUG_ROOM: Final = 20
_DIGITS: Final = 9

# domain/name as in the Kubernetes API ("qualified name"): a DNS subdomain and up to 63 characters.
_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
# The kubelet checks it with "requests." in front (IsExtendedResourceName in k8s.io/kubernetes 1.36).
_QUOTA: Final = "requests."
_MAX_DOMAIN: Final = 253 - len(_QUOTA)


def device_id(address: str, share: int) -> DeviceId:
    """Name share ``share`` of a GPU; share 0 bears the address alone, so the count may change."""
    return DeviceId(f"{address}{_SEPARATOR}{share}" if share else address)


def split_device_id(id_: str) -> tuple[str, int] | None:
    """Return address and share of a Device id, or ``None`` where it is none of ours.

    Only the spelling that ``device_id`` gives is taken: no ``::0``, ``::01`` or sign.
    """
    address, separator, share = id_.partition(_SEPARATOR)
    if not separator:
        return (address, 0) if address else None
    digits = share.isascii() and share.isdigit() and len(share) <= _DIGITS
    if not address or not digits or share.startswith("0"):
        return None
    return address, int(share)


def id_problem(address: str, shares: int) -> str | None:
    """Say why a GPU's address does not make Device ids, or ``None`` where it does."""
    longest = device_id(address, shares - 1)
    if not address.isprintable() or split_device_id(device_id(address, 1)) != (address, 1):
        return f"its address {address!r} cannot be part of a Device id"
    if len(longest.encode()) > MAX_DEVICE_ID:
        return f"the Device id {longest} is longer than {MAX_DEVICE_ID} characters"
    return None


def is_resource_name(name: str) -> bool:
    """Tell whether the kubelet would take this as the name of an extended resource."""
    domain, slash, rest = name.partition("/")
    return bool(
        slash
        and len(domain) <= _MAX_DOMAIN
        and _DOMAIN.fullmatch(domain)
        and _NAME.fullmatch(rest)
        and not domain.endswith("kubernetes.io")
        and not domain.startswith(_QUOTA)
    )


def socket_name(resource: str, process: str, generation: int, room: int) -> str:
    """Name the socket of one server generation of a resource, in at most ``room`` bytes.

    The name is fresh for every process and generation, since kubelets may refuse a
    path that they still serve; ``process`` is random (every container has the same pid).
    The checksum keeps two resources apart whose readable part is cut or equal.

    :raises ValueError: if not even the shortest name has room.
    """
    # Not hashlib: it would bring in OpenSSL, 3 MiB for a name that only has to differ.
    tail = f"{crc32(resource.encode()):08x}-{process}-{generation}.sock"
    slug = re.sub(r"[^A-Za-z0-9]+", "-", resource.rpartition("/")[2]).strip("-")
    slug = slug[: max(0, min(_SLUG_ROOM, room - len(SOCKET_PREFIX) - len(tail) - 1))]
    name = SOCKET_PREFIX + (f"{slug}-" if slug else "") + tail
    if len(name) > room:
        raise ValueError(f"a socket name needs {len(name)} bytes and there is room for {room}")
    return name


def socket_room(directory: str) -> int:
    """Return how many bytes are left for a socket's name in this folder."""
    return MAX_SOCKET_PATH - len(directory.encode()) - 1
