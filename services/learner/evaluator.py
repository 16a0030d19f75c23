"""Evaluation in place of training: the policy plays, nothing is learned, episodes are counted.

It stands where the trainer stands; all actors have the role of evaluation, so that `seedpod eval`
measures what an evaluator beside training measures.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable

from services.learner import evaluation
from services.learner.statistics import Statistics

_POLL_SECONDS = 0.2
# A recording is drawn and handed over after its episode's end.
_RECORDINGS_SECONDS = 300.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What to evaluate.

    Attributes:
      episodes: At least so many, equally many of each environment: the first to end would
        otherwise be short ones.
      recordings: Wait for so many recordings, too.
      opponent: With `learner.self_play`, a checkpoint whose policy all past policies become.
    """

    episodes: int
    recordings: int = 0
    opponent: str | None = None


class Evaluator:
    """Waits until every slot has played its share of episodes."""

    def __init__(
        self,
        task: Evaluation,
        statistics: Statistics,
        environments: Callable[[], set[int]],
        recordings: Callable[[], int],
    ) -> None:
        """Prepares the evaluator; `run` is the thread's body.

        Args:
          task: What is asked for.
          statistics: Where episodes are counted, and all of them kept.
          environments: Those that play, as episodes name them.
          recordings: The number of recordings that have arrived.
        """
        self._task = task
        self._statistics = statistics
        self._environments = environments
        self._recordings = recordings
        self._stop = threading.Event()
        self.failure: Exception | None = None
        self.ended = threading.Event()
        self._playing: set[int] = set()
        self._episodes: list[evaluation.Episode] = []

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to play."""
        return self.ended.is_set()

    def stop(self) -> None:
        """Makes `run` return."""
        self._stop.set()

    def run(self) -> None:
        """Plays until there are enough episodes and recordings, or `stop`.

        Stopped before, it counts as many episodes of each environment as all have played.
        Environments that have gone do not count: the rest that they have not played would be long
        episodes.
        """
        try:
            while not self._enough():
                if self._stop.wait(_POLL_SECONDS):
                    self._count(min(map(len, self._played()), default=0))
                    return
            self._wait_for_recordings()
        except Exception as error:  # the service reports it and ends
            _log.exception("evaluation failed")
            self.failure = error
        finally:
            self.ended.set()

    def _enough(self) -> bool:
        # Without any lease, those count that were there last.
        self._playing = self._environments() or self._playing
        if not self._playing:
            return False
        share = math.ceil(self._task.episodes / len(self._playing))
        if min(map(len, self._played())) < share:
            return False
        self._count(share)
        return True

    def _played(self) -> list[list[evaluation.Episode]]:
        """The episodes of each environment that plays."""
        played: dict[int, list[evaluation.Episode]] = {slot: [] for slot in self._playing}
        for episode in self._statistics.evaluation_episodes.copy():
            if episode.environment in played:
                played[episode.environment].append(episode)
        return list(played.values())

    def _count(self, share: int) -> None:
        self._episodes = [episode for played in self._played() for episode in played[:share]]

    def _wait_for_recordings(self) -> None:
        deadline = time.monotonic() + _RECORDINGS_SECONDS
        while (arrived := self._recordings()) < self._task.recordings:
            if time.monotonic() > deadline:
                _log.error(
                    "%d of %d recordings arrived within %.0f s after the last episode",
                    arrived, self._task.recordings, _RECORDINGS_SECONDS,
                )  # fmt: skip
                return
            if self._stop.wait(_POLL_SECONDS):
                return

    def summary(self) -> dict[str, object]:
        """The figures of the episodes that count."""
        return evaluation.summarize(self._episodes)
