"""Read messages from their wire form: strictly, and fast where a message is long.

betterproto2's own parser takes a message that breaks off in the middle of a field for a
whole one, and needs 12 times as long for a GetPreferredAllocation that names 12,800 ids, while
the event loop stands still and a pod's admission waits. So its classes are filled here,
from a table that is made of their own field descriptions.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar, get_type_hints

import betterproto2
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from gpuplug.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Mapping

MessageT = TypeVar("MessageT", bound=betterproto2.Message)

# The wire types of protobuf's encoding: the low three bits of a tag.
VARINT: Final = 0
LENGTH: Final = 2
_FIXED_SIZES: Final = {1: 8, 5: 4}

_LARGEST_FIELD_NUMBER: Final = (1 << 29) - 1
_LONGEST_TAG: Final = 5  # bytes: 29 bits of number, 3 of wire type

MORE: Final = 0x80  # set in every byte of a varint but its last one
MASK64: Final = (1 << 64) - 1


class MalformedMessageError(WireError, GRPCError):
    """Bytes that are not the message they should be: a WireError to us, a status to grpclib.

    grpclib answers a GRPCError with its status and logs nothing; any other exception
    from a codec would be logged with its traceback and answered UNKNOWN, "Internal
    Server Error". INTERNAL is what grpc-go answers to a request that it cannot read.
    """

    def __init__(self, text: str) -> None:
        super().__init__(Status.INTERNAL, text)

    def __str__(self) -> str:
        return str(self.message)


def decode(data: bytes, message_type: type[MessageT]) -> MessageT:
    """Read a message from its wire form, as protobuf's own parsers do.

    Fields that the type does not have, or has with another wire type, are passed over
    and forgotten: a newer kubelet may send them. Raises MalformedMessageError.
    """
    message = message_type()
    try:
        _read(data, 0, len(data), message, _fields(message_type))
    except IndexError:
        raise MalformedMessageError(f"{message_type.__name__}: breaks off after {len(data)} bytes") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise MalformedMessageError(f"{message_type.__name__}: {error}") from None
    return message


@dataclass(frozen=True, slots=True)
class _Field:
    """What the reader does with the fields that bear one tag."""

    name: str
    kind: str
    """betterproto2's name of the protobuf type."""
    repeated: bool = False
    message_type: type[betterproto2.Message] = betterproto2.Message
    """The class of a message field or of a map's entries; the base class for other fields."""


@dataclass(eq=False, repr=False)
class _MapEntry(betterproto2.Message):
    """An entry of a ``map<string, string>``, which on the wire is a message of its own."""

    key: str = betterproto2.field(1, betterproto2.TYPE_STRING)
    value: str = betterproto2.field(2, betterproto2.TYPE_STRING)


_WIRE_TYPES: Final = {
    betterproto2.TYPE_BOOL: VARINT,
    betterproto2.TYPE_INT32: VARINT,
    betterproto2.TYPE_INT64: VARINT,
    betterproto2.TYPE_STRING: LENGTH,
    betterproto2.TYPE_MESSAGE: LENGTH,
    betterproto2.TYPE_MAP: LENGTH,
}
"""The types that the API has; KeyError for any other is a bug of ours."""


@cache
def _fields(message_type: type[betterproto2.Message]) -> Mapping[int, _Field]:
    """Give what the reader must know of a message class, by tag."""
    hints = get_type_hints(message_type)
    fields: dict[int, _Field] = {}
    # Every generated class is a dataclass; only their common base is none.
    for field in dataclasses.fields(message_type):  # type: ignore[arg-type]
        meta = betterproto2.FieldMetadata.get(field)
        inner: type[betterproto2.Message] = betterproto2.Message
        if meta.proto_type == betterproto2.TYPE_MESSAGE:
            inner = hints[field.name].__args__[0]  # of list[X], or of X | None
        elif meta.proto_type == betterproto2.TYPE_MAP:
            inner = _MapEntry
        tag = meta.number << 3 | _WIRE_TYPES[meta.proto_type]
        fields[tag] = _Field(field.name, meta.proto_type, bool(meta.repeated), inner)
    return fields


