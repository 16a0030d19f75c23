"""A cue to remember: the smallest task that needs recurrent state.

The first record of an episode shows one of several cues, `delay` records show nothing, and then
the agent is asked: it gets reward 1 if its action names the cue, else 0, and the episode
terminates. Without memory the mean return is 1 / cues.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.actor.environments.base import Environment, Observation, Transition
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec


class MemoryEnvironment(Environment):
    """Cue, delay, question. An episode has delay + 2 steps."""

    def __init__(self, *, cues: int = 4, delay: int = 20, seed: int = 0) -> None:
        """Prepares the task.

        Args:
          cues: Number of different cues, and of actions.
          delay: Records between the cue and the question.
          seed: Of the cues.

        Raises:
          ValueError: Fewer than two cues or a negative delay.
        """
        if cues < 2 or delay < 0:
            raise ValueError(
                f"memory: cues is {cues} and delay {delay}, allowed: cues of 2 or more and a"
                " delay of 0 or more"
            )
        self._delay = delay
        self._random = np.random.default_rng(seed)
        self._cues = cues
        self._cue = 0
        self._step = 0
        self._reward = np.zeros(1, np.float32)
        # One-hot cue, then whether this is the question.
        self._signal = np.zeros((1, cues + 1), np.float32)
        self._spec = EnvironmentSpec(
            observation=(TensorSpec("signal", DataType.FLOAT32, (cues + 1,)),),
            action=DiscreteActionSpec((cues,)),
        )

    @property
    def spec(self) -> EnvironmentSpec:
        """One float32 vector [cues + 1]; one discrete action."""
        return self._spec

    def reset(self) -> Observation:
        """Shows a new cue."""
        self._cue = int(self._random.integers(self._cues))
        self._step = 0
        self._signal.fill(0.0)
        self._signal[0, self._cue] = 1.0
        return (self._signal,)

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        """Passes one record; at the question, rewards the action."""
        asked = self._step > self._delay
        self._reward[0] = float(asked and int(action[0, 0]) == self._cue)
        self._step += 1
        self._signal.fill(0.0)
        self._signal[0, -1] = float(self._step == self._delay + 1)
        return Transition((self._signal,), self._reward, terminated=asked, truncated=False)
