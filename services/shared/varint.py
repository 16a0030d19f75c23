"""Protobuf's variable-length integers, for the readers that do without generated code."""

from __future__ import annotations


class MalformedMessage(ValueError):
    """Bytes that are not a message of the expected type; the message says where."""


def read(message: bytes, at: int, bits: int = 64) -> tuple[int, int]:
    """The number at a place, and the place after it.

    Args:
      message: The bytes.
      at: Where it begins.
      bits: That it may have: 32 for a tag or a length, which may not be written longer either.

    Raises:
      MalformedMessage: It is cut off, or has more bits.
    """
    if at < len(message) and message[at] < 0x80:
        return message[at], at + 1
    value, most_bytes = 0, -(-bits // 7)
    for shift in range(0, 7 * most_bytes, 7):
        if at >= len(message):
            raise MalformedMessage("a varint is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << bits:
                raise MalformedMessage(f"a varint has more than {bits} bits")
            return value, at
    raise MalformedMessage(f"a varint has more than {most_bytes} bytes")


def write(value: int) -> bytes:
    """A number of 0 or more as a varint."""
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
