"""Environments for the actor's tests: they say who they are, and break on demand."""

from __future__ import annotations

import ctypes
import itertools
import os
import pathlib
import signal
import subprocess
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from services.actor.environments.base import Environment, Observation, Transition
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec

_made = itertools.count()


class MarkedEnvironment(Environment):
    """Shows float32 (number in its process, episode, step, process id) and one uint8.

    Episodes take `length` steps and end in turns by termination and truncation. `faults` says
    what the environments with these numbers ("*": all) do at their step `at`.
    """

    def __init__(
        self,
        *,
        length: int = 5,
        faults: dict[str, str] | None = None,
        at: int = 8,
        agents: int = 1,
    ) -> None:
        self.number = next(_made)
        self._length = length
        faults = faults or {}
        self._fault = faults.get(str(self.number), faults.get("*", ""))
        self._at = at
        self._steps = 0
        self._floats = np.zeros((agents, 4), np.float32)
        self._byte = np.full((agents, 3), 7, np.uint8)
        self._floats[:, 0] = self.number
        self._floats[:, 3] = os.getpid()
        self._spec = EnvironmentSpec(
            # An odd number of bytes first: the floats behind it are not aligned.
            (TensorSpec("byte", DataType.UINT8, (3,)), TensorSpec("mark", DataType.FLOAT32, (4,))),
            DiscreteActionSpec((3, 2)),
            agents=agents,
        )

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    def reset(self) -> Observation:
        self._floats[:, 1] += 1
        self._floats[:, 2] = 0
        return self._byte, self._floats

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        assert action.shape == (self._spec.agents, 2)
        assert action.dtype == np.int32
        self._steps += 1
        self._floats[:, 2] += 1
        reward = np.ones(self._spec.agents, np.float32)
        if self._steps == self._at and self._fault:
            self._break(reward)
        done = self._floats[0, 2] == self._length
        terminated = bool(done and self._floats[0, 1] % 2 == 1)
        return Transition((self._byte, self._floats), reward, terminated, done and not terminated)

    def _break(self, reward: npt.NDArray[np.float32]) -> None:
        if self._fault == "raise":
            raise RuntimeError("broken on purpose")
        if self._fault == "exit":
            raise SystemExit(3)
        if self._fault == "hang":
            time.sleep(2.0)  # long enough to be given up, and then it comes back
        elif self._fault == "hold":
            ctypes.PyDLL(None).sleep(3600)  # with the interpreter's lock
        elif self._fault == "crash":
            ctypes.string_at(0)
        elif self._fault.startswith("status"):
            os._exit(int(self._fault.split()[1]))
        elif self._fault == "nan observation":
            self._floats[-1, 2] = np.nan
        elif self._fault == "nan reward":
            reward[-1] = np.nan


class SimulatedEnvironment(MarkedEnvironment):
    """Starts two simulators that no process group and no session tells from a stranger.

    Each one's process id is the name of a file in `folder`; `close` adds "closed" to it, and
    leaves the simulators running.
    """

    def __init__(self, *, folder: str, closes_in: float = 0.0) -> None:
        super().__init__()
        self._closes_in = closes_in
        # The second is an orphan from its start.
        script = f"(setsid sleep 600 & echo > {folder}/$!); exec sleep 600"
        process = subprocess.Popen(["sh", "-c", script], start_new_session=True, env={})
        self._file = pathlib.Path(folder) / str(process.pid)
        self._file.touch()

    def close(self) -> None:
        time.sleep(self._closes_in)
        self._file.write_text("closed")


class NanEnvironment(MarkedEnvironment):
    """Shows nothing but NaN from the start."""

    def reset(self) -> Observation:
        return self._byte, self._floats * np.nan


class NoopEnvironment(Environment):
    """Four floats, no work, no end: what is measured is not the environment."""

    def __init__(self) -> None:
        self._transition = Transition(
            (np.zeros((1, 4), np.float32),), np.zeros(1, np.float32), False, False
        )

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(
            (TensorSpec("zeros", DataType.FLOAT32, (4,)),), DiscreteActionSpec((2,))
        )

    def reset(self) -> Observation:
        return self._transition.observation

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        return self._transition


def marked(**arguments: Any) -> MarkedEnvironment:
    return MarkedEnvironment(**arguments)


def simulated(**arguments: Any) -> SimulatedEnvironment:
    return SimulatedEnvironment(**arguments)


def nan_start() -> NanEnvironment:
    return NanEnvironment()


def unstartable() -> Environment:
    raise RuntimeError("the simulator's licence has expired")


def crashing_start() -> Environment:
    signal.raise_signal(signal.SIGSEGV)  # in this thread, as a real fault would
    raise AssertionError


def hanging_start() -> Environment:
    time.sleep(3600)
    raise AssertionError


def noop() -> NoopEnvironment:
    return NoopEnvironment()
