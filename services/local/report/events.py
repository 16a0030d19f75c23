"""Reads the scalars in a run's TensorBoard event files, without TensorFlow.

An event file is a row of records, each a length (uint64), its checksum (uint32), an Event message
and that message's checksum (uint32). The learner writes one file each time it starts.
"""

from __future__ import annotations

import os
import pathlib
import struct
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

# The messages alone: TensorBoard's own reader would load TensorFlow where it is installed.
from tensorboard.compat.proto import event_pb2, types_pb2

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4


class Scalar(NamedTuple):
    """One value.

    Attributes:
      tag: Its name, `episode/mean_return` for example.
      step: Environment frames.
      seconds: Since the file was begun.
      value: May be NaN or infinite.
    """

    tag: str
    step: int
    seconds: float
    value: float


class EventFile:
    """One event file, which may still grow."""

    def __init__(self, path: pathlib.Path) -> None:
        """Starts at its beginning; nothing is read yet."""
        self._path = path
        self._offset = 0
        self._began: float | None = None
        self._damaged = False

    def read(self) -> list[Scalar]:
        """The scalars that were added since the last call.

        A record that is not complete is left for the next call: it is being written, or its
        writer was killed. What follows a damaged record is not read.

        Raises:
          OSError: The file cannot be read.
        """
        if self._damaged:
            return []
        scalars: list[Scalar] = []
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(self._offset)
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                length, _ = _HEADER.unpack(header)
                if file.tell() + length + _FOOTER_BYTES > size:
                    break
                try:
                    event = event_pb2.Event.FromString(file.read(length))
                except DecodeError:
                    self._damaged = True
                    break
                file.seek(_FOOTER_BYTES, os.SEEK_CUR)
                self._offset = file.tell()
                scalars += self._scalars(event)
        return scalars

    def _scalars(self, event: Any) -> list[Scalar]:
        if self._began is None:
            self._began = event.wall_time
        seconds = event.wall_time - self._began
        numbers = ((value.tag, _number(value)) for value in event.summary.value)
        return [Scalar(tag, event.step, seconds, n) for tag, n in numbers if n is not None]


def _number(value: Any) -> float | None:
    """The number in a Summary.Value; None if it is an image, a text or a histogram."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    tensor = value.tensor
    if tensor.dtype != types_pb2.DT_FLOAT or tensor.tensor_shape.dim:
        return None
    if tensor.float_val:
        return float(tensor.float_val[0])
    number: float = struct.unpack("<f", tensor.tensor_content)[0]
    return number
