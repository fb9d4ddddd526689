"""Read the fields of protocol buffer messages without a schema; each field has a number and a value."""

from __future__ import annotations

from collections.abc import Iterator

from vitkit.errors import VitkitError

_VARINT, _BYTES = 0, 2
_FIXED_LENGTHS = {1: 8, 5: 4}  # bytes by kind


def fields_of(message: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yield the number and the value of each field of a message.

    The value is a slice of the message if the field stores its length (bytes, text, messages), and None for numbers.
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        length = 0
        if kind == _BYTES:
            length, position = _varint(message, position)
        elif kind == _VARINT:
            _, position = _varint(message, position)
        elif kind in _FIXED_LENGTHS:
            length = _FIXED_LENGTHS[kind]
        else:
            raise VitkitError("system.protobuf-invalid", "it is not a protocol buffer")
        if length > len(message) - position:
            raise VitkitError("system.protobuf-truncated", "it is cut off")
        yield number, message[position : position + length] if kind == _BYTES else None
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Decode the variable-length integer at a position; return the integer and the position after its last byte."""
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(message):
            raise VitkitError("system.protobuf-truncated", "it is cut off")
        byte = message[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
    raise VitkitError("system.protobuf-invalid", "it is not a protocol buffer")
