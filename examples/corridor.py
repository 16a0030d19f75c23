"""An environment of one's own: a corridor with a prize at its right end."""

from typing import Any

import gymnasium
from gymnasium import spaces


class Corridor(gymnasium.Env[Any, Any]):
    """Steps left or right; both ends end the episode, the right one gives 1."""

    def __init__(self, length: int = 9, time_limit: int = 50) -> None:
        """Sets the number of places, and the steps after which an episode is cut off."""
        self.observation_space = spaces.Discrete(length)
        self.action_space = spaces.Discrete(2)
        self._last, self._time_limit = length - 1, time_limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        """Begins somewhere between the ends."""
        super().reset(seed=seed)
        self._place, self._steps = int(self.np_random.integers(1, self._last)), 0
        return self._place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Moves left (0) or right (1)."""
        self._place += 1 if action == 1 else -1
        self._steps += 1
        terminated = self._place in (0, self._last)
        truncated = self._steps >= self._time_limit
        return self._place, float(self._place == self._last), terminated, truncated, {}
