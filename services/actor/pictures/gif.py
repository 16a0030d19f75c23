"""An animated GIF, written frame by frame: no more than two frames are in memory.

GIF, because everything plays it without a codec: browsers, README pages, TensorBoard (which plays
nothing else), and because Pillow alone writes it; drawings have few colors. Of a frame only what
has changed is written, with the first frame's palette unless its colors are too far off.
"""

from __future__ import annotations

import struct
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import GifImagePlugin, Image

from services.actor.pictures.canvas import Picture

# The last color of each palette stands for "as before".
_UNCHANGED = 255
# A mean difference of changed pixels, of 255, from which a frame gets a palette of its own.
_TOO_FAR_OFF = 3.0
# A disposal method of GIF89a: what is not drawn over stays.
_STAYS = 1


class GifWriter:
    """Writes one file."""

    def __init__(self, file: IO[bytes], frames_per_second: float) -> None:
        """Writes nothing yet.

        Args:
          file: Where the GIF goes; it is left open.
          frames_per_second: Rounded to GIF's hundredths of a second, of which players take 2 at
            least.
        """
        self._file = file
        self._hundredths = max(2, round(100 / frames_per_second))
        self._before: Picture | None = None
        self._palette: Image.Image
        self.frames = 0

    def add(self, picture: Picture, hold_seconds: float = 0.0) -> None:
        """Appends a frame.

        Args:
          picture: All of the same size.
          hold_seconds: How much longer than others it is shown.

        Raises:
          OSError: There is no room.
        """
        if self._before is None:
            self._begin(picture)
            changed = np.ones(picture.shape[:2], np.bool_)
        else:
            changed = np.any(picture != self._before, axis=2)
        # One pixel at least: the frame's time has to pass.
        top, bottom = _extent(np.any(changed, axis=1))
        left, right = _extent(np.any(changed, axis=0))
        part, mask = picture[top:bottom, left:right], changed[top:bottom, left:right]
        palette = self._palette
        indices = _nearest(part, palette)
        error = np.abs(part.astype(np.int16) - _colors(palette)[indices])[mask]
        own = self.frames > 0 and error.size > 0 and float(error.mean()) > _TOO_FAR_OFF
        if own:
            palette = _make_palette(part)
            indices = _nearest(part, palette)
        indices[~mask] = _UNCHANGED
        frame = Image.fromarray(indices, "P")
        frame.putpalette(palette.getpalette() or [])
        parts = GifImagePlugin.getdata(
            frame,
            (left, top),
            duration=10 * (self._hundredths + round(100 * hold_seconds)),
            transparency=_UNCHANGED,
            disposal=_STAYS,
            include_color_table=own,
        )
        self._file.write(b"".join(parts))
        self._before = picture
        self.frames += 1

    def close(self) -> None:
        """Writes the end."""
        self._file.write(b";")

    def _begin(self, picture: Picture) -> None:
        self._palette = _make_palette(picture)
        height, width = picture.shape[:2]
        # A palette of 256 colors, no background; then: play it again and again.
        self._file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0))
        self._file.write(bytes(self._palette.getpalette() or []))
        self._file.write(b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00")


def _extent(used: Any) -> tuple[int, int]:
    places = np.flatnonzero(used)
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 1)


def _make_palette(picture: Picture) -> Image.Image:
    """255 colors that suit a picture; the last one repeats the first."""
    image = Image.fromarray(picture).quantize(_UNCHANGED, Image.Quantize.FASTOCTREE)
    colors = list(image.getpalette() or [])[: 3 * _UNCHANGED]
    colors += colors[:3] * (256 - len(colors) // 3)
    palette = Image.new("P", (1, 1))
    palette.putpalette(colors)
    return palette


def _nearest(picture: Picture, palette: Image.Image) -> npt.NDArray[np.uint8]:
    """Indices [height, width] into a palette, none of them `_UNCHANGED`."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    indices = np.array(image.quantize(palette=palette, dither=Image.Dither.NONE))
    indices[indices == _UNCHANGED] = 0
    return indices


def _colors(palette: Image.Image) -> npt.NDArray[np.int16]:
    return np.array(palette.getpalette(), np.int16).reshape(-1, 3)
