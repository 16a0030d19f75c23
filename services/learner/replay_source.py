"""Batches of sequences from replay, and their new priorities on the way back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from services.learner.trainer import TrainingBatch, Update
from services.learner.unrolls import RecordBatch, context_length, stack_index
from services.shared.replay import Batch, ReplayError, ReplayTimeout, Sampler
from services.shared.specs import EnvironmentSpec

_SAMPLE_SECONDS = 0.5
_WARN_SECONDS = 30.0
_log = logging.getLogger(__name__)


class ReplaySource:
    """A `trainer.BatchSource`."""

    def __init__(self, spec: EnvironmentSpec, sampler: Sampler) -> None:
        """Prepares.

        Args:
          spec: What the environments look like.
          sampler: Of whole sequences, the context before their first record included.
        """
        self._spec = spec
        self._sampler = sampler
        self._batch: Batch | None = None

    def next(self, ended: Callable[[], bool]) -> TrainingBatch | None:
        """See `trainer.BatchSource`; while replay is away it waits, and says so.

        Raises:
          ReplayError: Replay refuses this learner, or has sequences of another length.
        """
        warn_at = time.monotonic() + _WARN_SECONDS
        while not ended():
            try:
                self._batch = self._sampler.next(_SAMPLE_SECONDS)
            except ReplayTimeout as error:
                if time.monotonic() >= warn_at:
                    warn_at = time.monotonic() + _WARN_SECONDS
                    _log.warning("training waits for replay: %s", error)
            else:
                _check_lengths(self._batch)
                weights = self._batch.weights.astype(np.float32)
                return TrainingBatch(to_records(self._spec, self._batch), weights)
        return None

    def done(self, update: Update) -> None:
        """Returns the priorities of the newest batch.

        A sequence whose errors are not finite gets 0: it would spoil each batch that it is in.
        """
        if self._batch is None or update.priorities is None:
            return
        finite = np.isfinite(update.priorities)
        self._sampler.update_priorities(self._batch, np.where(finite, update.priorities, 0.0))


def _check_lengths(batch: Batch) -> None:
    """Refuses what a learner with other settings has left; the layout says nothing of lengths."""
    length = batch.steps["reward"].shape[1]
    if other := sorted(set(batch.lengths.tolist()) - {length}):
        raise ReplayError(
            f"replay has sequences of {other} records, this learner's have {length} (context,"
            " r2d2.burn_in, unroll_length and 1); empty the table or use another one"
        )


def to_records(spec: EnvironmentSpec, batch: Batch) -> RecordBatch:
    """The records of sequences as `sequences.layout` has them; views, no copies."""
    context = context_length(spec)
    steps: dict[str, Any] = batch.steps
    names = [f"state/{i}" for i in range(len(batch.context))]
    return RecordBatch(
        observation=tuple(steps[f"observation/{tensor.name}"] for tensor in spec.observation),
        stack_index=tuple(
            stack_index(steps["step_type"], context, tensor.stack) for tensor in spec.observation
        ),
        previous_action=steps["action"][:, context - 1 : -1],
        action=steps["action"][:, context:],
        reward=steps["reward"][:, context:],
        discount=steps["discount"][:, context:],
        step_type=steps["step_type"][:, context:],
        policy_parameters=steps["policy_parameters"][:, context:],
        initial_state=tuple(batch.context[name] for name in names),
        policy_version=steps["policy_version"][:, context:],
    )
