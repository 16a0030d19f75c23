"""Between messages and arrays, without copying the blocks.

Both sides put the `payload` last: the head is an ordinary protobuf message, the payload is joined
to it or looked at in place. Equal to the generated code on every message, as a test proves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from services.shared import varint
from services.shared.varint import MalformedMessage

_PAYLOAD_FIELD = 15
_PAYLOAD_TAG = _PAYLOAD_FIELD << 3 | 2
_Head = TypeVar("_Head", bound=Message)
_Scalar = TypeVar("_Scalar", bound=np.generic)


def join(head: Message, payload: Iterable[bytes | memoryview], payload_bytes: int) -> bytes:
    """Serializes a message whose payload is not set in `head`.

    Args:
      head: All other fields.
      payload: The parts of the payload.
      payload_bytes: The sum of their sizes.
    """
    if not payload_bytes:
        return bytes(head.SerializeToString())
    return b"".join(
        (head.SerializeToString(), bytes((_PAYLOAD_TAG,)), varint.write(payload_bytes), *payload)
    )


def split(message: bytes, kind: type[_Head]) -> tuple[_Head, memoryview]:
    """The inverse of `join`.

    Returns:
      The message without its payload, and the payload as a view into `message`.

    Raises:
      MalformedMessage: The bytes are not such a message.
    """
    at, end = 0, len(message)
    while at < end:
        start = at
        tag, at = varint.read(message, at, 32)
        wire_type = tag & 7
        if wire_type == 2:
            size, at = varint.read(message, at, 32)
            if tag == _PAYLOAD_TAG and at + size == end:
                return _parse(message[:start], kind), memoryview(message)[at:end]
            at += size
        elif wire_type == 0:
            _, at = varint.read(message, at)
        elif wire_type in (1, 5):
            at += 8 if wire_type == 1 else 4
        else:
            raise MalformedMessage(f"field {tag >> 3} at byte {start} has wire type {wire_type}")
    # No payload, or an encoder that did not put it last.
    head: Any = _parse(message, kind)
    payload = memoryview(head.payload)
    head.ClearField("payload")
    return head, payload


def array(field: bytes, dtype: type[_Scalar], name: str) -> npt.NDArray[_Scalar]:
    """A field's elements [n].

    Raises:
      MalformedMessage: It is not a whole number of elements.
    """
    try:
        return np.frombuffer(field, dtype)
    except ValueError:
        size = np.dtype(dtype).itemsize
        text = f"{name} has {len(field)} bytes, allowed: a multiple of {size}"
        raise MalformedMessage(text) from None


def _parse(data: bytes, kind: type[_Head]) -> _Head:
    try:
        head: _Head = kind.FromString(data)
    except DecodeError as error:
        raise MalformedMessage(f"not a {kind.DESCRIPTOR.name}: {error}") from None
    return head
