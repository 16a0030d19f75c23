"""Reads the scalars in a run's TensorBoard event files, without TensorFlow.

An event file is a row of records, each a length (uint64), its checksum (uint32), an Event message
and that message's checksum (uint32). The learner writes one file each time it starts.
"""

from __future__ import annotations

import dataclasses
import pathlib
import struct
from typing import Any

from google.protobuf.message import DecodeError

# The messages alone: TensorBoard's own reader would load TensorFlow where it is installed.
from tensorboard.compat.proto import event_pb2, types_pb2

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Scalar:
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
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        scalars: list[Scalar] = []
        at = 0
        while at + _HEADER.size <= len(data):
            length, _ = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + length + _FOOTER_BYTES
            if end > len(data):
                break
            try:
                event = event_pb2.Event.FromString(data[at + _HEADER.size : end - _FOOTER_BYTES])
            except DecodeError:
                self._damaged = True
                break
            if self._began is None:
                self._began = event.wall_time
            seconds = event.wall_time - self._began
            for value in event.summary.value:
                if (number := _number(value)) is not None:
                    scalars.append(Scalar(value.tag, event.step, seconds, number))
            at = end
        self._offset += at
        return scalars


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
