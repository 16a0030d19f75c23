"""Protobuf's variable-length integers, for the readers that do without generated code."""

from __future__ import annotations


class MalformedMessage(ValueError):
    """Bytes that are not a message of the expected type; the message says where."""


def read(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it.

    Raises:
      MalformedMessage: It is cut off, or has more than 64 bits.
    """
    if at < len(message) and message[at] < 0x80:
        return message[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise MalformedMessage("a varint is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                raise MalformedMessage("a varint has more than 64 bits")
            return value, at
    raise MalformedMessage("a varint has more than 10 bytes")


def write(value: int) -> bytes:
    """A number of 0 or more as a varint."""
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
