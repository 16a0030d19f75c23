"""What a client's sequences look like; its description is what the service compares."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# Of the block format in `codec`.
VERSION = 1
# Below this a tensor of one step is not worth a stream of its own.
_LARGE_BYTES = 256


@dataclasses.dataclass(frozen=True)
class Field:
    """One tensor.

    Attributes:
      name: Unique within its group.
      dtype: A numpy name.
      shape: Of one step (or of one item).
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Of one step."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class SequenceLayout:
    """The tensors of each step, and those that a sequence has once.

    Attributes:
      steps: For each step.
      context: For each item, such as the recurrent state before its first step.
    """

    steps: tuple[Field, ...]
    context: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        for group in (self.steps, self.context):
            names = [field.name for field in group]
            if len(set(names)) != len(names):
                raise ValueError(f"fields are named {names}, allowed: each name once")
        if not self.steps:
            raise ValueError("steps is empty, allowed: one field or more")

    @functools.cached_property
    def description(self) -> str:
        """The same for the same layout, and legible."""
        return json.dumps(
            {
                name: [[f.name, np.dtype(f.dtype).str, list(f.shape)] for f in group]
                for name, group in (("steps", self.steps), ("context", self.context))
            },
            separators=(",", ":"),
        )

    def count(self, steps: Mapping[str, npt.NDArray[Any]]) -> int:
        """The number n of steps whose fields are arrays [n, ...].

        Raises:
          KeyError: A field is missing.
          ValueError: An array has another shape; names field, shape and what is allowed.
        """
        count = len(steps[self.steps[0].name])
        for field in self.steps:
            shape, expected = steps[field.name].shape, (count, *field.shape)
            if shape != expected:
                raise ValueError(f"field {field.name} has shape {shape}, allowed: {expected}")
        return count

    @functools.cached_property
    def large(self) -> tuple[Field, ...]:
        """Step fields that are compressed on their own."""
        return tuple(field for field in self.steps if field.bytes >= _LARGE_BYTES)

    @functools.cached_property
    def record(self) -> np.dtype[Any]:
        """The other step fields side by side."""
        return _record([field for field in self.steps if field.bytes < _LARGE_BYTES])

    @functools.cached_property
    def context_record(self) -> np.dtype[Any]:
        """The context fields side by side."""
        return _record(list(self.context))


def _record(fields: list[Field]) -> np.dtype[Any]:
    return np.dtype([(f.name, np.dtype(f.dtype).str, f.shape) for f in fields])
