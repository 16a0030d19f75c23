"""Environments that cost what they are told to, for benchmarks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_EPISODE_STEPS = 1000


class Synthetic(gymnasium.Env[Any, Any]):
    """Shows the same picture, or the same vector, at each step; nothing is to be won."""

    def __init__(
        self,
        shape: Sequence[int] = (115,),
        actions: int = 19,
        cpu_milliseconds: float = 0.0,
        sleep_milliseconds: float = 0.0,
    ) -> None:
        """Sets what it looks like and costs.

        Args:
          shape: Of the observation: uint8 if it has three dimensions, else float32.
          actions: To choose from.
          cpu_milliseconds: That a step computes.
          sleep_milliseconds: That it sleeps before.
        """
        if len(shape) == 3:
            self.observation_space: Any = spaces.Box(0, 255, tuple(shape), np.uint8)
        else:
            self.observation_space = spaces.Box(-1, 1, tuple(shape), np.float32)
        self.action_space = spaces.Discrete(actions)
        self.observation_space.seed(0)
        self._observation = self.observation_space.sample()
        self._cpu_seconds = cpu_milliseconds / 1000
        self._sleep_seconds = sleep_milliseconds / 1000
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Costs nothing."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observation, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleeps and computes for so long."""
        if self._sleep_seconds:
            time.sleep(self._sleep_seconds)
        if self._cpu_seconds:
            end = time.thread_time() + self._cpu_seconds
            while time.thread_time() < end:
                pass
        self._steps += 1
        return self._observation, 0.0, False, self._steps == _EPISODE_STEPS, {}
