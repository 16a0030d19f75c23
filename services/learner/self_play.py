"""Self-play: some agents of each environment are played by earlier policies of the run.

Stands between the inference loop and the agent. Against its own past a policy cannot win by what
only its present self falls for: fictitious self-play (Heinrich, Lanctot, Silver 2015, ICML).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.learner.inference import Arrays, Decisions
from services.learner.leases import LeaseTable
from services.learner.roles import Role
from services.shared.config import SelfPlayConfig

_NEWEST = -1


class PolicyWithPast(Protocol):
    """What `services.learner.agent.Agent` offers."""

    @property
    def version(self) -> int:
        """Updates that the newest parameters have seen."""

    @property
    def past_policies(self) -> int:
        """How many there are to choose from."""

    def act(
        self,
        slots: npt.NDArray[np.int64],
        observation: Arrays,
        previous_action: npt.NDArray[np.generic],
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        state: Arrays,
        past: int | None = None,
    ) -> Decisions:
        """See `inference.Policy`; `past` is the number of a past policy, None the newest one."""


class SelfPlay:
    """An `inference.Policy` that lets past policies act for the slots of opponents.

    An environment's opponents are one policy, chosen anew for each episode.
    """

    def __init__(
        self, agent: PolicyWithPast, config: SelfPlayConfig, leases: LeaseTable, seed: int
    ) -> None:
        """Plays for all slots.

        Args:
          agent: The policies.
          config: How often the newest one is the opponent.
          leases: Which slots are opponents', and of which environment.
          seed: Of the choices.
        """
        self._agent = agent
        self._newest_share = config.newest_share
        self._leases = leases
        self._random = np.random.default_rng(seed)
        # By the environment's first slot.
        self._opponent = np.full(len(leases.roles), _NEWEST, np.int64)

    @property
    def version(self) -> int:
        """Of the newest policy, which is the one that is trained."""
        return self._agent.version

    def act(
        self,
        slots: npt.NDArray[np.int64],
        observation: Arrays,
        previous_action: npt.NDArray[np.generic],
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        state: Arrays,
    ) -> Decisions:
        """See `inference.Policy`."""
        plays = self._leases.roles[slots] == Role.OPPONENT
        environment = self._leases.environments[slots]
        begun = np.unique(environment[plays & first])
        self._opponent[begun] = self._choose(len(begun))
        policy = np.where(plays, self._opponent[environment], _NEWEST)
        parts = []
        for number in np.unique(policy).tolist():
            rows = np.flatnonzero(policy == number)
            decisions = self._agent.act(
                slots[rows],
                tuple(tensor[rows] for tensor in observation),
                previous_action[rows],
                reward[rows],
                first[rows],
                tuple(tensor[rows] for tensor in state),
                past=None if number == _NEWEST else number,
            )
            parts.append((rows, decisions))
        return parts[0][1] if len(parts) == 1 else _joined(parts)

    def _choose(self, count: int) -> npt.NDArray[np.int64]:
        past = self._random.integers(self._agent.past_policies, size=count)
        return np.where(self._random.random(count) < self._newest_share, _NEWEST, past)


def _joined(parts: list[tuple[npt.NDArray[np.int64], Decisions]]) -> Decisions:
    """Puts the decisions of several policies into the order of their rows."""
    rows, decisions = zip(*parts, strict=True)
    order = np.argsort(np.concatenate(rows))
    action, parameters, value, states = zip(*decisions, strict=True)
    return Decisions(
        np.concatenate(action)[order],
        np.concatenate(parameters)[order],
        np.concatenate(value)[order],
        tuple(np.concatenate(tensors)[order] for tensors in zip(*states, strict=True)),
    )
