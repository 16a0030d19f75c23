"""Stand-ins for `gym` and `cv2` while gfootball is imported.

gfootball subclasses a few of gym's classes, registers its scenarios with it and imports OpenCV for
rendering. The direct path uses none of that; the gym that pip would pick does not work with
gfootball, and OpenCV is 150 MB. So where they are not installed, gfootball sees these modules
instead. They are enough for its own wrappers, too: the tests compare against them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np


class Space:
    """A space that holds only what gfootball's wrappers read."""

    def __init__(
        self,
        low: Any = None,
        high: Any = None,
        shape: tuple[int, ...] | None = None,
        dtype: Any = np.float32,
    ) -> None:
        self.shape = np.shape(low) if shape is None else shape
        self.dtype = np.dtype(dtype)
        self.low = np.broadcast_to(np.asarray(low, self.dtype), self.shape)
        self.high = np.broadcast_to(np.asarray(high, self.dtype), self.shape)


class Discrete(Space):
    """gym.spaces.Discrete."""

    def __init__(self, n: int) -> None:
        super().__init__(0, n - 1, (), np.int64)
        self.n = n


class MultiDiscrete(Space):
    """gym.spaces.MultiDiscrete; gfootball takes its length as the number of players."""

    def __init__(self, nvec: list[int]) -> None:
        super().__init__(0, np.asarray(nvec) - 1, (len(nvec),), np.int64)
        self.nvec = np.asarray(nvec)

    def __len__(self) -> int:
        return len(self.nvec)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.nvec, dtype)


class Env:
    """gym.Env."""

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return self


class Wrapper(Env):
    """gym.Wrapper."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return self.env.unwrapped

    def reset(self) -> Any:
        """Begins an episode."""
        return self.env.reset()

    def step(self, action: Any) -> Any:
        """Steps, as gym did before it told truncation from termination."""
        return self.env.step(action)


class ObservationWrapper(Wrapper):
    """gym.ObservationWrapper."""

    def reset(self) -> Any:
        """Begins an episode."""
        return self.observation(self.env.reset())

    def step(self, action: Any) -> Any:
        """Steps and converts the observation."""
        observation, reward, done, info = self.env.step(action)
        return self.observation(observation), reward, done, info


class RewardWrapper(Wrapper):
    """gym.RewardWrapper."""

    def step(self, action: Any) -> Any:
        """Steps and converts the reward."""
        observation, reward, done, info = self.env.step(action)
        return observation, self.reward(reward), done, info


def _ignore(*arguments: Any, **keywords: Any) -> None:
    """The registration of gfootball's scenarios, which nobody looks up here."""


def _gym_modules() -> dict[str, types.ModuleType]:
    modules = {
        name: types.ModuleType(name)
        for name in ("gym", "gym.spaces", "gym.envs", "gym.envs.registration")
    }
    gym, spaces, envs, registration = modules.values()
    classes = (Env, Wrapper, ObservationWrapper, RewardWrapper)
    vars(gym).update({c.__name__: c for c in classes}, spaces=spaces, envs=envs)
    vars(spaces).update(Box=Space, Discrete=Discrete, MultiDiscrete=MultiDiscrete)
    vars(envs).update(registration=registration)
    vars(registration).update(register=_ignore)
    return modules


def _missing(name: str) -> bool:
    return name not in sys.modules and importlib.util.find_spec(name) is None


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Within it, gym and cv2 can be imported, as stand-ins unless they are really installed.

    Afterwards they are as absent as before, for whoever else asks for them in this process.
    """
    modules: dict[str, types.ModuleType] = {}
    if _missing("gym"):
        modules |= _gym_modules()
    if _missing("cv2"):
        modules["cv2"] = types.ModuleType("cv2")
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
