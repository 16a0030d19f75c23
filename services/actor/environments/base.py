"""The interface between the actor's workers and an environment.

`services.actor.worker` steps environments through it; `gym` and `football` implement it, and
so can a user's own `module:factory`.
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
import numpy.typing as npt

from services.shared.specs import EnvironmentSpec

Observation = tuple[npt.NDArray[np.generic], ...]
"""One array [agents, *storage_shape] for each tensor of the spec, in its order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Transition:
    """What one step gave.

    Attributes:
      observation: After the step; of the final state if the episode ended.
      reward: float32 [agents].
      terminated: The task ended: nothing is to be gained afterwards.
      truncated: A time limit or the like cut the episode: the future still has a value.
    """

    observation: Observation
    reward: npt.NDArray[np.float32]
    terminated: bool
    truncated: bool


class Environment(abc.ABC):
    """An environment with one or several agents that act in lockstep."""

    @property
    @abc.abstractmethod
    def spec(self) -> EnvironmentSpec:
        """What the environment shows and takes; it never changes."""

    @abc.abstractmethod
    def reset(self) -> Observation:
        """Begins an episode. The arrays may be reused by the next call."""

    @abc.abstractmethod
    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        """Steps all agents.

        Args:
          action: [agents, action size], int32 or float32 as the spec says, in the
            environment's units.

        Returns:
          The transition; its arrays may be reused by the next call.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Frees what the environment holds; called by another thread than the steps.

        At the end of the actor all environments of a worker have 2 s together, and each is
        waited for 0.5 s at most; what they started is killed after it.
        """
