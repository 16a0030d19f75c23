"""`academy_3_vs_1_with_keeper` from anywhere: every other episode begins as the academy's do.

Random actions win 14 games of 900, which is too rarely to learn from. In the other episodes the
attack is at some point of its way, with the defender before, beside or behind the ball, so that
goals are met at once and the way to them is learned from its end backwards (start state
distributions: Florensa et al., arXiv 1707.05300).
"""

from __future__ import annotations

import random
from typing import Any

from gfootball.scenarios import Team, e_PlayerRole_CB, e_PlayerRole_CM, e_PlayerRole_GK

_Place = tuple[float, float]
_ACADEMY_SHARE = 0.5
_ACADEMY = ([(0.6, 0.0), (0.7, 0.2), (0.7, -0.2)], (0.75, 0.0), (0.62, 0.0))


def build_scenario(builder: Any) -> None:
    """Places players and ball; called by the engine's builder for each episode."""
    config = builder.config()
    config.game_duration = 80
    config.deterministic = False
    config.offsides = False
    config.end_episode_on_score = True
    config.end_episode_on_out_of_play = True
    config.end_episode_on_possession_change = True
    attackers, defender, ball = places(random.Random(builder._config["game_engine_random_seed"]))
    builder.SetBallPosition(*ball)
    builder.SetTeam(Team.e_Left)
    # The academy's keeper can be controlled, and at first is; where the ball is not the first
    # attacker's, an agent would have to play him all the time.
    builder.AddPlayer(-1.0, 0.0, e_PlayerRole_GK, controllable=attackers == _ACADEMY[0])
    for x, y in attackers:
        builder.AddPlayer(x, y, e_PlayerRole_CM)
    builder.SetTeam(Team.e_Right)
    builder.AddPlayer(-1.0, 0.0, e_PlayerRole_GK)
    builder.AddPlayer(-defender[0], -defender[1], e_PlayerRole_CB)


def places(source: random.Random) -> tuple[list[_Place], _Place, _Place]:
    """Three attackers, the defender and the ball, in the left team's coordinates."""
    if source.random() < _ACADEMY_SHARE:
        return _ACADEMY
    x, y = source.uniform(0.6, 0.93), source.uniform(-0.2, 0.2)
    owner = (x, y)
    others = [
        (min(0.93, x + source.uniform(-0.05, 0.1)), y + side * source.uniform(0.12, 0.25))
        for side in (-1, 1)
    ]
    while True:
        defender = source.uniform(0.6, 0.95), source.uniform(-0.25, 0.25)
        if abs(defender[0] - x) + abs(defender[1] - y) > 0.1:
            break
    attackers = [owner, *others]
    source.shuffle(attackers)
    return attackers, defender, (x + 0.02, y)
