"""Messages to bytes and back: beside the generated classes, all that knows the encoding.

betterproto2's classes are the vocabulary; its encoder serves for the small messages.
Two are put together by hand: the list of Devices, GPU by GPU, since betterproto2 needs about
0.4 s for 12,800 and the kubelet gets the whole list at every change; and the answer to
Allocate, which takes betterproto2 about as long as finding it out. Messages are read by
``kubelet.reader``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from grpclib.encoding.base import CodecBase

from gpuplug.core.sizes import LIST_LIMIT, numbers_by_digits
from gpuplug.kubelet.reader import (
    LENGTH,
    MASK64,
    MORE,
    VARINT,
    MalformedMessageError,
    MessageT,
    decode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import betterproto2

    from gpuplug.model import Allocation, Resource

__all__ = [
    "HEALTHY",
    "LIST_LIMIT",
    "UNHEALTHY",
    "VERSION",
    "Codec",
    "Encoded",
    "MalformedMessageError",
    "decode",
    "encode_allocations",
    "encode_list",
]

VERSION: Final = "v1beta1"
"""The API's version, as Register states it (``Version`` in k8s.io/kubelet's constants.go)."""
HEALTHY: Final = "Healthy"
"""``Device.health`` of a Device that pods may get (constants.go)."""
UNHEALTHY: Final = "Unhealthy"
"""``Device.health`` of a Device that counts but is not given to pods (constants.go)."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message that is already in its wire form; the Codec passes it through."""

    data: bytes


class Codec(CodecBase):
    """How grpclib turns messages into bytes and back, for servers and clients."""

    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: type[betterproto2.Message]) -> bytes:
        """Give the message's bytes; raise TypeError if it is of another type."""
        if isinstance(message, Encoded):
            return message.data
        if not isinstance(message, message_type):
            raise TypeError(f"expected a {message_type.__name__}, got {message!r}")
        return bytes(message)

    def decode(self, data: bytes, message_type: type[MessageT]) -> MessageT:
        """Read a message; raise MalformedMessageError, which is a WireError, if it is none."""
        return decode(data, message_type)


def encode_list(resource: Resource) -> Encoded:
    """Give the ``ListAndWatchResponse`` for a Resource.

    Its cost is that of the GPUs that changed since they were last encoded, plus one
    copy of the list.
    """
    return Encoded(
        b"".join(
            _encode_entry(entry.stem, entry.shares, entry.healthy, entry.numa_node)
            for entry in resource.entries()
        )
    )


# Both states of health of 256 GPUs; 1.8 MB if each has 100 shares.
@lru_cache(maxsize=512)
def _encode_entry(stem: str, shares: int, healthy: bool, numa_node: int | None) -> bytes:
    """Give the ``devices`` entries of all shares of one GPU.

    Encoded messages concatenate: a repeated field's entries simply follow each other.
    An entry's end, health and topology, is the same for all shares of the GPU; so is
    its beginning, up to the share's number, for all ids of one length.
    """
    end = _field(2, (HEALTHY if healthy else UNHEALTHY).encode())
    if numa_node is not None:
        # A NUMA node 0 is an empty message, not none: the kubelet counts the entries.
        node = _tag(1, VARINT) + _varint(numa_node) if numa_node else b""
        end += _field(3, _field(1, node))

    name = stem.encode()
    whole_id = _field(1, name) if name else b""
    parts = [_field(1, whole_id + end)]
    name += b"::"
    for digits, numbers in numbers_by_digits(shares):
        id_length = len(name) + digits
        body_length = 1 + len(_varint(id_length)) + id_length + len(end)
        beginning = _tag(1, LENGTH) + _varint(body_length) + _tag(1, LENGTH) + _varint(id_length) + name
        parts += [beginning, (end + beginning).join(b"%d" % number for number in numbers), end]
    return b"".join(parts)


def encode_allocations(given: Iterable[Allocation]) -> Encoded:
    """Give the ``AllocateResponse`` with one answer per container, in their order.

    By hand, because a pod's admission waits for it, and betterproto2 sets a warnings filter
    up and takes it down again for every field of every message.
    """
    return Encoded(b"".join(_field(1, _encode_allocation(allocation)) for allocation in given))


def _encode_allocation(given: Allocation) -> bytes:
    """Give a ``ContainerAllocateResponse``."""
    parts = [_field(1, _text(1, key) + _text(2, value)) for key, value in given.envs.items()]
    for mount in given.mounts:
        read_only = _tag(3, VARINT) + b"\1" if mount.read_only else b""
        parts.append(_field(2, _text(1, mount.container_path) + _text(2, mount.host_path) + read_only))
    for spec in given.specs:
        paths = _text(1, spec.container_path) + _text(2, spec.host_path)
        parts.append(_field(3, paths + _text(3, spec.permissions)))
    return b"".join(parts)


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _field(number: int, value: bytes) -> bytes:
    """Encode a string or message field."""
    return _tag(number, LENGTH) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Encode an integer, seven bits to a byte, lowest first; negative ones as 64 bits."""
    value &= MASK64
    out = bytearray()
    while value >= MORE:
        out.append(value & 0x7F | MORE)
        value >>= 7
    out.append(value)
    return bytes(out)
