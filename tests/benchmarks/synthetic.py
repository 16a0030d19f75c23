"""An environment that costs 2 ms of CPU time a step, for benchmarks."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class TwoMilliseconds(gymnasium.Env[Any, Any]):
    """Shows 115 zeros; episodes have 100 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (115,), np.float32)
        self.action_space = spaces.Discrete(19)
        self._nothing = np.zeros(115, np.float32)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Costs nothing."""
        super().reset(seed=seed)
        self._steps = 0
        return self._nothing, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Computes for 2 ms."""
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        self._steps += 1
        return self._nothing, 0.0, False, self._steps == 100, {}
