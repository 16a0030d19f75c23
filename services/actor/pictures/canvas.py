"""Anti-aliased drawing with Pillow: everything is drawn at twice the size, then averaged.

Coordinates are pixels of the finished picture, as floats; x to the right, y down.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

SCALE = 2
Color = tuple[int, int, int]
Point = tuple[float, float]
Picture = npt.NDArray[np.uint8]
"""uint8 [height, width, 3], red, green and blue."""

WHITE, BLACK = (255, 255, 255), (0, 0, 0)


@functools.cache
def _font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    # The one that Pillow brings along: no font has to be installed.
    return ImageFont.load_default(size * SCALE)


def blend(color: Color, other: Color, share: float) -> Color:
    """A color between two: `share` of the other one."""
    red, green, blue = (
        round(a * (1 - share) + b * share) for a, b in zip(color, other, strict=True)
    )
    return red, green, blue


class Canvas:
    """A picture under way."""

    def __init__(self, width: int, height: int, background: Color = BLACK) -> None:
        """Makes an empty one of the finished size."""
        self._image = Image.new("RGB", (width * SCALE, height * SCALE), background)
        self._draw = ImageDraw.Draw(self._image)

    def copy(self) -> Canvas:
        """Another one that looks the same."""
        other = Canvas.__new__(Canvas)
        other._image = self._image.copy()
        other._draw = ImageDraw.Draw(other._image)
        return other

    def finish(self) -> Picture:
        """The finished picture."""
        return np.asarray(self._image.reduce(SCALE))

    def rectangle(
        self, corner: Point, size: Point, fill: Color | None = None, outline: Color | None = None,
        width: float = 1.0, radius: float = 0.0,
    ) -> None:  # fmt: skip
        """Fills or outlines; `size` is width and height."""
        (x, y), (w, h) = corner, size
        if min(w, h) * SCALE < 1:
            return
        # Pillow's far corner belongs to the rectangle.
        box = (x * SCALE, y * SCALE, (x + w) * SCALE - 1, (y + h) * SCALE - 1)
        line = round(width * SCALE)
        if radius:
            self._draw.rounded_rectangle(box, radius * SCALE, fill, outline, line)
        else:
            self._draw.rectangle(box, fill, outline, line)

    def circle(
        self, center: Point, radius: float, fill: Color | None = None,
        outline: Color | None = None, width: float = 1.0, squash: float = 1.0,
    ) -> None:  # fmt: skip
        """Fills or outlines; `squash` is height by width."""
        (x, y), r = center, radius
        box = [(x - r) * SCALE, (y - r * squash) * SCALE, (x + r) * SCALE, (y + r * squash) * SCALE]
        self._draw.ellipse(box, fill, outline, round(width * SCALE))

    def arc(
        self, center: Point, radius: float, degrees: tuple[float, float], color: Color, width: float
    ) -> None:
        """A part of a circle, clockwise from the right."""
        (x, y), r = center, radius
        box = [(x - r) * SCALE, (y - r) * SCALE, (x + r) * SCALE, (y + r) * SCALE]
        self._draw.arc(box, *degrees, fill=color, width=round(width * SCALE))

    def line(self, points: list[Point], color: Color, width: float = 1.0) -> None:
        """Connects points."""
        scaled = [(x * SCALE, y * SCALE) for x, y in points]
        self._draw.line(scaled, color, round(width * SCALE), joint="curve")

    def polygon(self, points: list[Point], fill: Color) -> None:
        """Fills what lies between points."""
        self._draw.polygon([(x * SCALE, y * SCALE) for x, y in points], fill)

    def text(
        self, at: Point, text: str, size: float, color: Color = WHITE, anchor: str = "lm"
    ) -> None:
        """Writes; `anchor` is Pillow's: "lm" begins at the point, "mm" is centered there."""
        x, y = at
        self._draw.text((x * SCALE, y * SCALE), text, color, _font(size), anchor)

    def text_width(self, text: str, size: float) -> float:
        """Of a text, in pixels."""
        return float(_font(size).getlength(text)) / SCALE

    def paste(self, picture: Picture, corner: tuple[int, int], size: tuple[int, int]) -> None:
        """Puts a finished picture somewhere, scaled to `size`; pixels stay sharp when it grows."""
        image = Image.fromarray(picture)
        grows = size[0] >= image.width
        method = Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS
        scaled = image.resize((size[0] * SCALE, size[1] * SCALE), method)
        self._image.paste(scaled, (corner[0] * SCALE, corner[1] * SCALE))
