"""From finished runs of records to sequences in replay: R2D2's way out of the step store.

The unroll assembler cuts each slot's records into runs of `replay_period`. The thread of
`SequenceSender` takes the finished ones and appends them to what the slot's replay writer holds
already; whenever `burn_in + unroll_length + 1` records are together, they are a sequence:

    runs        |0        |40       |80       |120      |160
    sequence 0  |burn-in  |unroll              |
    sequence 1            |burn-in  |unroll              |

It begins with a run, so the recurrent state that the assembler kept at that run's start is the
state before the sequence's first record. Before that record come the `context` records that
frame stacks and the previous action need.
"""

from __future__ import annotations

import collections
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from services.learner.statistics import Statistics
from services.learner.unrolls import (
    IntArray,
    RecordBatch,
    Unroll,
    UnrollAssembler,
    context_length,
)
from services.shared.config import LearnerConfig
from services.shared.replay import (
    Field,
    ReplayClient,
    ReplayTimeout,
    SequenceLayout,
    SlotWriter,
    Tensors,
)
from services.shared.specs import EnvironmentSpec, StepType

_TAKE_SECONDS = 0.2
_ROOM_SECONDS = 0.2
_WARN_SECONDS = 30.0
# Attributes of `RecordBatch` that a sequence holds for each step, beside the observation.
_STEP_FIELDS = (
    "action",
    "reward",
    "discount",
    "step_type",
    "policy_parameters",
    "policy_version",
)
_log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]


class Prioritizer(Protocol):
    """Gives new sequences their priorities; `r2d2_agent.R2d2Agent` implements it."""

    parameter_size: int

    def initial_priorities(
        self, q: Floats, action: Any, reward: Floats, discount: Floats, step_type: Any
    ) -> Floats:
        """See `R2d2Agent.initial_priorities`."""


def layout(spec: EnvironmentSpec, parameter_size: int, state: tuple[Any, ...]) -> SequenceLayout:
    """What a sequence holds: the fields of `RecordBatch` but for those that follow from others.

    Args:
      spec: What the environments look like.
      parameter_size: Q-values of a record.
      state: The recurrent state, arrays [slots, ...].
    """
    observation = tuple(
        Field(f"observation/{tensor.name}", tensor.storage_dtype.name, tensor.storage_shape)
        for tensor in spec.observation
    )
    return SequenceLayout(
        steps=(
            *observation,
            Field("action", spec.action.dtype.name, (spec.action.size,)),
            Field("reward", "float32"),
            Field("discount", "float32"),
            Field("step_type", "uint8"),
            Field("policy_parameters", "float32", (parameter_size,)),
            Field("policy_version", "int64"),
        ),
        context=tuple(
            Field(f"state/{i}", part.dtype.name, part.shape[1:]) for i, part in enumerate(state)
        ),
    )


class _History:
    """The newest records of each slot that initial priorities are made of, [slots, T + 1, ...]."""

    def __init__(self, slots: int, records: int, parameter_size: int) -> None:
        self.q = np.zeros((slots, records, parameter_size), np.float32)
        self.action = np.zeros((slots, records, 1), np.int32)
        self.reward = np.zeros((slots, records), np.float32)
        self.discount = np.zeros((slots, records), np.float32)
        self.step_type = np.zeros((slots, records), np.uint8)

    def append(self, slots: IntArray, runs: RecordBatch) -> None:
        """Takes runs [n, P + 1] of different slots.

        A run's first record is the last one of the run before it, or, where a slot begins anew,
        the first of all that will be read.
        """
        pairs = (
            (self.q, runs.policy_parameters),
            (self.action, runs.action),
            (self.reward, runs.reward),
            (self.discount, runs.discount),
            (self.step_type, runs.step_type),
        )
        for kept, new in pairs:
            joined = np.concatenate([kept[slots, :-1], new], axis=1)
            kept[slots] = joined[:, -kept.shape[1] :]

    def rows(self, slots: IntArray) -> tuple[npt.NDArray[Any], ...]:
        """What `initial_priorities` takes, of these slots."""
        return tuple(
            kept[slots]
            for kept in (self.q, self.action, self.reward, self.discount, self.step_type)
        )


