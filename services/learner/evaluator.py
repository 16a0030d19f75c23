"""Evaluation in place of training: the policy plays, nothing is learned, episodes are counted.

It stands where the trainer stands, so that an evaluation runs the very serving path of training.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections.abc import Callable

import numpy as np

from services.learner.statistics import Statistics
from services.learner.unrolls import UnrollAssembler

_TAKE_SECONDS = 0.2
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What to evaluate.

    Attributes:
      episodes: At least so many, equally many of each env slot: the first to end would otherwise
        be short ones.
      greedy: Take the most probable action instead of drawing one.
    """

    episodes: int
    greedy: bool


class Evaluator:
    """Waits until every slot has played its share of episodes."""

    def __init__(
        self,
        evaluation: Evaluation,
        assembler: UnrollAssembler,
        statistics: Statistics,
        leased_slots: Callable[[], int],
        wake_inference: Callable[[], None],
    ) -> None:
        """Prepares the evaluator; `run` is the thread's body.

        Args:
          evaluation: What is asked for.
          assembler: Unrolls are taken from it, so that no actor has to wait, and dropped.
          statistics: Where episodes are counted.
          leased_slots: The number of slots that play.
          wake_inference: Called when records may be overwritten again.
        """
        self._evaluation = evaluation
        self._assembler = assembler
        self._statistics = statistics
        self._leased_slots = leased_slots
        self._wake_inference = wake_inference
        self._stop = threading.Event()
        self.failure: Exception | None = None
        self.ended = threading.Event()
        self._episodes: list[tuple[float, int]] = []

    def stop(self) -> None:
        """Makes `run` return."""
        self._stop.set()

    def run(self) -> None:
        """Plays until there are enough episodes, or `stop`."""
        try:
            while not self._stop.is_set() and not self._enough():
                unrolls = self._assembler.take(self._statistics.slots, _TAKE_SECONDS)
                if unrolls is not None:
                    self._assembler.release(unrolls)
                    self._wake_inference()
        except Exception as error:  # the service reports it and ends
            _log.exception("evaluation failed")
            self.failure = error
        finally:
            self.ended.set()

    def _enough(self) -> bool:
        slots = self._leased_slots()
        if not slots:
            return False
        share = math.ceil(self._evaluation.episodes / slots)
        by_slot: dict[int, list[tuple[float, int]]] = {}
        for slot, total, length in list(self._statistics.ended_episodes):
            by_slot.setdefault(slot, []).append((total, length))
        complete = [episodes[:share] for episodes in by_slot.values() if len(episodes) >= share]
        if len(complete) < slots:
            return False
        self._episodes = [episode for episodes in complete for episode in episodes]
        return True

    def summary(self) -> dict[str, object]:
        """Returns and lengths of the episodes."""
        if not self._episodes:
            return {"episodes": 0}
        returns = np.array([total for total, _ in self._episodes])
        return {
            "episodes": len(returns),
            "greedy": self._evaluation.greedy,
            "mean_return": round(float(returns.mean()), 4),
            "standard_error": round(float(returns.std(ddof=1) / math.sqrt(len(returns))), 4)
            if len(returns) > 1
            else None,
            "median_return": float(np.median(returns)),
            "mean_length": round(float(np.mean([n for _, n in self._episodes])), 1),
        }