def _read(
    data: bytes, position: int, end: int, message: betterproto2.Message, fields: Mapping[int, _Field]
) -> None:
    """Read ``data[position:end]`` into a message.

    Raises ValueError for what no message may contain, and IndexError where the data end too soon.
    """
    while position < end:
        tag = data[position]
        position += 1
        if tag >= MORE:
            tag, position = _read_long_tag(data, position - 1)
        field = fields.get(tag)
        if field is None:
            position = _skip(data, position, tag)
        elif tag & 7 == VARINT:
            number, position = _read_varint(data, position)
            setattr(message, field.name, _number(number, field.kind))
        elif field.kind == betterproto2.TYPE_STRING and field.repeated:
            position = _read_strings(data, position, end, tag, getattr(message, field.name))
        else:
            length, position = _read_varint(data, position)
            start, position = position, position + length
            if position > end:
                raise ValueError(_too_long(length, start, end))
            if field.kind == betterproto2.TYPE_STRING:
                setattr(message, field.name, data[start:position].decode())
            else:
                _read_message(data, start, position, message, field)
    if position > end:
        raise ValueError(f"a field ends at byte {position}, its message at byte {end}")


def _too_long(length: int, start: int, end: int) -> str:
    return f"a field has {length} bytes from byte {start} on, its message ends at byte {end}"


def _read_strings(data: bytes, position: int, end: int, tag: int, values: list[str]) -> int:
    """Read a run of strings of one repeated field, from after the first one's tag; give where it ends.

    A loop of its own because a GetPreferredAllocation can name 12,800 ids, and
    admission of the pod waits for the answer.
    """
    next_byte = tag if tag < MORE else -1  # a tag of several bytes is left to the caller
    while True:
        length = data[position]
        position += 1
        if length >= MORE:
            length, position = _read_varint(data, position - 1)
        start, position = position, position + length
        if position > end:
            raise ValueError(_too_long(length, start, end))
        values.append(data[start:position].decode())
        if position == end or data[position] != next_byte:
            return position
        position += 1


def _read_message(data: bytes, start: int, end: int, parent: betterproto2.Message, field: _Field) -> None:
    """Read ``data[start:end]`` as the message that a field of another message holds."""
    current = getattr(parent, field.name)
    # A message field that comes twice is one message, in pieces (protobuf's rule).
    again = isinstance(current, field.message_type)
    message = current if again else field.message_type()
    _read(data, start, end, message, _fields(field.message_type))
    if isinstance(message, _MapEntry):
        current[message.key] = message.value
    elif field.repeated:
        current.append(message)
    else:
        setattr(parent, field.name, message)


def _read_long_tag(data: bytes, position: int) -> tuple[int, int]:
    """Read a tag of several bytes; give it and where it ends."""
    tag, end = _read_varint(data, position)
    if end - position > _LONGEST_TAG:
        raise ValueError(f"a tag of {end - position} bytes at byte {position}")
    return tag, end


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read an integer; give it and where it ends."""
    byte = data[position]
    position += 1
    if byte < MORE:
        return byte, position
    value = byte & 0x7F
    for shift in range(7, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < MORE:
            if value > MASK64:
                break
            return value, position
    raise ValueError(f"an integer of more than 64 bits that ends at byte {position}")


def _number(value: int, kind: str) -> int:
    """Give a varint's meaning: bool, int32 and int64 share one wire type."""
    if kind == betterproto2.TYPE_BOOL:
        return value != 0
    bits = 32 if kind == betterproto2.TYPE_INT32 else 64
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _skip(data: bytes, position: int, tag: int) -> int:
    """Pass over a field that is not known, from after its tag; give where it ends."""
    if not 1 <= tag >> 3 <= _LARGEST_FIELD_NUMBER:
        raise ValueError(f"field number {tag >> 3} before byte {position}")
    wire_type = tag & 7
    if wire_type == VARINT:
        return _read_varint(data, position)[1]
    if wire_type == LENGTH:
        length, position = _read_varint(data, position)
        return position + length
    if wire_type in _FIXED_SIZES:
        return position + _FIXED_SIZES[wire_type]
    # 3 and 4 are groups, which proto3 does not have; 6 and 7 are nothing.
    raise ValueError(f"wire type {wire_type} before byte {position}")
