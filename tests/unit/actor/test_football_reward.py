"""Checkpoints by hand: ten distances to the goal, 0.99, 0.901, ... 0.368, 0.279, 0.19."""

from __future__ import annotations

import pytest

from services.actor.environments.football.game import View
from services.actor.environments.football.reward import Checkpoints, scoring

NOBODY, FIRST_PLAYER, SECOND_PLAYER, UNCONTROLLED = -1, 1, 2, 3


def seen(x: float, owner: int, team: int = 0) -> View:
    """What a team sees whose agents are players 1 and 2: the ball at x in front of the goal."""
    return View(
        left_team=[],
        left_direction=[],
        left_tired=[],
        right_team=[],
        right_direction=[],
        right_tired=[],
        ball=[x, 0.0, 0.0],
        ball_direction=[0.0, 0.0, 0.0],
        ball_owned_team=-1 if owner == NOBODY else team,
        ball_owned_player=owner,
        active=[FIRST_PLAYER, SECOND_PLAYER],
        game_mode=0,
        score=(0, 0),
        steps_left=400,
        duration_steps=400,
    )


def begun(*views: View, shared: bool) -> Checkpoints:
    checkpoints = Checkpoints(2 * len(views), shared)
    checkpoints.reset(views)
    return checkpoints


def collected(checkpoints: Checkpoints, *views: View, score_change: int = 0) -> list[float]:
    agents = 2 * len(views)
    reward = scoring(score_change, 2, agents - 2)
    checkpoints.add(reward, views)
    return [float(x) for x in reward]


def test_each_agent_collects_its_own() -> None:
    checkpoints = begun(seen(0.62, NOBODY), shared=False)
    # 0.38 away: 0.457 is passed, 0.368 is not.
    assert collected(checkpoints, seen(0.62, FIRST_PLAYER)) == pytest.approx([0.7, 0.0])
    assert collected(checkpoints, seen(0.62, SECOND_PLAYER)) == pytest.approx([0.0, 0.7])
    assert collected(checkpoints, seen(0.7, UNCONTROLLED)) == [0.0, 0.0]
    assert collected(checkpoints, seen(0.7, FIRST_PLAYER)) == pytest.approx([0.1, 0.0])
    assert collected(checkpoints, seen(1.0, NOBODY), score_change=1) == pytest.approx([1.2, 1.3])


def test_a_team_collects_each_once_and_all_of_its_agents_get_it() -> None:
    checkpoints = begun(seen(0.0, NOBODY), shared=True)
    assert collected(checkpoints, seen(0.0, FIRST_PLAYER)) == [0.0, 0.0]
    assert collected(checkpoints, seen(0.62, FIRST_PLAYER)) == pytest.approx([0.7, 0.7])
    assert collected(checkpoints, seen(0.62, SECOND_PLAYER)) == [0.0, 0.0]
    assert collected(checkpoints, seen(0.9, NOBODY)) == [0.0, 0.0]
    assert collected(checkpoints, seen(0.9, FIRST_PLAYER, team=1)) == [0.0, 0.0]
    assert collected(checkpoints, seen(0.7, UNCONTROLLED)) == pytest.approx([0.1, 0.1])
    assert collected(checkpoints, seen(1.0, NOBODY), score_change=1) == pytest.approx([1.2, 1.2])


def test_a_team_collects_none_for_where_the_ball_lies_at_the_beginning() -> None:
    checkpoints = begun(seen(0.62, NOBODY), shared=True)
    assert collected(checkpoints, seen(0.62, FIRST_PLAYER)) == [0.0, 0.0]
    assert collected(checkpoints, seen(0.7, FIRST_PLAYER)) == pytest.approx([0.1, 0.1])
    checkpoints.reset((seen(0.62, NOBODY),))
    assert collected(checkpoints, seen(0.82, SECOND_PLAYER)) == pytest.approx([0.3, 0.3])


def test_teams_share_nothing() -> None:
    checkpoints = begun(seen(0.0, NOBODY), seen(0.0, NOBODY), shared=True)
    left = seen(0.62, FIRST_PLAYER)
    right = seen(-0.62, FIRST_PLAYER, team=1)
    assert collected(checkpoints, left, right) == pytest.approx([0.7, 0.7, 0.0, 0.0])
    left, right = seen(-0.62, SECOND_PLAYER, team=1), seen(0.62, SECOND_PLAYER)
    assert collected(checkpoints, left, right) == pytest.approx([0.0, 0.0, 0.7, 0.7])
    # The right team scores: it gets the other three, the left one only loses the goal.
    scored = collected(checkpoints, seen(-1.0, NOBODY), seen(1.0, NOBODY), score_change=-1)
    assert scored == pytest.approx([-1.0, -1.0, 1.3, 1.3])
