"""What the agent thought: beside a picture of the game its value, its action, its policy.

`camera` puts it beside every frame of a recording, whatever the environment is.
"""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

from services.actor.environments.base import Decision
from services.actor.pictures.canvas import BLACK, WHITE, Canvas, Color, Picture, blend
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import ActionSpec, DiscreteActionSpec

WIDTH = 240
_PADDING = 14
_BACKGROUND, _MUTED, _BAR = (16, 21, 28), (150, 162, 176), (72, 149, 239)
_CHOSEN, _TROUGH = (255, 183, 3), (36, 44, 55)
_CURVE_HEIGHT = 44
_ROW, _SMALLEST_ROW, _MOST_ROWS = 16.0, 11.0, 24
_NAME_WIDTH, _NUMBER_WIDTH = 98.0, 40.0
BAR_X = _PADDING + _NAME_WIDTH
BAR_WIDTH = WIDTH - _PADDING - BAR_X - _NUMBER_WIDTH


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the policy.

    Attributes:
      name: Of the action.
      number: As it is shown.
      share: Length of the bar, 0 to 1.
      chosen: It is what the agent did.
    """

    name: str
    number: str
    share: float
    chosen: bool


def rows(decision: Decision, spec: ActionSpec, names: tuple[str, ...]) -> list[Row]:
    """The lines of a policy: a bar's length is its probability.

    Action values have bars from the smallest to the largest of them, elements of a continuous
    action from -1 to 1.

    Args:
      decision: What to show.
      spec: Of the action.
      names: Of the values of a single choice, or of the elements.
    """
    policy, action = decision.policy, decision.action
    if not isinstance(spec, DiscreteActionSpec):
        means = policy[: spec.size]
        return [
            Row(names[i], f"{action[i]:+.2f}", float(np.clip((means[i] + 1) / 2, 0, 1)), False)
            for i in range(spec.size)
        ]
    if decision.kind == inference_pb2.POLICY_KIND_ACTION_VALUES:
        low, high = float(policy.min()), float(policy.max())
        shares = (policy - low) / (high - low) if high > low else np.zeros_like(policy)
        numbers = [f"{value:.2f}" for value in policy]
    else:
        shares, numbers = policy, [f"{100 * p:.0f} %" for p in policy]
    found: list[Row] = []
    at = 0
    for choice, count in enumerate(spec.num_values):
        for i in range(count):
            name = names[i] if spec.size == 1 else f"{choice + 1}: {i}"
            chosen = int(action[choice]) == i
            found.append(Row(name, numbers[at + i], float(shares[at + i]), chosen))
        at += count
    return found


class Panel:
    """Draws the panel of one recording."""

    def __init__(self, spec: ActionSpec, names: tuple[str, ...], title: str) -> None:
        """Prepares.

        Args:
          spec: Of the action.
          names: Of the values of a single choice, or of the elements.
          title: The first line.
        """
        self._spec = spec
        self._names = names
        self._title = title
        # The curve shows the newest: as many as it has pixels.
        self._values: collections.deque[float] = collections.deque(maxlen=WIDTH - 2 * _PADDING)

    def draw(self, height: int, step: int, total: float, decision: Decision | None) -> Picture:
        """The panel.

        Args:
          height: In pixels.
          step: Of the episode.
          total: Sum of the rewards so far.
          decision: None at the episode's end, when there is nothing left to do.

        Returns:
          uint8 [height, WIDTH, 3].
        """
        canvas = Canvas(WIDTH, height, _BACKGROUND)
        canvas.text((_PADDING, 16), self._title, 12, _MUTED)
        canvas.text((_PADDING, 38), f"step {step}", 13)
        canvas.text((WIDTH - _PADDING, 38), f"return {total:.2f}", 13, WHITE, "rm")
        if decision is not None:
            self._values.append(decision.value)
        self._draw_value(canvas, 60)
        y = 60 + 16 + _CURVE_HEIGHT + 14
        if decision is None:
            canvas.text((_PADDING, y), "end of the episode", 13, _CHOSEN)
        else:
            self._draw_policy(canvas, y, height, decision)
        return canvas.finish()

    def _draw_value(self, canvas: Canvas, y: float) -> None:
        canvas.text((_PADDING, y), "value", 12, _MUTED)
        if not self._values:
            return
        values = list(self._values)
        canvas.text((WIDTH - _PADDING, y), f"{values[-1]:.3f}", 13, WHITE, "rm")
        top, width = y + 12, WIDTH - 2 * _PADDING
        canvas.rectangle((_PADDING, top), (width, _CURVE_HEIGHT), _TROUGH, radius=3)
        low, high = min(0.0, *values), max(1.0, *values)
        x_step = width / max(40, len(values))
        points = [
            (
                _PADDING + i * x_step,
                top + 3 + (_CURVE_HEIGHT - 6) * (high - value) / (high - low),
            )
            for i, value in enumerate(values)
        ]
        if len(points) > 1:
            canvas.line(points, _BAR, 1.5)
        canvas.circle(points[-1], 2.5, WHITE)

    def _draw_policy(self, canvas: Canvas, y: float, height: int, decision: Decision) -> None:
        lines = rows(decision, self._spec, self._names)
        taken = ", ".join(row.name for row in lines if row.chosen)
        canvas.text((_PADDING, y), "action", 12, _MUTED)
        canvas.text((WIDTH - _PADDING, y), taken or "continuous", 13, _CHOSEN, "rm")
        y += 18
        room = int((height - 8 - y) / _SMALLEST_ROW)
        shown = _most_likely(lines, max(1, min(room, _MOST_ROWS)))
        row_height = max(_SMALLEST_ROW, min(_ROW, (height - 8 - y) / len(shown)))
        for row in shown:
            _draw_row(canvas, y, row_height, row)
            y += row_height


def _most_likely(lines: list[Row], count: int) -> list[Row]:
    """As many as there is room for, in their order."""
    if len(lines) <= count:
        return lines
    best = sorted(range(len(lines)), key=lambda i: (lines[i].chosen, lines[i].share))[-count:]
    return [lines[i] for i in sorted(best)]


def bar_length(share: float) -> float:
    """Of a bar, in pixels."""
    return BAR_WIDTH * min(1.0, max(0.0, share))


def _draw_row(canvas: Canvas, y: float, height: float, row: Row) -> None:
    color: Color = _CHOSEN if row.chosen else _BAR
    middle, size = y + height / 2, min(11.0, height - 2.5)
    name = row.name
    while canvas.text_width(name, size) > _NAME_WIDTH - 4:
        name = name[:-1]
    text = WHITE if row.chosen else blend(_MUTED, WHITE, 0.25)
    canvas.text((_PADDING, middle), name, size, text)
    bar = min(9.0, height - 4)
    canvas.rectangle((BAR_X, middle - bar / 2), (BAR_WIDTH, bar), _TROUGH)
    canvas.rectangle((BAR_X, middle - bar / 2), (bar_length(row.share), bar), color)
    canvas.text((WIDTH - _PADDING, middle), row.number, size, text, "rm")


def beside(game: Picture, panel: Picture) -> Picture:
    """A game's picture and its panel, side by side; the lower one is filled up."""
    height = max(len(game), len(panel))

    def padded(picture: Picture) -> Picture:
        missing = height - len(picture)
        above = missing // 2
        return np.pad(picture, ((above, missing - above), (0, 0), (0, 0)), constant_values=BLACK[0])

    return np.concatenate([padded(game), padded(panel)], axis=1)
