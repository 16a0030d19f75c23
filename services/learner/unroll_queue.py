"""Unrolls that actors have sent, on their way to the trainer, and parameters on their way back.

TrajectoryServer -> UnrollQueue -> TrajectorySource -> Trainer
                 <- ParameterBoard <------------------ Trainer
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable

from services.learner import trajectories
from services.learner.statistics import Statistics
from services.learner.trainer import TrainingBatch, Update, wait_for_parts
from services.learner.unrolls import RecordBatch
from services.shared.specs import EnvironmentSpec


class UnrollQueue:
    """Holds what waits for training; who puts asks for room before.

    Attributes:
      capacity: Unrolls from which there is no room.
      received_steps: Environment steps of all that was put, of all agents.
      on_room: Called, in the trainer's thread, whenever something was taken.
    """

    def __init__(self, capacity: int) -> None:
        """Starts empty."""
        self.capacity = capacity
        self.received_steps = 0
        self.on_room: Callable[[], None] = lambda: None
        self._parts: collections.deque[RecordBatch] = collections.deque()
        self._unrolls = 0
        self._steps = 0
        self._condition = threading.Condition()

    def __len__(self) -> int:
        """Unrolls that wait."""
        return self._unrolls

    @property
    def has_room(self) -> bool:
        """Whether something may be put, however large."""
        return self._unrolls < self.capacity

    @property
    def waiting_steps(self) -> int:
        """Environment steps of what waits."""
        return self._steps

    def put(self, batch: RecordBatch) -> None:
        """Appends unrolls."""
        with self._condition:
            self._parts.append(batch)
            self._unrolls += len(batch.reward)
            self._steps += batch.environment_steps
            self.received_steps += batch.environment_steps
            self._condition.notify()

    def take(self, count: int, timeout_seconds: float) -> RecordBatch | None:
        """Waits for unrolls and takes up to `count`, oldest first; None after the timeout."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._parts, timeout_seconds):
                return None
            batch = self._parts.popleft()
            if len(batch.reward) > count:
                self._parts.appendleft(batch.select(slice(count, None)))
                batch = batch.select(slice(count))
            self._unrolls -= len(batch.reward)
            self._steps -= batch.environment_steps
        self.on_room()
        return batch


class TrajectorySource:
    """Batches of the oldest unrolls that wait, each used once and counted when it is taken.

    Attributes:
      steps_in_hand: Of the batch that is not complete yet.
    """

    def __init__(
        self, batch_size: int, spec: EnvironmentSpec, queue: UnrollQueue, statistics: Statistics
    ) -> None:
        """Prepares.

        Args:
          batch_size: Unrolls of a batch.
          spec: What the environments look like.
          queue: Where unrolls come from.
          statistics: Counts frames.
        """
        self._batch_size = batch_size
        self._spec = spec
        self._queue = queue
        self._statistics = statistics
        self.steps_in_hand = 0

    def next(self, ended: Callable[[], bool]) -> TrainingBatch | None:
        """See `trainer.BatchSource`."""

        def take(missing: int, timeout_seconds: float) -> RecordBatch | None:
            part = self._queue.take(missing, timeout_seconds)
            self.steps_in_hand += 0 if part is None else part.environment_steps
            return part

        records = wait_for_parts(self._batch_size, take, ended)
        if records is None:
            return None
        self._statistics.add_steps(records.environment_steps, self._spec)
        self.steps_in_hand = 0
        return TrainingBatch(records)

    def done(self, update: Update) -> None:
        """See `trainer.BatchSource`."""


class ParameterBoard:
    """The newest parameters, as bytes; the trainer pins them up, the server reads them.

    Attributes:
      newest: Version and bytes.
    """

    def __init__(self, parameters: trajectories.Parameters, version: int) -> None:
        """Pins up the first ones."""
        self.specs = trajectories.parameter_specs(parameters)
        self.newest = version, trajectories.pack(parameters)

    def pin(self, parameters: trajectories.Parameters, version: int) -> None:
        """Replaces them, all at once: no reader sees those of two updates."""
        if version != self.newest[0]:
            self.newest = version, trajectories.pack(parameters)


@dataclasses.dataclass(frozen=True)
class Desk:
    """What unrolls and parameters look like, and where they go; from the first actor on.

    Attributes:
      layout: Of unrolls.
      queue: Where they go.
      board: Where parameters come from.
    """

    layout: trajectories.UnrollLayout
    queue: UnrollQueue
    board: ParameterBoard
