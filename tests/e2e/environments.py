"""Environments that the end-to-end tests train on, by `tests.e2e.environments:name`.

All observe noise, end after a few steps (by turns terminated and truncated) and are replaced, which
an actor's log tells, if they are given an action from outside of their space.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from services.actor.environments.base import Environment, Observation, Transition
from services.actor.environments.memory import MemoryEnvironment
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec


class NoiseEnvironment(gymnasium.Env[Any, Any]):
    """Samples of the observation space; the reward is 1."""

    def __init__(
        self, observation: spaces.Space[Any], action: spaces.Space[Any], seed: int
    ) -> None:
        self.observation_space = observation
        self.action_space = action
        observation.seed(seed)
        self._episodes = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._episodes += 1
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        self._steps += 1
        ends = self._steps == 5 + self._episodes % 3
        terminated = ends and self._episodes % 2 == 0
        observation = self.observation_space.sample()
        return observation, 1.0, terminated, ends and not terminated, {}


def dictionary(seed: int) -> NoiseEnvironment:
    observation = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (12, 10, 3), np.uint8),
            "inner": spaces.Dict({"vector": spaces.Box(-1, 1, (5,), np.float32)}),
            "category": spaces.Discrete(6, start=2),
        }
    )
    return NoiseEnvironment(observation, spaces.Discrete(3, start=-1), seed)


def tuples(seed: int) -> NoiseEnvironment:
    observation = spaces.Tuple(
        (
            spaces.MultiBinary(11),
            spaces.MultiDiscrete([3, 4]),
            spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        )
    )
    return NoiseEnvironment(observation, spaces.MultiDiscrete([2, 5, 3], start=[0, 1, -2]), seed)


def boxes(seed: int) -> NoiseEnvironment:
    """Actions bounded on both sides, on none and on one."""
    low = np.array([[-2.0, 10.0], [-np.inf, 0.0]], np.float32)
    high = np.array([[3.0, 10.5], [np.inf, np.inf]], np.float32)
    return NoiseEnvironment(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(low, high), seed)


def text(seed: int) -> NoiseEnvironment:
    observation = spaces.Dict(
        {
            "position": spaces.Box(-1, 1, (2,), np.float32),
            "words": spaces.Dict({"first": spaces.Text(8)}),
        }
    )
    return NoiseEnvironment(observation, spaces.Discrete(2), seed)


class StackedPair(Environment):
    """Two agents that see 4 stacked images each. Every step adds a byte to `journal`."""

    def __init__(self, journal: str) -> None:
        self._journal = pathlib.Path(journal)
        self._steps = 0
        self._image = np.zeros((2, 24, 24, 1), np.uint8)

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(
            (TensorSpec("image", DataType.UINT8, (24, 24, 1), stack=4),),
            DiscreteActionSpec((4,)),
            agents=2,
        )

    def reset(self) -> Observation:
        self._steps = 0
        return (self._image,)

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        assert action.shape == (2, 1)
        assert set(action[:, 0].tolist()) <= {0, 1, 2, 3}
        with self._journal.open("ab") as file:
            file.write(b".")
        self._steps += 1
        self._image += np.uint8(7)
        done = self._steps == 9
        return Transition((self._image,), np.ones(2, np.float32), done, False)


class Copied(StackedPair):
    """Each agent's reward is the other one's action."""

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        transition = super().step(action)
        return dataclasses.replace(transition, reward=action[::-1, 0].astype(np.float32))


class CyclingMemory(MemoryEnvironment):
    """Shows its cues in turn, and rewards each pair of cue and answer differently."""

    def __init__(self) -> None:
        super().__init__()
        self._episode = -1

    def reset(self) -> Observation:
        super().reset()
        self._episode += 1
        self._cue = self._episode % self._cues
        self._signal.fill(0.0)
        self._signal[0, self._cue] = 1.0
        return (self._signal,)

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        transition = super().step(action)
        if transition.terminated:
            self._reward[0] = (7 * self._cue + 5 * int(action[0, 0]) + 3) % 11
        return transition
