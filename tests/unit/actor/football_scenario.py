"""A scenario that gfootball does not have."""

from typing import Any

from gfootball.scenarios import Team, e_PlayerRole_CM, e_PlayerRole_GK


def build_scenario(builder: Any) -> None:
    """Two attackers against a keeper."""
    builder.config().game_duration = 30
    builder.SetBallPosition(0.25, 0.125)
    builder.SetTeam(Team.e_Left)
    builder.AddPlayer(-1.0, 0.0, e_PlayerRole_GK)
    builder.AddPlayer(0.2, 0.125, e_PlayerRole_CM)
    builder.AddPlayer(-0.5, -0.25, e_PlayerRole_CM)
    builder.SetTeam(Team.e_Right)
    builder.AddPlayer(-1.0, 0.0, e_PlayerRole_GK)
