"""Any gymnasium environment as one of ours.

`services.actor.environments.make` builds it. Spaces become tensor specs once, at construction;
from then on each step copies values into arrays that are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from services.actor.environments.base import (
    Environment,
    EpisodeInfo,
    Observation,
    PictureError,
    Transition,
)
from services.actor.environments.checks import Caster
from services.shared.specs import (
    ActionSpec,
    ContinuousActionSpec,
    DataType,
    DiscreteActionSpec,
    EnvironmentSpec,
    TensorSpec,
)

_ROOT = "observation"
_INT32 = np.iinfo(np.int32)

Path = tuple[str | int, ...]
Writer = Callable[[Any], None]
"""Copies one leaf of an observation into the array that is sent."""


class UnsupportedSpaceError(ValueError):
    """A space without a tensor or action spec; the message names the space and the leaf."""


class GymEnvironment(Environment):
    """One agent in a `gymnasium.Env`."""

    def __init__(self, environment: gymnasium.Env[Any, Any], seed: int) -> None:
        """Adapts an environment.

        Args:
          environment: It is closed with the adapter.
          seed: Given to the first reset only: later episodes go on with the generator.

        Raises:
          UnsupportedSpaceError: A space that has no spec.
        """
        self._environment = environment
        self._seed: int | None = seed
        self._info: dict[str, Any] = {}
        tensors, arrays, self._writers = [], [], []
        for path, space in _leaves(environment.observation_space, ()):
            name = "/".join(map(str, path)) or _ROOT
            tensor = _tensor_spec(name, space)
            array = np.zeros((1, *tensor.storage_shape), tensor.storage_dtype)
            tensors.append(tensor)
            arrays.append(array)
            self._writers.append((path, _writer(name, space, array)))
        # Most observations are one tensor: no path to walk at each step.
        self._only = self._writers[0][1] if [p for p, _ in self._writers] == [()] else None
        self._observation = tuple(arrays)
        self._reward = np.zeros(1, np.float32)
        action, self._to_gym = _action(environment.action_space)
        try:
            self._spec = EnvironmentSpec(tuple(tensors), action)
        except ValueError as error:
            raise UnsupportedSpaceError(
                f"observation space {environment.observation_space}: {error}"
            ) from None

    @property
    def spec(self) -> EnvironmentSpec:
        """One tensor for each leaf of the observation space."""
        return self._spec

    def reset(self) -> Observation:
        """Begins an episode."""
        observation, _ = self._environment.reset(seed=self._seed)
        self._seed = None
        self._write(observation)
        return self._observation

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        """Steps the environment with action [1, action size]."""
        observation, reward, terminated, truncated, self._info = self._environment.step(
            self._to_gym(action[0])
        )
        self._write(observation)
        self._reward[0] = reward
        return Transition(self._observation, self._reward, bool(terminated), bool(truncated))

    def episode_info(self) -> EpisodeInfo:
        """The numbers and the `level` that the last step's info has under `episode_info`."""
        told = dict(self._info.get("episode_info", {}))
        identifier = "" if self._environment.spec is None else self._environment.spec.id
        level = str(told.pop("level", identifier))
        return EpisodeInfo(({name: float(value) for name, value in told.items()},), level)

    def picture(self) -> npt.NDArray[np.uint8]:
        """What gymnasium renders.

        Raises:
          PictureError: The environment cannot be rendered here.
        """
        name = self._environment.unwrapped.__class__.__name__
        if self._environment.render_mode != "rgb_array":
            raise PictureError(
                f"{name} has the render mode {self._environment.render_mode!r}, needed for"
                " pictures: 'rgb_array'"
            )
        try:
            frame = self._environment.render()
        except Exception as error:
            raise PictureError(
                f"{name} cannot be rendered here: {error}. Classic control needs"
                " `.venv/bin/pip install -e '.[classic-control]'`, MuJoCo an OpenGL library"
                " (Debian: libegl1 and libgl1-mesa-dri, with MUJOCO_GL=egl)"
            ) from error
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype != np.uint8:
            raise PictureError(
                f"{name} renders a {type(frame).__name__}, needed: uint8 [height, width, 3]"
            )
        return frame

    def close(self) -> None:
        """Closes the gymnasium environment."""
        self._environment.close()

    def _write(self, observation: Any) -> None:
        if self._only is not None:
            self._only(observation)
            return
        for path, write in self._writers:
            value = observation
            for key in path:
                value = value[key]
            write(value)


