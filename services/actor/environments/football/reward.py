"""Rewards of the football agents: goals, and checkpoints on the way to them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.actor.environments.football.game import View

REWARDS = ("scoring", "scoring,checkpoints")

_CHECKPOINTS = 10
_CHECKPOINT_REWARD = 0.1


def scoring(score_change: int, left_players: int, right_players: int) -> npt.NDArray[np.float32]:
    """+1 for each agent whose team scores, -1 for each one of the other team: float32 [agents]."""
    return np.array(
        [score_change] * left_players + [-score_change] * right_players, dtype=np.float32
    )


class Checkpoints:
    """A reward for bringing the ball nearer to the other goal (arXiv 1907.11180, section 3.3).

    An agent gets 0.1 for each of ten distances, from 0.99 to 0.19, that it is the first time in an
    episode nearer than with the ball. Whoever scores gets what is left.
    """

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self.reset()

    def reset(self) -> None:
        """Begins an episode."""
        self._collected = [0] * self._agents

    def add(self, reward: npt.NDArray[np.float32], views: tuple[View, ...]) -> None:
        """Adds to the reward for scoring.

        Args:
          reward: float32 [agents], changed in place.
          views: After the step, as each team with agents sees it, in the agents' order.
        """
        agent = 0
        for view in views:
            distance = ((view.ball[0] - 1) ** 2 + view.ball[1] ** 2) ** 0.5
            for active in view.active:
                if reward[agent] == 1:
                    reward[agent] += _CHECKPOINT_REWARD * (_CHECKPOINTS - self._collected[agent])
                    self._collected[agent] = _CHECKPOINTS
                elif view.ball_owned_team == 0 and view.ball_owned_player == active:
                    self._collect(reward, agent, distance)
                agent += 1

    def _collect(self, reward: npt.NDArray[np.float32], agent: int, distance: float) -> None:
        while self._collected[agent] < _CHECKPOINTS:
            threshold = 0.99 - 0.8 / (_CHECKPOINTS - 1) * self._collected[agent]
            if distance > threshold:
                break
            reward[agent] += _CHECKPOINT_REWARD
            self._collected[agent] += 1