class SequenceSender:
    """See the module.

    Attributes:
      sent: Sequences handed to the client.
      dropped: Sequences that found replay away and the client's waiting room full, and those
        whose errors are not finite.
      dropped_steps: Those that were new in them.
      steps_in_hand: Taken from the assembler, not handed on or dropped yet.
    """

    def __init__(
        self,
        config: LearnerConfig,
        spec: EnvironmentSpec,
        assembler: UnrollAssembler,
        client: ReplayClient,
        agent: Prioritizer,
        statistics: Statistics,
        wake_inference: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Prepares; `run` is the thread's body.

        Args:
          config: The learner's settings.
          spec: What the environments look like.
          assembler: Of runs of `replay_period` records.
          client: Of the replay service.
          agent: Gives initial priorities.
          statistics: Counts steps, and the time that replay makes us wait.
          wake_inference: Called when records may be overwritten again.
          on_failure: Called with what ended `run`, in its thread.
        """
        slots, r2d2 = config.max_slots, config.r2d2
        self._spec = spec
        self._assembler = assembler
        self._client = client
        self._agent = agent
        self._statistics = statistics
        self._wake_inference = wake_inference
        self._on_failure = on_failure
        self._period = r2d2.replay_period
        self._context = context_length(spec)
        self._length = self._context + r2d2.burn_in + config.unroll_length + 1
        self._runs_in_sequence = (r2d2.burn_in + config.unroll_length) // r2d2.replay_period
        self._most_at_once = config.batch_size
        self._history = _History(slots, config.unroll_length + 1, agent.parameter_size)
        # Number of the record that a slot's next run begins with, if nothing comes between.
        self._next: IntArray = np.full(slots, -1, np.int64)
        self._writers: dict[int, SlotWriter] = {}
        # The states at the beginnings of the runs in a row that a slot has, newest last.
        self._states: dict[int, collections.deque[Tensors]] = {}
        self._stop = threading.Event()
        self._next_warning = 0.0
        self.sent = self.dropped = self.dropped_steps = self.steps_in_hand = 0

    def stop(self) -> None:
        """Makes `run` return within a second."""
        self._stop.set()

    def run(self) -> None:
        """Sends until `stop` or a failure."""
        try:
            while not self._stop.is_set():
                runs = self._assembler.take(self._most_at_once, _TAKE_SECONDS)
                if runs is not None:
                    records = self._assembler.gather(runs)
                    self._assembler.release(runs)
                    self._wake_inference()
                    self.send(runs, records)
        except Exception as error:  # the service reports it and ends
            _log.exception("sending sequences failed")
            self._on_failure(error)

    def send(self, runs: list[Unroll], records: RecordBatch) -> None:
        """Appends runs to their slots, and sends the sequences that are complete by them.

        Args:
          runs: Slots and numbers of the first records.
          records: Theirs, in the same order.
        """
        slots = np.array([run.slot for run in runs], np.int64)
        self.steps_in_hand = int(_steps(records).sum())
        left = np.arange(len(runs))
        while len(left):
            # A slot may have two runs here; the second one's turn comes after the first.
            _, first = np.unique(slots[left], return_index=True)
            chosen = left[np.sort(first)]
            whole = len(chosen) == len(runs)
            self._send([runs[i] for i in chosen], records if whole else records.select(chosen))
            left = np.setdiff1d(left, chosen)

    def _send(self, runs: list[Unroll], records: RecordBatch) -> None:
        """Like `send`, for runs of different slots."""
        slots = np.array([run.slot for run in runs], np.int64)
        starts = np.array([run.start for run in runs], np.int64)
        continues = (starts == self._next[slots]).tolist()
        self._next[slots] = starts + self._period
        self._history.append(slots, records)
        for i, slot in enumerate(slots.tolist()):
            self._append(slot, records, i, continues[i])
        steps = _steps(records)
        full = np.array([len(self._states[s]) == self._runs_in_sequence for s in slots.tolist()])
        self._add_steps(int(steps[~full].sum()))
        if full.any():
            complete = slots[full]
            priorities = self._agent.initial_priorities(*self._history.rows(complete))
            new = zip(complete.tolist(), priorities.tolist(), steps[full].tolist(), strict=True)
            for slot, priority, count in new:
                self._create(slot, priority, count)

    def _append(self, slot: int, records: RecordBatch, row: int, continues: bool) -> None:
        """Appends one run; `continues` if its first record is the slot's newest already."""
        writer = self._writers.get(slot)
        if writer is None:
            block = self._period + self._context + 1
            writer = self._client.writer(slot, self._length, block)
            self._writers[slot] = writer
            self._states[slot] = collections.deque(maxlen=self._runs_in_sequence)
        if not continues:
            writer.end_episode()
            self._states[slot].clear()
        self._states[slot].append(
            {f"state/{i}": part[row] for i, part in enumerate(records.initial_state)}
        )
        steps = self._steps(records, row, continues)
        # The next sequence begins `context` records before this run's last record.
        begins = max(0, len(steps["reward"]) - self._context - 1)
        writer.extend({name: values[:begins] for name, values in steps.items()})
        writer.cut()
        writer.extend({name: values[begins:] for name, values in steps.items()})
        writer.cut()

    def _steps(self, records: RecordBatch, row: int, continues: bool) -> Tensors:
        """What a run adds to its slot, an array [n, ...] for each field of `layout`."""
        # What lies before an environment's first record counts for nothing, since that is FIRST;
        # repeating it fills the place.
        lead = 0 if continues else self._context
        index = np.r_[np.zeros(lead, np.int64), int(continues) : self._period + 1]
        steps: Tensors = {
            f"observation/{tensor.name}": values[row, self._context :][index]
            for tensor, values in zip(self._spec.observation, records.observation, strict=True)
        }
        for name in _STEP_FIELDS:
            steps[name] = getattr(records, name)[row, index]
        return steps

    def _create(self, slot: int, priority: float, steps: int) -> None:
        """Makes a sequence of the slot's newest records, once replay takes it.

        The `steps` that are new in it count only then: while replay is away, training shall not
        come nearer to its end.
        """
        if not math.isfinite(priority):  # it would spoil every batch that it is in
            self._drop(steps, f"the errors of a sequence of slot {slot} are not finite")
            return
        while not self._stop.is_set():
            away = self._client.is_away
            started = time.monotonic()
            try:
                self._writers[slot].create_item(
                    self._length, priority, self._states[slot][0], 0.0 if away else _ROOM_SECONDS
                )
            except ReplayTimeout as error:
                if away:  # inference shall not wait for it
                    self._drop(steps, str(error))
                    break
            else:
                self._add_steps(steps)
                self.sent += 1
                break
            finally:
                self._statistics.observe_busy("replay", time.monotonic() - started)

    def _add_steps(self, steps: int) -> None:
        self._statistics.add_steps(steps, self._spec)
        self.steps_in_hand -= steps

    def _drop(self, steps: int, why: str) -> None:
        self.dropped += 1
        self.dropped_steps += steps
        self.steps_in_hand -= steps
        self._warn(f"{self.dropped} sequences dropped so far: {why}")

    def _warn(self, message: str) -> None:
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _WARN_SECONDS
            _log.warning("%s", message)


def _steps(records: RecordBatch) -> IntArray:
    """Real environment steps of each row, [n]."""
    steps: IntArray = np.count_nonzero(records.step_type[:, 1:] != StepType.FIRST, axis=1)
    return steps
