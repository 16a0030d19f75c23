"""Records episodes of one environment of an evaluating actor.

The group calls `begin` with an episode's first record and `add` with every answer, before it steps
the environment on; the pilot takes finished files and hands them to the learner. A recording is
written as it goes, to a file that has no name any more: no more than two frames are in memory, and
whatever ends the process leaves nothing behind.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import logging
import tempfile
from collections.abc import Iterator
from typing import IO

from PIL import Image

from services.actor.environments.base import Decision, Environment
from services.actor.pictures import panel
from services.actor.pictures.gif import GifWriter
from services.actor.pictures.heat_map import HeatMap
from services.shared.config import RecordingConfig

_GAME_HEIGHT = 400  # of a frame, about: small pictures are enlarged
_LAST_FRAME_SECONDS = 1.5
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A finished file.

    Attributes:
      name: For the learner.
      file: From its beginning.
    """

    name: str
    file: IO[bytes]


class _Recording:
    """One episode under way."""

    def __init__(self, number: int, config: RecordingConfig, environment: Environment) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the recording
        self._writer = GifWriter(self._file, config.frames_per_second)
        self._panel = panel.Panel(
            environment.spec.action, environment.action_names, f"evaluation, episode {number}"
        )
        self._max_frames = config.max_frames
        self._step = 0
        self._total = 0.0

    def add(self, environment: Environment, reward: float, decision: Decision, ends: bool) -> None:
        """Appends a frame, if there is room; see `Camera.add`."""
        self._total += reward
        if self._writer.frames < self._max_frames:
            game = environment.picture()
            # Games of other sizes than football's: at least as high as a legible panel.
            factor = max(1, round(_GAME_HEIGHT / len(game)))
            game = game.repeat(factor, axis=0).repeat(factor, axis=1)
            shown = None if ends else decision
            side = self._panel.draw(len(game), self._step, self._total, shown)
            hold = _LAST_FRAME_SECONDS if ends else 0.0
            self._writer.add(panel.beside(game, side), hold)
        self._step += 1

    def finish(self) -> IO[bytes]:
        self._writer.close()
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        self._file.close()


class Camera:
    """Decides which episodes are recorded, and records them.

    Attributes:
      recorded: Files that were finished.
      failures: Recordings that were lost.
    """

    def __init__(self, actor_name: str, config: RecordingConfig) -> None:
        """Prepares.

        Args:
          actor_name: Begins the files' names.
          config: Which episodes, and how.
        """
        self._name = "".join(c if c.isalnum() or c in "-_" else "-" for c in actor_name)
        self._config = config
        self._episodes = 0
        self._begun = 0
        self._recording: _Recording | None = None
        self._heat_map = HeatMap()
        self._finished: collections.deque[Recorded] = collections.deque()
        self.recorded = 0
        self.failures = 0

    @property
    def is_on(self) -> bool:
        """Whether an episode is being recorded."""
        return self._recording is not None

    def begin(self, environment: Environment) -> None:
        """An episode begins."""
        self.abandon()
        config = self._config
        wanted = config.episodes is None or self._begun < config.episodes
        if wanted and self._episodes % config.every_episodes == 0:
            with self._guarded():
                self._recording = _Recording(self._episodes, config, environment)
                self._begun += 1
        self._episodes += 1

    def add(self, environment: Environment, reward: float, decision: Decision, ends: bool) -> None:
        """Shows the environment as it stands, and what the learner answered to it.

        Args:
          environment: Before the answer's action is taken.
          reward: That led here.
          decision: The answer.
          ends: The episode has ended; there is no action left to take.
        """
        recording = self._recording
        if recording is None:
            return
        with self._guarded():
            recording.add(environment, reward, decision, ends)
            self._heat_map.add(environment.positions())
            if ends:
                self._finish(recording)

    def abandon(self) -> None:
        """Drops the recording under way, if there is one."""
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    def take(self) -> list[Recorded]:
        """Files to be handed to the learner, each once; the caller closes them."""
        taken = list(self._finished)
        self._finished.clear()
        return taken

    def _finish(self, recording: _Recording) -> None:
        number = self._episodes - 1
        self._finished.append(Recorded(f"{self._name}-{number:06d}.gif", recording.finish()))
        self._recording = None
        self.recorded += 1
        if not self._heat_map.is_empty:
            picture = self._heat_map.draw(f"{self._name}: {self.recorded} recorded episodes")
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "PNG", optimize=True)
            file.seek(0)
            self._finished.append(Recorded(f"{self._name}-heat-map.png", file))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Evaluation goes on without the recording that cannot be made."""
        try:
            yield
        except Exception:
            self.failures += 1
            _log.exception("a recording is lost")
            self.abandon()
