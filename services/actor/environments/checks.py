"""Whether what an environment shows is what its spec says.

The learner refuses a whole message for one value that is not allowed, and assignment to an
array changes silently what does not fit: so the actor looks first. `groups`, `seats` and the
gymnasium adapter use it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from services.actor.environments.base import Environment, Observation
from services.shared import wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import EnvironmentSpec, TensorSpec


class Caster:
    """Lets values through that an array can hold."""

    def __init__(self, name: str, dtype: npt.DTypeLike) -> None:
        """Prepares for one tensor.

        Args:
          name: Of the tensor, for errors.
          dtype: Of the array that the values are assigned to.
        """
        self._name = name
        self._dtype = np.dtype(dtype)
        # Types of which any value may be assigned. Each is examined once: the usual step pays
        # for one look into this set.
        self._safe: set[object] = {self._dtype}
        if self._dtype.kind in "iu":
            self._bounds = (int(np.iinfo(self._dtype).min), int(np.iinfo(self._dtype).max))

    def __call__(self, value: Any) -> Any:
        """Returns the value, to be assigned.

        Raises:
          ValueError: Assignment would change it.
        """
        if getattr(value, "dtype", None) in self._safe:
            return value
        array = np.asarray(value)
        if array.dtype.kind in "iu" and self._dtype.kind in "iu":
            self._check_range(array)
        elif array.dtype not in self._safe:
            self._examine(array.dtype)
        return array

    def _examine(self, dtype: np.dtype[Any]) -> None:
        if not np.can_cast(dtype, self._dtype, "same_kind"):
            raise ValueError(
                f"observation {self._name!r} has element type {dtype}, its spec has {self._dtype}:"
                " the values would change"
            )
        self._safe.add(dtype)

    def _check_range(self, array: npt.NDArray[Any]) -> None:
        if np.can_cast(array.dtype, self._dtype, "safe"):
            self._safe.add(array.dtype)
            return
        if array.ndim == 0:  # a few times faster than the reductions
            least = most = int(array)
        elif array.size:
            least, most = int(array.min()), int(array.max())
        else:
            return
        low, high = self._bounds
        if least < low or most > high:
            raise ValueError(
                f"observation {self._name!r} has {array.dtype} values from {least} to {most}, its"
                f" spec has {self._dtype}, allowed: {low} to {high}"
            )


def casters(spec: EnvironmentSpec) -> tuple[Caster, ...]:
    """One for each tensor of the observation."""
    return tuple(Caster(tensor.name, tensor.storage_dtype) for tensor in spec.observation)


def check_first(spec: EnvironmentSpec, observation: Observation) -> None:
    """Checks an environment's first observation as thoroughly as every later one.

    Raises:
      ValueError: Something the learner would refuse; the message names tensor and value.
    """
    for tensor, cast, value in zip(spec.observation, casters(spec), observation, strict=True):
        rows = np.zeros((spec.agents, *tensor.storage_shape), tensor.storage_dtype)
        rows[...] = cast(value)
        wrong = what_is_wrong(tensor, rows)
        if wrong is not None:
            raise ValueError(wrong)


def are_categories(tensor: TensorSpec, rows: npt.NDArray[Any]) -> bool:
    """Whether all values of an INT32 tensor are categories of its spec."""
    # Read as unsigned a negative number is a large one: one pass tests both bounds.
    return bool(rows.view(np.uint32).max() < tensor.num_values)


def what_is_wrong(tensor: TensorSpec, rows: npt.NDArray[Any]) -> str | None:
    """What the learner would refuse.

    Args:
      tensor: The spec.
      rows: What was stored for it, of any number of slots.

    Returns:
      A message with tensor, value and what is allowed; None if nothing is wrong.
    """
    if rows.dtype == np.float32:
        bad, allowed = ~np.isfinite(rows), "finite numbers"
    elif tensor.num_values:
        bad = (rows < 0) | (rows >= tensor.num_values)
        allowed = f"0 to {tensor.num_values - 1}"
    else:
        return None
    if not bad.any():
        return None
    return f"observation {tensor.name!r} is {rows[bad].flat[0]}, allowed: {allowed}"


def episode_messages(environment: Environment) -> list[inference_pb2.EpisodeInfo]:
    """What an environment tells of its last episode, a message for each agent.

    Raises:
      ValueError: Something the learner would refuse.
    """
    info = environment.episode_info()
    if len(info.values) != environment.spec.agents:
        raise ValueError(
            f"episode_info has values of {len(info.values)} agents, allowed:"
            f" {environment.spec.agents}"
        )
    messages = []
    for values in info.values:
        if not all(map(math.isfinite, values.values())):
            raise ValueError(f"episode_info has {dict(values)}, allowed: finite numbers")
        message = inference_pb2.EpisodeInfo(level=info.level, values=values)
        if message.ByteSize() > wire.EPISODE_INFO_BYTES:
            raise ValueError(
                f"episode_info has {message.ByteSize()} bytes, allowed: {wire.EPISODE_INFO_BYTES}"
            )
        messages.append(message)
    return messages
