"""The egocentric vector against a slow reference that knows the game by `float` alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from services.actor.environments.football import FootballEnvironment

Floats = npt.NDArray[np.float64]


def make_environment(
    representation: str, scenario: str, left: int, right: int
) -> FootballEnvironment:
    return FootballEnvironment(
        scenario=scenario,
        representation=representation,
        left_players=left,
        right_players=right,
        seed=9,
    )


def reference(row: npt.NDArray[np.generic], has_ball: bool) -> Floats:
    """From simple115v2's elements and what `float` appends.

    Args:
      row: [149], of one agent.
      has_ball: Its player owns the ball.
    """
    values = row.astype(np.float64)
    team, moves, others, other_moves = (values[i : i + 22].reshape(11, 2) for i in (0, 22, 44, 66))
    ball, ball_move, owner, mode = values[88:91], values[91:94], values[94:97], values[108:115]
    player = int(np.argmax(values[97:108]))
    sticky, tired, game = values[115:125], values[125:136], values[147:149]
    place = team[player]
    goal = np.array([1.0, 0.0]) - place
    has = [has_ball, owner[1] and not has_ball, owner[2], owner[0]]
    parts = [
        [*place, *(50 * moves[player]), tired[player], *sticky],
        [*(ball[:2] - place), ball[2], *(ball_move * [50, 50, 1]), *map(float, has)],
        [*goal, np.sqrt(goal @ goal)],
    ]
    for places, points, movement in ((10, team, moves), (11, others, other_moves)):
        # -1 stands for players that there are not.
        there = [i for i in range(11) if not (points[i] == -1).all()]
        if places == 10:
            there.remove(player)
        there.sort(key=lambda i: (np.linalg.norm(points[i] - place), *(points[i] - place)))
        seen = np.zeros((places, 5))
        for row_of, i in zip(seen, there, strict=False):
            row_of[:] = [1.0, *(points[i] - place), *(50 * movement[i])]
        parts.append(list(seen.ravel()))
    return np.concatenate([*parts, mode, game]).astype(np.float64)


@pytest.mark.parametrize(
    ("scenario", "left", "right"),
    [("academy_3_vs_1_with_keeper", 3, 0), ("11_vs_11_easy_stochastic", 2, 2)],
)
def test_equals_the_reference(scenario: str, left: int, right: int) -> None:
    full = make_environment("float", scenario, left, right)
    own = make_environment("egocentric", scenario, left, right)
    rng = np.random.default_rng(3)
    holders, done = 0, True
    for _ in range(150):
        if done:
            known, seen, done = full.reset()[0], own.reset()[0], False
        else:
            action = rng.integers(0, 19, (left + right, 1)).astype(np.int32)
            transition = full.step(action)
            known, done = transition.observation[0], transition.terminated
            seen = own.step(action).observation[0]
        assert seen.dtype == np.float32
        assert seen.shape == (left + right, 142)
        views = full._game.views()
        for agent, (row, result) in enumerate(zip(known, seen, strict=True)):
            view = views[0] if agent < left or not left else views[1]
            player = view.active[agent % left]
            has_ball = view.ball_owned_team == 0 and view.ball_owned_player == player
            holders += has_ball
            np.testing.assert_allclose(result, reference(row, has_ball), rtol=1e-5, atol=1e-5)
    assert holders > 10
    full.close()
    own.close()


def test_kick_off_by_hand() -> None:
    environment = make_environment("egocentric", "academy_3_vs_1_with_keeper", 3, 0)
    environment.reset()
    # After a step the agents are the three attackers. They run, and soon the first has the ball.
    for _ in range(4):
        row = environment.step(np.full((3, 1), 5, np.int32)).observation[0][0]
    assert row[:2] == pytest.approx([0.62, 0.0], abs=0.02)
    assert row[15:17] == pytest.approx([0.01, 0.0], abs=0.02)
    assert row[21:25].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert row[25:28] == pytest.approx([0.38, 0.0, 0.38], abs=0.02)
    # Two teammates in front at the sides, then the own keeper far behind; nobody else.
    assert row[[28, 33, 38, 43]].tolist() == [1.0, 1.0, 1.0, 0.0]
    assert np.abs(row[[29, 34]]) == pytest.approx([0.1, 0.1], abs=0.03)
    assert sorted(row[[30, 35]].tolist()) == pytest.approx([-0.2, 0.2], abs=0.02)
    assert row[39] < -1.5
    # The defender, then the keeper in front of the goal.
    assert row[[78, 83, 88]].tolist() == [1.0, 1.0, 0.0]
    assert row[[79, 84]] == pytest.approx([0.13, 0.39], abs=0.04)
    environment.close()


def test_a_dribbled_ball_moves_less_upwards_than_forwards() -> None:
    """Networks that see the shaking of a ball on the ground magnified learn from little else."""
    environment = make_environment("egocentric", "academy_3_vs_1_with_keeper", 3, 0)
    environment.reset()
    rows = [environment.step(np.full((3, 1), 5, np.int32)).observation[0][0] for _ in range(25)]
    running = np.array([row for row in rows if row[21] == 1.0 and row[2] > 0.4])
    assert len(running) > 10
    assert np.abs(running[:, 20]).max() < 0.15
    assert running[:, 18].mean() > 0.3
    # A shot rises by decimetres a step.
    shot = [environment.step(np.full((3, 1), 12, np.int32)).observation[0][0] for _ in range(12)]
    rise = max(row[20] for row in shot)
    assert 0.1 < rise < 2.0
    environment.close()
