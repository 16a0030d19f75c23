"""What a run has recorded over frames and over time, out of its TensorBoard event files.

The event files are the one source: the learner writes them anyway, on this machine and in a
cluster, and what is shown here and in TensorBoard cannot differ.
"""

from __future__ import annotations

import array
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.local.report.events import EventFile

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Series(NamedTuple):
    """The values of one tag, in the order of time.

    Attributes:
      frames: int64 [N], environment frames.
      seconds: float64 [N], time at work since the run began; pauses between sessions are left out.
      values: float64 [N], NaN where the learner has recorded NaN.
    """

    frames: IntArray
    seconds: FloatArray
    values: FloatArray

    def head(self, n: int) -> Series:
        """The first n of them."""
        return Series(self.frames[:n], self.seconds[:n], self.values[:n])


class _Column:
    """One tag of one session, as it grows."""

    def __init__(self) -> None:
        self.steps = array.array("q")
        self.seconds = array.array("d")
        self.values = array.array("d")

    def series(self, offset: float, limit: int) -> Series:
        """What lies within `limit` frames; the session began `offset` seconds after the run."""
        # Copies: an array that numpy looks at cannot grow.
        steps, values = np.array(self.steps, np.int64), np.array(self.values, np.float64)
        # A clock that is set back must not turn a curve around.
        seconds = np.maximum.accumulate(np.array(self.seconds, np.float64)) + offset
        kept = steps <= limit
        return Series(steps[kept], seconds[kept], values[kept])


class _Session:
    """What one learner process has recorded."""

    def __init__(self, path: pathlib.Path) -> None:
        self._file = EventFile(path)
        self.columns: dict[str, _Column] = {}
        self.first_step: int | None = None
        self.last_step = 0
        self.seconds = 0.0

    def update(self) -> None:
        for scalar in self._file.read():
            column = self.columns.setdefault(scalar.tag, _Column())
            column.steps.append(scalar.step)
            column.seconds.append(scalar.seconds)
            column.values.append(scalar.value)
            if self.first_step is None:
                self.first_step = scalar.step
            self.last_step = scalar.step
            self.seconds = max(self.seconds, scalar.seconds)


class History:
    """All sessions of a run, one after the other.

    A learner that was killed goes on from its newest checkpoint. What an earlier session has
    recorded beyond the frames at which a later one began is lost, and left out here; the time that
    it took is not.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        """Of the event files in a folder, which need not exist yet; `update` reads them."""
        self._directory = directory
        self._sessions: dict[str, _Session] = {}

    def update(self) -> None:
        """Reads what was added since the last call.

        Raises:
          OSError: A file cannot be read.
        """
        # Their names begin with the time at which they were made.
        for path in sorted(self._directory.glob("events.out.tfevents.*")):
            self._sessions.setdefault(path.name, _Session(path)).update()

    @property
    def tags(self) -> list[str]:
        """Names of what was recorded, sorted."""
        return sorted({tag for session in self._sessions.values() for tag in session.columns})

    @property
    def frames(self) -> int:
        """Environment frames at the newest record; 0 without any."""
        sessions = [s for s in self._sessions.values() if s.first_step is not None]
        return sessions[-1].last_step if sessions else 0

    @property
    def seconds(self) -> float:
        """Time at work until the newest record."""
        return sum(session.seconds for session in self._sessions.values())

    def series(self, tag: str) -> Series:
        """The values of a tag; empty if it was never recorded."""
        found = [
            session.columns[tag].series(offset, limit)
            for session, offset, limit in self._kept()
            if tag in session.columns
        ]
        if not found:
            return Series(np.empty(0, np.int64), np.empty(0), np.empty(0))
        return Series(
            np.concatenate([series.frames for series in found]),
            np.concatenate([series.seconds for series in found]),
            np.concatenate([series.values for series in found]),
        )

    def parts(self, prefix: str) -> list[dict[str, Series]]:
        """Tags that are recorded together and begin with `prefix`, by the rest of their names.

        Returns:
          For each session the series by part, all of one length.
        """
        sessions = []
        for session, offset, limit in self._kept():
            parts = {
                tag.removeprefix(prefix): column.series(offset, limit)
                for tag, column in session.columns.items()
                if tag.startswith(prefix)
            }
            if parts:
                # The newest record may have been read, or written, in part.
                n = min(len(series.values) for series in parts.values())
                sessions.append({part: series.head(n) for part, series in parts.items()})
        return sessions

    def _kept(self) -> Iterator[tuple[_Session, float, int]]:
        """Each session, when it began, and up to how many frames it was not lost."""
        sessions = list(self._sessions.values())
        offset = 0.0
        for i, session in enumerate(sessions):
            begins = [s.first_step for s in sessions[i + 1 :] if s.first_step is not None]
            yield session, offset, min(begins, default=session.last_step)
            offset += session.seconds
