"""An environment whose every step is counted where no kill can undo it."""

from __future__ import annotations

import mmap
import os
import pathlib
import time

import numpy as np
import numpy.typing as npt

from services.actor.environments.base import Environment, Observation, Transition
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec

SPEC = EnvironmentSpec((TensorSpec("mark", DataType.FLOAT32, (2,)),), DiscreteActionSpec((2,)))
HUGE_FILE = "huge"


class CountedEnvironment(Environment):
    """Shows its own number and that of the record; the reward is 1.

    Each instance has a file of its own in `folder`, named after its number, with the steps that
    it has taken as an int64: shared memory, which a killed process leaves as it is.
    """

    def __init__(self, *, folder: str, length: int = 20, pause_seconds: float = 0.001) -> None:
        """Takes the next free number.

        Args:
          folder: Where the files are; must exist.
          length: Steps of an episode, terminated and truncated in turns.
          pause_seconds: Of each step.
        """
        self._folder = pathlib.Path(folder)
        self._length = length
        self._pause_seconds = pause_seconds
        self._number, self._steps = self._take_number()
        self._records = self._at = self._episodes = 0
        self._mark = np.zeros((1, 2), np.float32)

    @property
    def spec(self) -> EnvironmentSpec:
        """One vector of two."""
        return SPEC

    def reset(self) -> Observation:
        """A record, but no step."""
        self._at = 0
        self._episodes += 1
        return self._observe()

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        """Counts a step; while there is a file `huge`, the reward is as large as float32 goes."""
        time.sleep(self._pause_seconds)
        self._at += 1
        self._steps[0] += 1
        huge = (self._folder / HUGE_FILE).exists()
        reward = np.full(1, np.finfo(np.float32).max if huge else 1.0, np.float32)
        ends = self._at == self._length
        terminated = ends and self._episodes % 2 == 0
        return Transition(self._observe(), reward, terminated, ends and not terminated)

    def _observe(self) -> Observation:
        self._records += 1
        self._mark[0] = self._number, self._records
        return (self._mark,)

    def _take_number(self) -> tuple[int, npt.NDArray[np.int64]]:
        number = 1
        while True:
            try:
                fd = os.open(self._folder / f"{number}.steps", os.O_RDWR | os.O_CREAT | os.O_EXCL)
                break
            except FileExistsError:
                number += 1
        os.ftruncate(fd, 8)
        steps = np.frombuffer(mmap.mmap(fd, 8), np.int64)
        os.close(fd)
        return number, steps


def steps_taken(folder: pathlib.Path) -> dict[int, int]:
    """Steps of each instance by its number."""
    return {int(path.stem): int(np.fromfile(path, np.int64)[0]) for path in folder.glob("*.steps")}


def counted(**arguments: object) -> CountedEnvironment:
    """For `actor.environment`."""
    return CountedEnvironment(**arguments)  # type: ignore[arg-type]
