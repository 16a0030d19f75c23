"""The trainer thread: batch after batch, update after update, until all frames are trained on."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.learner.agreement import Agreement, Tally
from services.learner.cpu_time import CpuTime
from services.learner.peers import PeerLost
from services.learner.statistics import Statistics
from services.learner.unrolls import RecordBatch, Unroll, UnrollAssembler
from services.shared.config import LearnerConfig
from services.shared.specs import EnvironmentSpec

# So many updates in a row that are not finite do not right themselves.
MAX_SKIPPED_UPDATES = 20
_TAKE_SECONDS = 0.5
_WARN_AFTER_SECONDS = 60.0
_log = logging.getLogger(__name__)


class TrainingError(RuntimeError):
    """Training cannot go on."""


@dataclasses.dataclass(frozen=True)
class Update:
    """What an update leaves behind.

    Attributes:
      metrics: Scalars by name; `skipped` is 1 if loss or gradients were not finite.
      tally: float32 [3], the sum of all learners'; see `agreement`.
      priorities: float32 [B], new ones of the sequences; None where there are no priorities.
    """

    metrics: dict[str, float]
    tally: Tally
    priorities: npt.NDArray[np.float32] | None = None


@dataclasses.dataclass(frozen=True)
class TrainingBatch:
    """What an update is made from.

    Attributes:
      records: `batch_size` unrolls or sequences.
      weights: float32 [B], of the rows in the loss; None: 1 each.
    """

    records: RecordBatch
    weights: npt.NDArray[np.float32] | None = None


class Updater(Protocol):
    """What learns; `services.learner.agent.Agent` implements it."""

    @property
    def version(self) -> int:
        """Updates so far."""

    def train(self, batch: TrainingBatch, frames: int, tally: Tally) -> Update:
        """Makes one update, with the other learners if there are any.

        Args:
          batch: Of this learner.
          frames: What schedules go by.
          tally: float32 [3], see `agreement`.
        """

    def empty_batch(self) -> TrainingBatch:
        """A batch that nothing is learned from; see `Trainer`."""


class BatchSource(Protocol):
    """Where batches come from: `UnrollSource`, or `replay_source.ReplaySource`."""

    def next(self, ended: Callable[[], bool]) -> TrainingBatch | None:
        """Waits for the next batch; None when `ended` says so. The one before is invalid then."""

    def done(self, update: Update) -> None:
        """Takes notice of an update from the newest batch."""


def wait_for_parts(
    count: int,
    take: Callable[[int, float], RecordBatch | None],
    ended: Callable[[], bool],
) -> RecordBatch | None:
    """Collects a batch.

    Args:
      count: Unrolls of the batch.
      take: Waits for unrolls and takes up to so many of them; None after so many seconds.
      ended: Whether to give up.

    Returns:
      The batch; None if it was given up.
    """
    parts: list[RecordBatch] = []
    missing = count
    started = time.monotonic()
    warned = False
    while missing:
        if ended():
            return None
        part = take(missing, _TAKE_SECONDS)
        if part is None:
            waited = time.monotonic() - started
            if waited > _WARN_AFTER_SECONDS and not warned:
                _log.warning("no unrolls for %.0f s; waiting for actors", waited)
                warned = True
            continue
        parts.append(part)
        missing -= len(part.reward)
    return RecordBatch.concatenate(parts)


class UnrollSource:
    """Batches of the newest unrolls, each used once and counted when it is taken.

    Attributes:
      steps_in_hand: Of the batch that is not complete yet.
    """

    def __init__(
        self,
        batch_size: int,
        spec: EnvironmentSpec,
        assembler: UnrollAssembler,
        statistics: Statistics,
        wake_inference: Callable[[], None],
    ) -> None:
        """Prepares.

        Args:
          batch_size: Unrolls of a batch.
          spec: What the environments look like.
          assembler: Where unrolls come from.
          statistics: Counts frames.
          wake_inference: Called when records may be overwritten again.
        """
        self._batch_size = batch_size
        self._spec = spec
        self._assembler = assembler
        self._statistics = statistics
        self._wake_inference = wake_inference
        self.steps_in_hand = 0

    def next(self, ended: Callable[[], bool]) -> TrainingBatch | None:
        """See `BatchSource`."""

        def take(missing: int, timeout_seconds: float) -> RecordBatch | None:
            unrolls: list[Unroll] | None = self._assembler.take(missing, timeout_seconds)
            if unrolls is None:
                return None
            part = self._assembler.gather(unrolls)
            self.steps_in_hand += part.environment_steps
            self._assembler.release(unrolls)
            self._wake_inference()
            return part

        records = wait_for_parts(self._batch_size, take, ended)
        if records is None:
            return None
        self._statistics.add_steps(records.environment_steps, self._spec)
        self.steps_in_hand = 0
        return TrainingBatch(records)

    def done(self, update: Update) -> None:
        """See `BatchSource`."""


class Trainer:
    """Takes batches and makes updates.

    With other learners each update waits for them all, and all end after the same one: who is
    asked to stop says so in its next update, for which it does not wait for a batch.
    """

    def __init__(
        self,
        config: LearnerConfig,
        source: BatchSource,
        agent: Updater,
        agreement: Agreement,
        statistics: Statistics,
        cpu_time: CpuTime,
        after_update: Callable[[dict[str, float]], None],
    ) -> None:
        """Prepares the trainer; `run` is the thread's body.

        Args:
          config: The learner's settings.
          source: Where batches come from.
          agent: What learns.
          agreement: With the other learners.
          statistics: Counts updates.
          cpu_time: Attributes the process's CPU time.
          after_update: Called after each update with its metrics, in this thread: checkpoints
            and reports are consistent there.
        """
        self._config = config
        self._source = source
        self._agent = agent
        self._agreement = agreement
        self._statistics = statistics
        self._cpu_time = cpu_time
        self._after_update = after_update
        self._skipped_in_a_row = 0
        self._stop = threading.Event()
        self.failure: Exception | None = None
        self.ended = threading.Event()

    def stop(self) -> None:
        """Makes `run` return after the update under way."""
        self._stop.set()

    def run(self) -> None:
        """Trains until all frames are taken, `stop` or a failure, which is kept."""
        try:
            while not self._agreement.is_over:
                started = time.monotonic()
                batch = self._source.next(self._shall_end)
                self._statistics.training_wait.observe(time.monotonic() - started)
                if batch is not None:
                    self._update(batch)
                elif self._agreement.learners == 1:
                    break
                else:
                    self._train(self._agent.empty_batch())
        except Exception as error:  # the service reports it and ends
            _log.exception("training failed")
            self.failure = error
        finally:
            self.ended.set()

    def _shall_end(self) -> bool:
        return self._stop.is_set() or self._agreement.is_over

    @property
    def is_finished(self) -> bool:
        """Whether training is over for good, not only until all learners are there again."""
        interrupted = self._agreement.stopped or isinstance(self.failure, PeerLost)
        return self.ended.is_set() and not interrupted

    def _update(self, batch: TrainingBatch) -> None:
        statistics = self._statistics
        versions = batch.records.policy_version[:, :-1]
        statistics.policy_lag = float(self._agent.version - np.mean(versions))
        for _ in range(self._config.sample_reuse):
            self._source.done(self._train(batch))
            if self._agreement.stopped:  # who has asked to stop makes no further update
                break

    def _train(self, batch: TrainingBatch) -> Update:
        statistics, agreement = self._statistics, self._agreement
        tally = agreement.offer(self._stop.is_set())
        started = time.monotonic()
        with self._cpu_time.training():
            update = self._agent.train(batch, agreement.frames, tally)
        seconds = time.monotonic() - started
        agreement.take(tally, update.tally)
        statistics.training_latency.observe(seconds)
        statistics.observe_busy("training", seconds)
        statistics.updates = self._agent.version
        self._count_skipped(update.metrics)
        self._after_update(update.metrics)
        return update

    def _count_skipped(self, metrics: dict[str, float]) -> None:
        if not metrics["skipped"]:
            self._skipped_in_a_row = 0
            return
        self._statistics.skipped_updates += 1
        self._skipped_in_a_row += 1
        _log.warning(
            "update skipped: loss or gradients are not finite (%d in a row)", self._skipped_in_a_row
        )
        if self._skipped_in_a_row >= MAX_SKIPPED_UPDATES:
            raise TrainingError(
                f"{MAX_SKIPPED_UPDATES} updates in a row were not finite; the weights are the last"
                " good ones"
            )
