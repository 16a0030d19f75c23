"""A football game from above, drawn from the engine's state: no renderer, no display.

`FootballEnvironment.picture` calls it. The field's coordinates are the engine's: x from -1 to 1,
y from -0.42 (the upper edge) to 0.42; a unit of x is 54.4 m, one of y 83.6 m.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from services.actor.environments.football.game import View
from services.actor.pictures.canvas import BLACK, WHITE, Canvas, Color, Picture, Point, blend

WIDTH, HEIGHT = 600, 440
_METER = 5.0  # pixels
_X_METERS, _Y_METERS = 54.4, 83.6
_CENTER = (WIDTH / 2, 242.0)
_HALF_LENGTH, _HALF_WIDTH = _X_METERS * _METER, 0.42 * _Y_METERS * _METER
_BOARD_HEIGHT = 44

_TURF, _TURF_STRIPE, _LINES = (46, 125, 68), (41, 115, 62), (222, 240, 226)
_BOARD, _MUTED = (16, 21, 28), (150, 162, 176)
LEFT_COLOR, RIGHT_COLOR = (255, 183, 3), (42, 100, 224)
_KEEPER_SHARE = 0.45
_OWNER, _ACTIVE = (255, 255, 255), (255, 84, 84)
_SHADOW = (24, 72, 38)
_PLAYER_RADIUS, _BALL_RADIUS = 8.0, 4.0
# A ball in the air is drawn that much above the place over which it is, and larger.
_PIXELS_PER_METER_HIGH, _HIGHEST_PIXELS = 7.0, 56.0
_ROLLING_METERS = 0.35
_TRAIL = 14
_DIRECTION_PIXELS = 1800.0
_MODES = ("", "kick-off", "goal kick", "free kick", "corner", "throw-in", "penalty")
_STEPS_PER_SECOND = 10


@dataclasses.dataclass(frozen=True)
class _Player:
    place: Point
    direction: Sequence[float]
    number: str
    color: Color
    owns: bool
    is_active: bool


def to_pixels(x: float, y: float) -> Point:
    """Where a place on the field lies in the picture."""
    return _CENTER[0] + x * _X_METERS * _METER, _CENTER[1] + y * _Y_METERS * _METER


class Pitch:
    """Draws one game after the other."""

    def __init__(self, title: str) -> None:
        """Draws the empty field.

        Args:
          title: The scenario.
        """
        self._field = _empty_field(title)
        self._trail: collections.deque[Point] = collections.deque(maxlen=_TRAIL)

    def begin(self) -> None:
        """Forgets the game before."""
        self._trail.clear()

    def draw(self, view: View, right_active: Sequence[int] = ()) -> Picture:
        """The game as it stands.

        Args:
          view: As the left team sees it.
          right_active: Players of the right team that agents control; `view.active` has the left
            team's.

        Returns:
          uint8 [HEIGHT, WIDTH, 3].
        """
        canvas = self._field.copy()
        _draw_board(canvas, view)
        self._draw_trail(canvas, view)
        owner = (view.ball_owned_team, view.ball_owned_player)
        teams = (
            (0, view.left_team, view.left_direction, LEFT_COLOR, list(view.active)),
            (1, view.right_team, view.right_direction, RIGHT_COLOR, list(right_active)),
        )
        players = [
            _Player(
                to_pixels(*positions[2 * i : 2 * i + 2]),
                directions[2 * i : 2 * i + 2],
                str(i + 1),
                blend(color, BLACK, _KEEPER_SHARE) if i == 0 else color,
                owns=owner == (team, i),
                is_active=i in active,
            )
            for team, positions, directions, color, active in teams
            for i in range(len(positions) // 2)
        ]
        # Who matters most lies on top.
        for player in sorted(players, key=lambda p: (p.is_active, p.owns)):
            _draw_player(canvas, player)
        _draw_ball(canvas, view.ball)
        return canvas.finish()

    def _draw_trail(self, canvas: Canvas, view: View) -> None:
        self._trail.append(to_pixels(view.ball[0], view.ball[1]))
        for age, (x, y) in enumerate(reversed(self._trail)):
            if age:
                canvas.circle((x, y), 2.0, blend(WHITE, _TURF, age / _TRAIL))


def _empty_field(title: str) -> Canvas:
    canvas = Canvas(WIDTH, HEIGHT, blend(_TURF, BLACK, 0.25))
    left, top = to_pixels(-1.0, -0.42)
    stripes = 12
    for i in range(stripes):
        width = 2 * _HALF_LENGTH / stripes
        color = _TURF if i % 2 else _TURF_STRIPE
        canvas.rectangle((left + i * width, top), (width, 2 * _HALF_WIDTH), color)
    canvas.rectangle((left, top), (2 * _HALF_LENGTH, 2 * _HALF_WIDTH), None, _LINES, 1.5)
    canvas.line([(_CENTER[0], top), (_CENTER[0], top + 2 * _HALF_WIDTH)], _LINES, 1.5)
    canvas.circle(_CENTER, 9.15 * _METER, None, _LINES, 1.5)
    canvas.circle(_CENTER, 2.0, _LINES)
    for side in (-1, 1):
        _draw_goal_end(canvas, side)
    canvas.text((WIDTH / 2, HEIGHT - 11), title, 10, blend(_LINES, _TURF, 0.2), "mm")
    return canvas


def _draw_goal_end(canvas: Canvas, side: int) -> None:
    goal_line = _CENTER[0] + side * _HALF_LENGTH
    # Penalty area, goal area, and the goal behind the line: depth and width in meters.
    for depth, width in ((16.5, 40.3), (5.5, 18.3), (-2.6, 7.36)):
        inner = goal_line - side * depth * _METER
        corner = (min(goal_line, inner), _CENTER[1] - width / 2 * _METER)
        size = (abs(depth) * _METER, width * _METER)
        net = blend(_TURF, BLACK, 0.45) if depth < 0 else None
        canvas.rectangle(corner, size, net, _LINES, 1.5)
    spot = (goal_line - side * 11 * _METER, _CENTER[1])
    canvas.circle(spot, 2.0, _LINES)
    # Of the circle around the spot only what lies outside of the penalty area, 5.5 m from it.
    degrees = (127.0, 233.0) if side > 0 else (-53.0, 53.0)
    canvas.arc(spot, 9.15 * _METER, degrees, _LINES, 1.5)


def _draw_board(canvas: Canvas, view: View) -> None:
    canvas.rectangle((0, 0), (WIDTH, _BOARD_HEIGHT), _BOARD)
    middle, y = WIDTH / 2, _BOARD_HEIGHT / 2
    canvas.text((middle, y), f"{view.score[0]} : {view.score[1]}", 22, WHITE, "mm")
    for side, name, color in ((-1, "Left", LEFT_COLOR), (1, "Right", RIGHT_COLOR)):
        x = middle + side * 52
        canvas.rectangle((x - 7, y - 7), (14, 14), color, radius=3)
        canvas.text((x + side * 14, y), name, 14, WHITE, "lm" if side > 0 else "rm")
    # Before the first step the engine says that one more than all are left.
    steps = max(0, view.duration_steps - view.steps_left)
    seconds, tenths = divmod(steps, _STEPS_PER_SECOND)
    clock = f"{seconds // 60}:{seconds % 60:02d}.{tenths}"
    left = f"{view.steps_left / _STEPS_PER_SECOND:.0f} s left"
    canvas.text((WIDTH - 14, y - 7), clock, 14, WHITE, "rm")
    canvas.text((WIDTH - 14, y + 10), left, 11, _MUTED, "rm")
    canvas.text((14, y), _MODES[view.game_mode], 12, LEFT_COLOR, "lm")


def _draw_player(canvas: Canvas, player: _Player) -> None:
    x, y = player.place
    tip = (
        x + player.direction[0] * _DIRECTION_PIXELS,
        y + player.direction[1] * _DIRECTION_PIXELS * _Y_METERS / _X_METERS,
    )
    canvas.line([(x, y), tip], blend(WHITE, _TURF, 0.25), 2.0)
    canvas.circle((x + 1, y + 2), _PLAYER_RADIUS, _SHADOW)
    if player.owns:
        canvas.circle((x, y), _PLAYER_RADIUS + 4, None, _OWNER, 1.5)
    color = player.color
    canvas.circle((x, y), _PLAYER_RADIUS, color, BLACK, 0.75)
    dark = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] < 140
    canvas.text((x, y), player.number, 9, WHITE if dark else BLACK, "mm")
    if player.is_active:
        # A marker above the player that an agent controls.
        top = y - _PLAYER_RADIUS - 14
        canvas.polygon([(x - 6.5, top - 1), (x + 6.5, top - 1), (x, top + 10)], BLACK)
        canvas.polygon([(x - 4.5, top), (x + 4.5, top), (x, top + 7.5)], _ACTIVE)


def _draw_ball(canvas: Canvas, ball: Sequence[float]) -> None:
    x, y = to_pixels(ball[0], ball[1])
    height = max(0.0, ball[2])
    rise = min(_HIGHEST_PIXELS, max(0.0, height - _ROLLING_METERS) * _PIXELS_PER_METER_HIGH)
    if rise > 0:
        canvas.circle((x, y), _BALL_RADIUS, _SHADOW, squash=0.5)
        canvas.line([(x, y), (x, y - rise)], blend(WHITE, _TURF, 0.4), 0.75)
        # Beside the ball, on the side of the field's middle.
        side, anchor = (-10, "rm") if x > _CENTER[0] else (10, "lm")
        canvas.text((x + side, y - rise), f"{height:.1f} m", 10, WHITE, anchor)
    radius = _BALL_RADIUS * (1 + rise / _HIGHEST_PIXELS)
    canvas.circle((x, y - rise), radius + 1, BLACK)
    canvas.circle((x, y - rise), radius, WHITE)
