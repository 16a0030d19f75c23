"""Rewards of the football agents: goals, and checkpoints on the way to them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.actor.environments.football.game import View

REWARDS = ("scoring", "scoring,checkpoints", "scoring,team_checkpoints")

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

    A team's players collect nearly as much by passing the ball around as a goal would give, and
    where an episode begins near the goal most of it at once. If the team shares its checkpoints,
    all of its agents get each one once, whoever has the ball, and none for where the ball lies at
    the beginning: only bringing it nearer pays.
    """

    def __init__(self, agents: int, shared: bool) -> None:
        """Prepares; `reset` comes before `add`.

        Args:
          agents: Of both teams.
          shared: A team collects together.
        """
        self._agents = agents
        self._shared = shared

    def reset(self, views: tuple[View, ...]) -> None:
        """Begins an episode.

        Args:
          views: See `add`.
        """
        self._collected = [0] * self._agents
        if self._shared:
            first = 0
            for view in views:
                self._collected[first] = _passed(view)
                first += len(view.active)

    def add(self, reward: npt.NDArray[np.float32], views: tuple[View, ...]) -> None:
        """Adds to the reward for scoring.

        Args:
          reward: float32 [agents], changed in place.
          views: After the step, as each team with agents sees it, in the agents' order.
        """
        first = 0
        for view in views:
            has_ball = view.ball_owned_team == 0
            after = first + len(view.active)
            if self._shared:
                self._collect(reward, slice(first, after), view, has_ball)
            else:
                for agent, player in enumerate(view.active, first):
                    owns = has_ball and view.ball_owned_player == player
                    self._collect(reward, slice(agent, agent + 1), view, owns)
            first = after

    def _collect(
        self, reward: npt.NDArray[np.float32], agents: slice, view: View, has_ball: bool
    ) -> None:
        collected = self._collected[agents.start]
        if reward[agents.start] == 1:
            reward[agents] += _CHECKPOINT_REWARD * (_CHECKPOINTS - collected)
            self._collected[agents.start] = _CHECKPOINTS
        elif has_ball and (passed := _passed(view)) > collected:
            for _ in range(passed - collected):  # one by one, as gfootball rounds
                reward[agents] += _CHECKPOINT_REWARD
            self._collected[agents.start] = passed


def _passed(view: View) -> int:
    """How many of the checkpoints the ball is past."""
    distance = ((view.ball[0] - 1) ** 2 + view.ball[1] ** 2) ** 0.5
    thresholds = (0.99 - 0.8 / (_CHECKPOINTS - 1) * index for index in range(_CHECKPOINTS))
    return sum(distance <= threshold for threshold in thresholds)
