"""What environments look like: the specs that actor and learner agree on at Join.

An environment's adapter in the actor makes an `EnvironmentSpec`; `Join` carries it to the
learner, which sizes its step store and its networks by it.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import numpy as np
import numpy.typing as npt


class DataType(enum.IntEnum):
    """The element type of a tensor; the numbers are those of the protobuf enum."""

    UINT8 = 1
    INT32 = 2
    FLOAT32 = 3
    BIT = 4


class StepType(enum.IntEnum):
    """The step types of dm_env, and ABSENT for an environment that is being replaced."""

    FIRST = 0
    MID = 1
    LAST = 2
    ABSENT = 3


_STORAGE_DTYPES: dict[DataType, np.dtype[Any]] = {
    DataType.UINT8: np.dtype(np.uint8),
    DataType.INT32: np.dtype(np.int32),
    DataType.FLOAT32: np.dtype(np.float32),
    DataType.BIT: np.dtype(np.uint8),
}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One observation tensor of one agent, without batch dimension.

    Attributes:
      name: Unique within the observation; nested names are joined by "/".
      data_type: Element type as the networks see it.
      shape: Shape of one frame; for `DataType.BIT` in bits.
      stack: The networks see the last `stack` frames, concatenated along the last axis, oldest
        first. One frame travels.
      num_values: For INT32 categories: values lie in [0, num_values). 0: not a category.
    """

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    stack: int = 1
    num_values: int = 0

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.shape):
            raise ValueError(f"tensor {self.name!r}: shape {self.shape} has a dimension below 1")
        if self.stack < 1:
            raise ValueError(f"tensor {self.name!r}: stack is {self.stack}, allowed: 1 or more")
        if self.stack > 1 and not self.shape:
            raise ValueError(f"tensor {self.name!r}: a scalar has no last axis to stack along")
        if self.num_values < 0:
            raise ValueError(
                f"tensor {self.name!r}: num_values is {self.num_values}, allowed: 0 or more"
            )

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """Shape of one frame as it is sent and stored; packed bits are flat bytes."""
        if self.data_type is DataType.BIT:
            return ((math.prod(self.shape) + 7) // 8,)
        return self.shape

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """Element type as it is sent and stored."""
        return _STORAGE_DTYPES[self.data_type]

    @property
    def storage_bytes(self) -> int:
        """Bytes of one frame as it is sent and stored."""
        return math.prod(self.storage_shape) * self.storage_dtype.itemsize

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Shape that the networks see."""
        if self.stack == 1:
            return self.shape
        return (*self.shape[:-1], self.shape[-1] * self.stack)


@dataclasses.dataclass(frozen=True)
class DiscreteActionSpec:
    """One or several independent choices: int32 [len(num_values)]."""

    num_values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.num_values or any(n < 1 for n in self.num_values):
            raise ValueError(
                f"discrete action: num_values is {self.num_values}, allowed: one or more"
                " numbers of 1 or more"
            )

    @property
    def size(self) -> int:
        """Elements of one action."""
        return len(self.num_values)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of an action."""
        return np.dtype(np.int32)


@dataclasses.dataclass(frozen=True)
class ContinuousActionSpec:
    """A real vector: float32 [len(minimum)], in [minimum, maximum]; bounds may be infinite."""

    minimum: tuple[float, ...]
    maximum: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.minimum or len(self.minimum) != len(self.maximum):
            raise ValueError(
                f"continuous action: {len(self.minimum)} minima and {len(self.maximum)} maxima,"
                " allowed: one or more of each, equally many"
            )
        if not all(lo < hi for lo, hi in zip(self.minimum, self.maximum, strict=True)):
            raise ValueError(
                f"continuous action: minimum {self.minimum} is not below maximum {self.maximum}"
            )

    @property
    def size(self) -> int:
        """Elements of one action."""
        return len(self.minimum)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of an action."""
        return np.dtype(np.float32)

    def to_environment(self, action: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Maps the policy's actions to the environment's units.

        Bounded elements are clipped to [-1, 1] and scaled to their bounds; elements with an
        infinite bound are clipped to it as they are.

        Args:
          action: float32 [..., size].

        Returns:
          float32 [..., size].
        """
        low = np.asarray(self.minimum, np.float32)
        high = np.asarray(self.maximum, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        bottom, top = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        unit = np.where(bounded, np.clip(action, -1.0, 1.0), action)
        scaled = unit * (top - bottom) / 2 + (top + bottom) / 2
        result: npt.NDArray[np.float32] = np.clip(scaled, low, high).astype(np.float32)
        return result


ActionSpec = DiscreteActionSpec | ContinuousActionSpec


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
    """What one environment shows and takes.

    Attributes:
      observation: The tensors of one agent's observation, in the order they are sent.
      action: One agent's action.
      agents: Agents acting in one environment; each has an env slot of its own.
      frames_per_step: Environment frames per step (action repeats).
    """

    observation: tuple[TensorSpec, ...]
    action: ActionSpec
    agents: int = 1
    frames_per_step: int = 1

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.observation]
        if not names or len(set(names)) != len(names):
            raise ValueError(
                f"observation tensors are named {names}, allowed: one or more names, each once"
            )
        if self.agents < 1 or self.frames_per_step < 1:
            raise ValueError(
                f"agents is {self.agents} and frames_per_step {self.frames_per_step},"
                " allowed: 1 or more"
            )
