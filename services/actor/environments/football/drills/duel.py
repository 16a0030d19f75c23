"""One player and a keeper on each side: a small game for self-play.

In each episode one side attacks from somewhere before the other's goal, each as often; the other
one's player is somewhere about. Both may score until the time is over or the ball leaves the field.
"""

from __future__ import annotations

import random
from typing import Any

from gfootball.scenarios import Team, e_PlayerRole_CM, e_PlayerRole_GK

_Place = tuple[float, float]


def build_scenario(builder: Any) -> None:
    """Places players and ball; called by the engine's builder for each episode."""
    config = builder.config()
    config.game_duration = 100
    config.deterministic = False
    config.offsides = False
    config.end_episode_on_score = True
    config.end_episode_on_out_of_play = True
    # By default 0.6 on the right: it scales the skills of all players, whoever controls them.
    config.left_team_difficulty = config.right_team_difficulty = 1.0
    left, right, ball = places(random.Random(builder._config["game_engine_random_seed"]))
    builder.SetBallPosition(*ball)
    for team, (x, y) in ((Team.e_Left, left), (Team.e_Right, _turned(right))):
        builder.SetTeam(team)
        builder.AddPlayer(-1.0, 0.0, e_PlayerRole_GK, controllable=False)
        builder.AddPlayer(x, y, e_PlayerRole_CM)


def places(source: random.Random) -> tuple[_Place, _Place, _Place]:
    """The left player, the right player and the ball, in the left team's coordinates."""
    attacker = source.uniform(0.5, 0.9), source.uniform(-0.25, 0.25)
    defender = source.uniform(0.4, 0.95), source.uniform(-0.3, 0.3)
    ball = attacker[0] + 0.02, attacker[1]
    if source.random() < 0.5:
        return attacker, defender, ball
    return _turned(defender), _turned(attacker), _turned(ball)


def _turned(place: _Place) -> _Place:
    return -place[0], -place[1]
