"""The interface between the actor's workers and an environment.

`services.actor.worker` steps environments through it; `gym` and `football` implement it, and
so can a user's own `module:factory`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import DiscreteActionSpec, EnvironmentSpec

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


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the learner answered to one agent's record.

    Attributes:
      action: [A], in the environment's units.
      value: Of the situation.
      policy: float32 [P], see `ActResponse.policy`.
      kind: What `policy` holds.
    """

    action: npt.NDArray[np.generic]
    value: float
    policy: npt.NDArray[np.float32]
    kind: inference_pb2.PolicyKind


Positions = dict[str, list[tuple[float, float]]]
"""Places by what is there: x from 0 to 1 along the field, y from 0 to 1 across it, from its top."""


class PictureError(RuntimeError):
    """An environment that cannot be seen here; the message says what is missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """What there is to say of an episode beside its return.

    Attributes:
      values: For each agent finite numbers by name; their means are reported.
      level: The scenario, level or game that was played; empty if there is nothing to tell apart.
    """

    values: tuple[Mapping[str, float], ...]
    level: str = ""


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

    def episode_info(self) -> EpisodeInfo:
        """Of the episode that has just ended, before the next reset; asked for in evaluation."""
        return EpisodeInfo(({},) * self.spec.agents)

    # What recordings of evaluation episodes are made of.

    @property
    def action_names(self) -> tuple[str, ...]:
        """Of the values of a single choice, or of the elements of any other action."""
        action = self.spec.action
        if isinstance(action, DiscreteActionSpec) and action.size == 1:
            return tuple(map(str, range(action.num_values[0])))
        return tuple(map(str, range(action.size)))

    def picture(self) -> npt.NDArray[np.uint8]:
        """What people would see now: uint8 [height, width, 3], the same size each time.

        Raises:
          PictureError: There is no picture to be had; the message says what is missing.
        """
        raise PictureError(f"{type(self).__name__} makes no picture of itself")

    def positions(self) -> Positions:
        """Where things are on a field now, for heat maps; empty if there is no field."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Frees what the environment holds; called by another thread than the steps.

        At the end of the actor all environments of a worker have 2 s together, and each is
        waited for 0.5 s at most; what they started is killed after it.
        """
