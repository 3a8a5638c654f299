"""How many bytes a list of Devices takes on the wire, without encoding it.

The kubelet drops a list that is too long for its gRPC client, and the resource is
never updated again; so what could become too long is refused before it is served.
The sizes are those of protobuf's encoding of ``ListAndWatchResponse``: a field is a
tag (one byte for fields 1 to 15) and its value; strings and messages carry their
length in front; integers take one byte per seven bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuplug.model import Resource

LIST_LIMIT: Final = 4 * 1024 * 1024
"""The longest list, in bytes, that a kubelet takes.

The default of grpc-go's clients (``defaultClientMaxReceiveMessageSize``), which the
kubelet's device manager leaves as it is (Kubernetes 1.36, grpc-go 1.79).
"""

LARGEST_NUMA_NODE: Final = 1023
"""Linux has 1024 NUMA nodes at most (``CONFIG_NODES_SHIFT`` is 10 at most)."""

SHARE_SEPARATOR_LENGTH: Final = len("::")
_HEALTH_LENGTH: Final = {True: len("Healthy"), False: len("Unhealthy")}
_MASK64: Final = (1 << 64) - 1


def device_size(id_length: int, *, healthy: bool = False, numa_node: int | None = LARGEST_NUMA_NODE) -> int:
    """Give the bytes that one Device adds to a list, its id being ``id_length`` bytes long.

    The defaults are the worst case.
    """
    body = 0
    if id_length:  # protobuf leaves an empty string out
        body += _field(id_length)
    body += _field(_HEALTH_LENGTH[healthy])
    if numa_node is not None:
        node = 1 + _varint(numa_node) if numa_node else 0
        body += _field(_field(node))
    return _field(body)


def offer_size(
    address_length: int, shares: int, *, healthy: bool = False, numa_node: int | None = LARGEST_NUMA_NODE
) -> int:
    """Give the bytes that all shares of one GPU add to a list, its address being so many bytes long.

    The defaults are the worst case.
    """
    size = device_size(address_length, healthy=healthy, numa_node=numa_node)
    for digits, numbers in numbers_by_digits(shares):
        id_length = address_length + SHARE_SEPARATOR_LENGTH + digits
        size += len(numbers) * device_size(id_length, healthy=healthy, numa_node=numa_node)
    return size


def list_size(resource: Resource) -> int:
    """Give the exact length in bytes of the list that the kubelet would get."""
    return sum(
        offer_size(len(entry.stem.encode()), entry.shares, healthy=entry.healthy, numa_node=entry.numa_node)
        for entry in resource.entries()
    )


def numbers_by_digits(shares: int) -> Iterator[tuple[int, range]]:
    """Give the share numbers that ids bear (1 and up), grouped by how many digits they have.

    Ids of equal length differ in nothing but their digits, so they are counted, and
    encoded, together.
    """
    digits, first = 1, 1
    while first < shares:
        yield digits, range(first, min(first * 10, shares))
        digits, first = digits + 1, first * 10


def _field(length: int) -> int:
    """Give the size of a field with a length in front: tag, length and so many bytes."""
    return 1 + _varint(length) + length


def _varint(value: int) -> int:
    """Give the size of an integer; negative ones are written as 64 bits."""
    return max(1, ((value & _MASK64).bit_length() + 6) // 7)
