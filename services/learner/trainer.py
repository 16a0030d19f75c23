"""The trainer thread: finished unrolls -> batch -> update, until all frames are trained on."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from services.learner.cpu_time import CpuTime
from services.learner.statistics import Statistics
from services.learner.unrolls import UnrollAssembler, UnrollBatch
from services.shared.config import LearnerConfig
from services.shared.specs import EnvironmentSpec

# So many updates in a row that are not finite do not right themselves.
MAX_SKIPPED_UPDATES = 20
_TAKE_SECONDS = 0.5
_WARN_AFTER_SECONDS = 60.0
_log = logging.getLogger(__name__)


class TrainingError(RuntimeError):
    """Training cannot go on."""


class Updater(Protocol):
    """What learns; `services.learner.agent.Agent` implements it."""

    @property
    def version(self) -> int:
        """Updates so far."""

    def train(self, batch: UnrollBatch, frames: int) -> dict[str, float]:
        """Makes one update and returns its metrics; `skipped` is 1 if it was not finite."""


class Trainer:
    """Takes unrolls and makes updates."""

    def __init__(
        self,
        config: LearnerConfig,
        spec: EnvironmentSpec,
        assembler: UnrollAssembler,
        agent: Updater,
        statistics: Statistics,
        cpu_time: CpuTime,
        wake_inference: Callable[[], None],
        after_update: Callable[[dict[str, float]], None],
    ) -> None:
        """Prepares the trainer; `run` is the thread's body.

        Args:
          config: The learner's settings.
          spec: What the environments look like.
          assembler: Where unrolls come from.
          agent: What learns.
          statistics: Counts frames and updates.
          cpu_time: Attributes the process's CPU time.
          wake_inference: Called when records may be overwritten again.
          after_update: Called after each update with its metrics, in this thread: checkpoints
            and reports are consistent there.
        """
        self._config = config
        self._spec = spec
        self._assembler = assembler
        self._agent = agent
        self._statistics = statistics
        self._cpu_time = cpu_time
        self._wake_inference = wake_inference
        self._after_update = after_update
        self._skipped_in_a_row = 0
        self._stop = threading.Event()
        self.failure: Exception | None = None
        self.ended = threading.Event()
        self.steps = 0

    def stop(self) -> None:
        """Makes `run` return after the update under way."""
        self._stop.set()

    def run(self) -> None:
        """Trains until all frames are taken, `stop` or a failure, which is kept."""
        try:
            while not self._stop.is_set() and self._statistics.frames < self._config.total_frames:
                batch = self._collect()
                if batch is not None:
                    self._update(batch)
        except Exception as error:  # the service reports it and ends
            _log.exception("training failed")
            self.failure = error
        finally:
            self.ended.set()

    def _collect(self) -> UnrollBatch | None:
        parts: list[UnrollBatch] = []
        missing = self._config.batch_size
        started = time.monotonic()
        warned = False
        while missing and not self._stop.is_set():
            unrolls = self._assembler.take(missing, _TAKE_SECONDS)
            if unrolls is None:
                waited = time.monotonic() - started
                if waited > _WARN_AFTER_SECONDS and not warned:
                    _log.warning("no unrolls for %.0f s; waiting for actors", waited)
                    warned = True
                continue
            parts.append(self._assembler.gather(unrolls))
            self._assembler.release(unrolls)
            self._wake_inference()
            missing -= len(unrolls)
        self._statistics.training_wait.observe(time.monotonic() - started)
        return None if missing else concatenate(parts)

    def _update(self, batch: UnrollBatch) -> None:
        self.steps += batch.environment_steps
        statistics = self._statistics
        statistics.policy_lag = float(self._agent.version - np.mean(batch.policy_version[:, :-1]))
        per_step = self._spec.frames_per_step / self._spec.agents
        statistics.add_frames(math.floor(self.steps * per_step) - statistics.frames)
        for _ in range(self._config.sample_reuse):
            started = time.monotonic()
            with self._cpu_time.training():
                metrics = self._agent.train(batch, statistics.frames)
            seconds = time.monotonic() - started
            statistics.training_latency.observe(seconds)
            statistics.observe_busy("training", seconds)
            statistics.updates = self._agent.version
            self._count_skipped(metrics)
            self._after_update(metrics)

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


def concatenate(parts: list[UnrollBatch]) -> UnrollBatch:
    """One batch of several."""
    if len(parts) == 1:
        return parts[0]
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(UnrollBatch):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], tuple):
            fields[field.name] = tuple(np.concatenate(v) for v in zip(*values, strict=True))
        else:
            fields[field.name] = np.concatenate(values)
    return UnrollBatch(**fields)
