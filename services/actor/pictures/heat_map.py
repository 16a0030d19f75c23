"""Where things were: heat maps of the positions that recorded episodes have shown."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.actor.environments.base import Positions
from services.actor.pictures.canvas import WHITE, Canvas, Picture, blend

_CELLS_X, _CELLS_Y = 52, 34
_CELL_PIXELS = 8
# Each position counts around it, too: a normal of so many cells.
_SPREAD_CELLS = 1.2
_PADDING, _TITLE_HEIGHT = 16, 34
_TURF, _LINES, _BACKGROUND = (24, 58, 36), (120, 160, 130), (16, 21, 28)
# From nothing over red and yellow to white.
_COLORS = np.array(
    [_TURF, (92, 40, 60), (196, 52, 46), (250, 150, 30), (255, 236, 120), (255, 255, 255)],
    np.float64,
)


class HeatMap:
    """Counts positions, of any number of episodes in the same memory."""

    def __init__(self) -> None:
        """Nothing has been anywhere."""
        self._counts: dict[str, npt.NDArray[np.int64]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to count."""
        return not self._counts

    def add(self, positions: Positions) -> None:
        """Counts where things are; what is beside the field counts at its edge."""
        for name, places in positions.items():
            counts = self._counts.setdefault(name, np.zeros((_CELLS_Y, _CELLS_X), np.int64))
            for x, y in places:
                column = min(_CELLS_X - 1, max(0, int(x * _CELLS_X)))
                row = min(_CELLS_Y - 1, max(0, int(y * _CELLS_Y)))
                counts[row, column] += 1

    def counts(self, name: str) -> npt.NDArray[np.int64]:
        """int64 [rows, columns] of what has this name."""
        return self._counts[name]

    def draw(self, title: str) -> Picture:
        """All maps side by side: uint8 [height, width, 3]."""
        width, height = _CELLS_X * _CELL_PIXELS, _CELLS_Y * _CELL_PIXELS
        count = len(self._counts)
        canvas = Canvas(
            _PADDING + count * (width + _PADDING),
            2 * _TITLE_HEIGHT + height + _PADDING // 2,
            _BACKGROUND,
        )
        canvas.text((_PADDING, _TITLE_HEIGHT / 2 + 4), title, 14)
        for i, (name, counts) in enumerate(self._counts.items()):
            x, y = _PADDING + i * (width + _PADDING), 2 * _TITLE_HEIGHT - 4
            canvas.text((x, y - 14), name, 13, blend(WHITE, _BACKGROUND, 0.3))
            canvas.paste(_colored(counts), (x, y), (width, height))
            _draw_lines(canvas, x, y, width, height)
        return canvas.finish()


def _colored(counts: npt.NDArray[np.int64]) -> Picture:
    heat = _spread(counts.astype(np.float64))
    # The root shows rare places, too.
    share = np.sqrt(heat / max(float(heat.max()), 1e-9)) * (len(_COLORS) - 1)
    below = np.minimum(share.astype(np.int64), len(_COLORS) - 2)
    rest = (share - below)[..., None]
    colors = _COLORS[below] * (1 - rest) + _COLORS[below + 1] * rest
    picture: Picture = np.round(colors).astype(np.uint8)
    return picture


def _spread(heat: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convolves with a normal, along both axes."""
    reach = round(3 * _SPREAD_CELLS)
    kernel = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / _SPREAD_CELLS))
    for axis in (0, 1):
        heat = np.apply_along_axis(np.convolve, axis, heat, kernel / kernel.sum(), "same")
    return heat


def _draw_lines(canvas: Canvas, x: float, y: float, width: float, height: float) -> None:
    """The field: halfway line, center circle, penalty areas; a field is 105 m by 68 m."""
    meter = width / 105
    canvas.rectangle((x, y), (width, height), None, _LINES, 1.0)
    canvas.line([(x + width / 2, y), (x + width / 2, y + height)], _LINES, 0.75)
    canvas.circle((x + width / 2, y + height / 2), 9.15 * meter, None, _LINES, 0.75)
    for left in (x, x + width - 16.5 * meter):
        canvas.rectangle(
            (left, y + height / 2 - 20.15 * meter), (16.5 * meter, 40.3 * meter), None, _LINES, 0.75
        )
