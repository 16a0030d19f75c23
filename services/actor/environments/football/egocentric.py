"""The game as a player sees it, for teams whose agents share a policy.

In gfootball's vectors all agents of a team see the same numbers but for a mark of who they are; a
fully connected network first has to find out from it where its player stands and whether that
player has the ball. Here the player itself is where everything is seen from.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from services.actor.environments.football.game import Game, View
from services.shared.specs import DataType, TensorSpec

_TEAM_SIZE = 11
_GAME_MODES = 7
_STICKY_ACTIONS = 10
# Brings movements, 0.01 a step for a running player, to the size of positions.
_MOVEMENT_SCALE = 50.0
_ABSENT = [0.0] * 5

NAME = "egocentric"
# Another name of the tensor refuses what was trained when its numbers meant something else.
_TENSOR = "egocentric_2"
# Own player, ball, owner, goal; other players; the game.
SIZE = 5 + _STICKY_ACTIONS + 6 + 4 + 3 + 5 * (2 * _TEAM_SIZE - 1) + _GAME_MODES + 2


class Egocentric:
    """float32 [142]; lengths in the field's coordinates, heights in metres, movements a step.

    Movements along the field are times 50, which brings them to the size of positions.

    The agent's player: position (2), movement (2), how tired it is, sticky actions (10). The ball:
    position from the player (2), height, movement (3); one-hot, who has it: the player, a
    teammate, an opponent, nobody. The middle of the other team's goal: position from the player
    (2), distance. Teammates (10), then opponents (11), the nearest first, each: 1, or 0 and nothing
    else where there is none; position from the player (2), movement (2). One-hot: the game mode
    (7). The lead in goals; the share of the game's time that is left.

    An agent without a player sees the field from its middle.
    """

    def __init__(self, stack: int) -> None:
        """Makes the representation.

        Args:
          stack: Frames that the networks see.
        """
        self._spec = TensorSpec(_TENSOR, DataType.FLOAT32, (SIZE,), stack)

    @property
    def spec(self) -> TensorSpec:
        """The tensor of one agent."""
        return self._spec

    def encode(self, game: Game) -> npt.NDArray[np.generic]:
        """float32 [agents, 142]."""
        sticky = iter(game.sticky_actions())
        rows = [_row(view, player, next(sticky)) for view in game.views() for player in view.active]
        return np.array(rows, np.float32)


def _row(view: View, player: int, sticky: list[bool]) -> list[float]:
    x, y = view.left_team[2 * player : 2 * player + 2] if player != -1 else (0.0, 0.0)
    row = [x, y]
    if player != -1:
        row += _movement(view.left_direction, player)
        row.append(view.left_tired[player])
    else:
        row += [0.0, 0.0, 0.0]
    row += sticky
    row += (view.ball[0] - x, view.ball[1] - y, view.ball[2])
    dx, dy, dz = view.ball_direction
    # Heights are in metres, of which the field's length has 110: dribbling alone shakes the ball by
    # more of them in a step than any player moves in the field's coordinates.
    row += (_MOVEMENT_SCALE * dx, _MOVEMENT_SCALE * dy, dz)
    owns = view.ball_owned_player == player
    row += (
        float(view.ball_owned_team == 0 and owns),
        float(view.ball_owned_team == 0 and not owns),
        float(view.ball_owned_team == 1),
        float(view.ball_owned_team == -1),
    )
    row += (1.0 - x, -y, math.hypot(1.0 - x, y))
    row += _others(view.left_team, view.left_direction, x, y, _TEAM_SIZE - 1, player)
    row += _others(view.right_team, view.right_direction, x, y, _TEAM_SIZE, -1)
    modes = [0.0] * _GAME_MODES
    modes[view.game_mode] = 1.0
    row += modes
    row += (float(view.score[0] - view.score[1]), view.steps_left / view.duration_steps)
    return row


def _others(
    team: list[float], direction: list[float], x: float, y: float, places: int, without: int
) -> list[float]:
    """Up to so many players of a team as seen from (x, y), the nearest first."""
    seen = []
    for player in range(len(team) // 2):
        if player != without:
            dx, dy = team[2 * player] - x, team[2 * player + 1] - y
            seen.append((math.hypot(dx, dy), dx, dy, player))
    seen.sort()
    row: list[float] = []
    for _, dx, dy, player in seen[:places]:
        row += (1.0, dx, dy)
        row += _movement(direction, player)
    return row + _ABSENT * (places - len(seen[:places]))


def _movement(direction: list[float], player: int) -> list[float]:
    return [_MOVEMENT_SCALE * value for value in direction[2 * player : 2 * player + 2]]
