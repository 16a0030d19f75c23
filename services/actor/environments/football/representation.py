"""Turns the state of a game into observations: the super mini map, or vectors of floats.

`environment` asks `make` for one of them; each encodes the views of `game` into one array
[agents, ...]. The definitions are gfootball's (Kurach et al., arXiv 1907.11180, section 3.2), but
for `egocentric`, which has a module of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.actor.environments.football import egocentric
from services.actor.environments.football.game import Game, View
from services.shared.specs import DataType, TensorSpec

REPRESENTATIONS = ("smm", "simple115v2", "simple115", "float", egocentric.NAME)
SMM_SIZES = ("96x72", "120x90", "144x108")

_TEAM_SIZE = 11
_GAME_MODES = 7


class Representation(Protocol):
    """One way to show a game to its agents."""

    @property
    def spec(self) -> TensorSpec:
        """The tensor of one agent."""

    def encode(self, game: Game) -> npt.NDArray[np.generic]:
        """The observation of all agents, left ones first: [agents, *storage_shape]."""


def make(name: str, smm_size: str, stack: int | None) -> Representation:
    """Makes a representation.

    Args:
      name: One of `REPRESENTATIONS`.
      smm_size: Width and height of the super mini map, one of `SMM_SIZES`.
      stack: Frames that the networks see; None: four of the super mini map, else one.

    Raises:
      ValueError: A value is not allowed; the message says which are.
    """
    if name not in REPRESENTATIONS:
        raise ValueError(f"representation is {name!r}, allowed: {', '.join(REPRESENTATIONS)}")
    if smm_size not in SMM_SIZES:
        raise ValueError(f"smm_size is {smm_size!r}, allowed: {', '.join(SMM_SIZES)}")
    if name == "smm":
        width, height = map(int, smm_size.split("x"))
        return SuperMiniMap(width, height, 4 if stack is None else stack)
    frames = 1 if stack is None else stack
    return egocentric.Egocentric(frames) if name == egocentric.NAME else FloatVector(name, frames)


class SuperMiniMap:
    """Four planes of bits: the own team, the other team, the ball, the agent's player.

    The bits of a frame [height, width, 4] are packed in row-major order, most significant first,
    as `np.packbits` does it.
    """

    _LAYERS = 4
    # The field's limits on the map. Every operation below is in gfootball's order, so that no
    # point falls into a neighbouring cell by rounding.
    _X_MIN, _X_MAX = -1.0, 1.0
    _Y_MIN, _Y_MAX = -1.0 / 2.25, 1.0 / 2.25

    def __init__(self, width: int, height: int, stack: int) -> None:
        self._width, self._height = width, height
        self._spec = TensorSpec("smm", DataType.BIT, (height, width, self._LAYERS), stack)

    @property
    def spec(self) -> TensorSpec:
        """The tensor of one agent."""
        return self._spec

    def encode(self, game: Game) -> npt.NDArray[np.generic]:
        """uint8 [agents, height * width / 2]."""
        rows = bytearray()
        for view in game.views():
            frame = bytearray(self._spec.storage_bytes)
            self._mark(frame, 0, view.left_team)
            self._mark(frame, 1, view.right_team)
            self._mark(frame, 2, view.ball[:2])
            for player in view.active:
                own = frame[:]
                if player != -1:
                    self._mark(own, 3, view.left_team[2 * player : 2 * player + 2])
                rows += own
        return np.frombuffer(rows, np.uint8).reshape(-1, self._spec.storage_bytes)

    def _mark(self, frame: bytearray, layer: int, points: Sequence[float]) -> None:
        width, height = self._width, self._height
        x_range, y_range = self._X_MAX - self._X_MIN, self._Y_MAX - self._Y_MIN
        coordinates = iter(points)
        for point_x, point_y in zip(coordinates, coordinates, strict=True):
            x = int((point_x - self._X_MIN) / x_range * width)
            y = int((point_y - self._Y_MIN) / y_range * height)
            x = max(0, min(width - 1, x))
            y = max(0, min(height - 1, y))
            bit = (y * width + x) * self._LAYERS + layer
            frame[bit >> 3] |= 0x80 >> (bit & 7)


class FloatVector:
    """`simple115v2`, `simple115`, or `float`: the former and what it leaves out.

    `simple115v2`, float32 [115]: positions (22) and directions (22) of the own team, the same of
    the other, -1 for each missing player; the ball's position (3) and direction (3); one-hot: who
    owns the ball (nobody, own team, other team), the agent's player (11), the game mode (7).
    `simple115` puts the missing players' -1 at the end of all 88.
    `float`, float32 [149], appends: the agent's sticky actions (10), how tired each player is
    (22, -1 for missing ones), the lead in goals, the share of the game's time that is left.
    """

    _ACTIVE = 97
    _EXTRA = 10 + 2 * _TEAM_SIZE + 2

    def __init__(self, name: str, stack: int) -> None:
        self._fixed_places = name != "simple115"
        self._extended = name == "float"
        size = 115 + (self._EXTRA if self._extended else 0)
        self._spec = TensorSpec(name, DataType.FLOAT32, (size,), stack)

    @property
    def spec(self) -> TensorSpec:
        """The tensor of one agent."""
        return self._spec

    def encode(self, game: Game) -> npt.NDArray[np.generic]:
        """float32 [agents, size]."""
        rows: list[list[float]] = []
        for view in game.views():
            row = self._of_team(view)
            for player in view.active:
                own = row[:]
                if player != -1:
                    own[self._ACTIVE + player] = 1.0
                rows.append(own)
        if self._extended:
            for row, sticky in zip(rows, game.sticky_actions(), strict=True):
                row[115:125] = sticky
        return np.array(rows, np.float32)

    def _of_team(self, view: View) -> list[float]:
        """What all of a team's agents share; their own elements are 0."""
        row: list[float] = []
        blocks = (view.left_team, view.left_direction, view.right_team, view.right_direction)
        for index, block in enumerate(blocks):
            row += block
            if self._fixed_places:
                row += [-1.0] * ((index + 1) * 2 * _TEAM_SIZE - len(row))
        row += [-1.0] * (len(blocks) * 2 * _TEAM_SIZE - len(row))
        row += view.ball
        row += view.ball_direction
        row += _one_hot(view.ball_owned_team + 1, 3)
        row += [0.0] * _TEAM_SIZE
        row += _one_hot(view.game_mode, _GAME_MODES)
        if self._extended:
            row += [0.0] * 10
            for tired in (view.left_tired, view.right_tired):
                row += tired
                row += [-1.0] * (_TEAM_SIZE - len(tired))
            row += (float(view.score[0] - view.score[1]), view.steps_left / view.duration_steps)
        return row


def _one_hot(index: int, size: int) -> list[float]:
    row = [0.0] * size
    row[index] = 1.0
    return row