def _leaves(space: spaces.Space[Any], path: Path) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, (*path, index))
    else:
        yield path, space


def _tensor_spec(name: str, space: spaces.Space[Any]) -> TensorSpec:
    try:
        if isinstance(space, spaces.Box):
            return TensorSpec(name, _box_type(space), space.shape)
        if isinstance(space, spaces.Discrete):
            return TensorSpec(name, DataType.INT32, (), num_values=int(space.n))
        if isinstance(space, spaces.MultiDiscrete):
            return TensorSpec(name, DataType.INT32, space.shape, num_values=int(space.nvec.max()))
        if isinstance(space, spaces.MultiBinary):
            return TensorSpec(name, DataType.BIT, space.shape)
    except ValueError as error:
        raise UnsupportedSpaceError(f"observation {name!r}, space {space}: {error}") from None
    raise UnsupportedSpaceError(
        f"observation {name!r} has space {space}, a {type(space).__name__}; allowed: Box,"
        " Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them"
    )


def _box_type(space: spaces.Box) -> DataType:
    dtype = np.dtype(space.dtype)
    if dtype == np.uint8:
        return DataType.UINT8
    if dtype == np.bool_:
        return DataType.BIT
    if np.issubdtype(dtype, np.floating):
        return DataType.FLOAT32
    if np.issubdtype(dtype, np.integer):
        if space.low.min() < _INT32.min or space.high.max() > _INT32.max:
            raise ValueError("bounds outside those of int32")
        return DataType.INT32
    raise ValueError(f"element type {dtype}, allowed: integers, floats and bool")


def _writer(name: str, space: spaces.Space[Any], array: npt.NDArray[Any]) -> Writer:
    row = array[0]
    if isinstance(space, spaces.MultiBinary) or (
        isinstance(space, spaces.Box) and np.dtype(space.dtype) == np.bool_
    ):
        size = int(np.prod(space.shape))

        def write_bits(value: Any) -> None:
            bits = np.asarray(value, np.bool_).reshape(-1)
            if bits.size != size:  # the padded bytes would hide it
                raise ValueError(f"{bits.size} bits, the space has {size}")
            row[...] = np.packbits(bits)

        return write_bits
    start: Any = 0
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        start = space.start
    shape, cast = row.shape, Caster(name, array.dtype)

    def write(value: Any) -> None:
        if np.shape(value) != shape:  # assignment would broadcast it
            raise ValueError(f"shape {np.shape(value)}, the space has {shape}")
        array[0] = cast(value)

    def write_from_start(value: Any) -> None:
        write(value - start)

    return write_from_start if np.any(start) else write


def _action(space: spaces.Space[Any]) -> tuple[ActionSpec, Callable[[npt.NDArray[Any]], Any]]:
    """The spec of an action space, and what turns [action size] into the space's element."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return DiscreteActionSpec((int(space.n),)), lambda action: int(action[0]) + start
    if isinstance(space, spaces.MultiDiscrete):
        nvec, starts = space.nvec.reshape(-1), space.start
        shape, dtype = space.shape, space.dtype
        return (
            DiscreteActionSpec(tuple(int(n) for n in nvec)),
            lambda action: (action.reshape(shape) + starts).astype(dtype),
        )
    if isinstance(space, spaces.MultiBinary):
        shape, dtype = space.shape, space.dtype
        return (
            DiscreteActionSpec((2,) * int(np.prod(shape))),
            lambda action: action.reshape(shape).astype(dtype),
        )
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        try:
            spec = ContinuousActionSpec(
                tuple(space.low.reshape(-1).tolist()), tuple(space.high.reshape(-1).tolist())
            )
        except ValueError as error:
            raise UnsupportedSpaceError(f"action space {space}: {error}") from None
        shape, dtype = space.shape, space.dtype
        return spec, lambda action: action.reshape(shape).astype(dtype)
    raise UnsupportedSpaceError(
        f"action space {space} is a {type(space).__name__}; allowed: Discrete, MultiDiscrete,"
        " MultiBinary and a Box of floats"
    )
