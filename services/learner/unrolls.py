"""From records to unrolls: where each slot's unroll begins, which are complete, what they hold.

The inference loop reports every batch of records it has processed; the trainer takes completed
unrolls and gathers their records from the step store. A ring that is full of unrolls which
training has not taken holds its slot back (`has_room`), so policy lag is bounded by
`unrolls_per_slot` + 1 unrolls and the batch being trained.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from services.learner.roles import Role
from services.learner.step_store import StepStore
from services.shared.specs import EnvironmentSpec, StepType

IntArray = npt.NDArray[np.int64]

# A plain integer: numpy compares with it several times faster than with an enum's member.
_TRAINING = int(Role.TRAINING)


def context_length(spec: EnvironmentSpec) -> int:
    """Records kept before an unroll's first: for frame stacks and for the previous action."""
    return max(1, max(tensor.stack for tensor in spec.observation) - 1)


def ring_length(spec: EnvironmentSpec, unroll_length: int, unrolls_per_slot: int) -> int:
    """Records of a slot's ring: finished unrolls, the one being made, context, one shared."""
    return context_length(spec) + (unrolls_per_slot + 1) * unroll_length + 1


def policy_lag_bound(
    slots: int, batch_size: int, unrolls_per_slot: int, sample_reuse: int
) -> float:
    """Updates by which a record may lag behind, if all slots are equally fast."""
    return sample_reuse * ((unrolls_per_slot + 1) * slots / batch_size + 1)


@dataclasses.dataclass
class RecordBatch:
    """Consecutive records of B slots, batch-major; T + 1 records, L = T + 1 + context.

    Attributes:
      observation: For each tensor [B, L, *storage_shape], the context first.
      stack_index: int32 [B, T + 1, stack] into L for each tensor.
      previous_action: [B, T + 1, A].
      action: [B, T + 1, A].
      reward, discount: float32 [B, T + 1].
      step_type: uint8 [B, T + 1].
      policy_parameters: float32 [B, T + 1, P], of the behaviour policy.
      initial_state: For each state tensor [B, ...], before the first record.
      policy_version: int64 [B, T + 1].
    """

    observation: tuple[npt.NDArray[np.generic], ...]
    stack_index: tuple[npt.NDArray[np.int32], ...]
    previous_action: npt.NDArray[np.generic]
    action: npt.NDArray[np.generic]
    reward: npt.NDArray[np.float32]
    discount: npt.NDArray[np.float32]
    step_type: npt.NDArray[np.uint8]
    policy_parameters: npt.NDArray[np.float32]
    initial_state: tuple[npt.NDArray[np.generic], ...]
    policy_version: IntArray

    def select(self, rows: npt.NDArray[Any] | slice) -> RecordBatch:
        """Some of the slots, by index, mask or slice."""
        return self._map(lambda parts: parts[0][rows], [self])

    @classmethod
    def concatenate(cls, batches: list[RecordBatch]) -> RecordBatch:
        """All slots of all batches."""
        return batches[0] if len(batches) == 1 else cls._map(np.concatenate, batches)

    @classmethod
    def _map(cls, function: Callable[[list[Any]], Any], batches: list[RecordBatch]) -> RecordBatch:
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values = [getattr(batch, field.name) for batch in batches]
            if isinstance(values[0], tuple):
                parts = zip(*values, strict=True)
                fields[field.name] = tuple(function(list(part)) for part in parts)
            else:
                fields[field.name] = function(values)
        return cls(**fields)

    @property
    def environment_steps(self) -> int:
        """Real environment steps among the T transitions (from LAST to FIRST is none)."""
        return int(np.count_nonzero(self.step_type[:, 1:] != StepType.FIRST))


class Unroll(NamedTuple):
    """A finished unroll.

    Attributes:
      slot: Its env slot.
      start: Number of its first record.
      place: Of its initial state, among those that the assembler keeps of the slot.
    """

    slot: int
    start: int
    place: int


def stack_index(
    step_type: npt.NDArray[np.uint8], context: int, stack: int
) -> npt.NDArray[np.int32]:
    """Which frames each record's observation is stacked from.

    Args:
      step_type: uint8 [B, L] of consecutive records, the first `context` of which are only there
        to be looked back at.
      context: Number of these.
      stack: Frames of an observation.

    Returns:
      int32 [B, L - context, stack] into L, oldest first; an episode's first frame is repeated.
    """
    position = np.arange(step_type.shape[1])
    newest_first = np.maximum.accumulate(np.where(step_type == StepType.FIRST, position, 0), axis=1)
    wanted = position[context:, None] - np.arange(stack - 1, -1, -1)
    index: npt.NDArray[np.int32] = np.maximum(wanted, newest_first[:, context:, None]).astype(
        np.int32
    )
    return index


class UnrollAssembler:
    """Cuts the slots' records into unrolls.

    Attributes:
      received_steps: int64 [slots], records that were processed, without FIRST.
      dropped_steps: int64 [slots], those of them that an environment's loss left in unfinished
        unrolls.
    """

    def __init__(
        self,
        store: StepStore,
        state: tuple[npt.NDArray[np.generic], ...],
        unroll_length: int,
        unrolls_per_slot: int,
        roles: npt.NDArray[np.uint8],
    ) -> None:
        """Starts with no unroll.

        Args:
          store: Where the records are.
          state: The recurrent state of each slot, [slots, ...] a tensor, before its next record.
          unroll_length: T; an unroll has T + 1 records and shares its last with the next one.
          unrolls_per_slot: Finished unrolls that a slot may hold.
          roles: uint8 [slots], `Role`s: unrolls are cut of training slots alone.
        """
        slots = store.layout.slots
        self._store = store
        self._state = state
        self._roles = roles
        self._length = unroll_length
        self._context = context_length(store.layout.spec)
        # Record numbers: of the unroll being made, of the episode's FIRST, of the oldest record
        # that training still needs.
        self._start: IntArray = np.zeros(slots, np.int64)
        self._first: IntArray = np.zeros(slots, np.int64)
        self._oldest: IntArray = np.zeros(slots, np.int64)
        self._waiting: IntArray = np.zeros(slots, np.int64)
        # The state at each unroll's start, for the finished ones and the one being made; an
        # unroll's place among them is its number modulo their count.
        self._kept = unrolls_per_slot + 1
        self._number: IntArray = np.zeros(slots, np.int64)
        self._start_state = tuple(
            np.zeros((slots, self._kept, *part.shape[1:]), part.dtype) for part in state
        )
        self._finishing = np.zeros((0, 3), np.int64)
        self._finished: collections.deque[Unroll] = collections.deque()
        self._condition = threading.Condition()
        self.received_steps: IntArray = np.zeros(slots, np.int64)
        self.dropped_steps: IntArray = np.zeros(slots, np.int64)
        # Of `received_steps`, at the start of the unroll being made.
        self._steps_at_start: IntArray = np.zeros(slots, np.int64)

    def __len__(self) -> int:
        """Finished unrolls that wait for training."""
        return len(self._finished)

    def has_room(self, slots: IntArray) -> bool:
        """Whether every slot's row after its newest arrived record may be overwritten."""
        spare = self._store.layout.ring - self._context - 2
        used = self._store.written[slots] - self._oldest[slots]
        return bool(np.count_nonzero(used <= spare) == len(slots))

    def begin(
        self, slots: IntArray, records: IntArray, rows: IntArray, first: npt.NDArray[np.bool_]
    ) -> None:
        """Takes notice of records that are about to be processed.

        Args:
          slots: int64 [n].
          records: int64 [n], number of each slot's record.
          rows: int64 [n], where these are in the store's flat arrays.
          first: bool [n], whether it is a FIRST. A new incarnation begins with one.
        """
        store = self._store
        renewed = first
        if np.count_nonzero(first):
            incarnation = store.incarnation_flat[rows]
            renewed = incarnation != store.slot_incarnation[slots]
            store.slot_incarnation[slots] = incarnation
            self._first[slots[first]] = records[first]
        trained = self._roles[slots] == _TRAINING
        if np.count_nonzero(trained) < len(slots):
            self._pass_over(slots[~trained], records[~trained])
            slots, records = slots[trained], records[trained]
            first, renewed = first[trained], renewed[trained]
        self.received_steps[slots] += ~first
        complete = ~renewed & (records - self._start[slots] == self._length)
        starts = renewed | complete
        if not np.count_nonzero(starts):
            return
        lost = slots[renewed]
        self.dropped_steps[lost] += self.received_steps[lost] - self._steps_at_start[lost]
        done = slots[complete]
        self._finishing = np.stack(
            [done, self._start[done], self._number[done] % self._kept], axis=1
        )
        self._number[done] += 1
        at = slots[starts]
        self._steps_at_start[at] = self.received_steps[at]
        for target, part in zip(self._start_state, self._state, strict=True):
            target[at, self._number[at] % self._kept] = part[at]
        with self._condition:
            # Counted as waiting from here on: while the batch that completes it is processed,
            # `release` of the unroll before must not give its records away.
            self._waiting[done] += 1
            self._start[at] = records[starts]
            idle = slots[renewed]
            idle = idle[self._waiting[idle] == 0]
            self._oldest[idle] = self._start[idle]

    def _pass_over(self, slots: IntArray, records: IntArray) -> None:
        """Lets nothing wait for slots that are not trained on: their unroll ever begins anew."""
        # What a training lease of the slot before has left unfinished.
        received = self.received_steps[slots]
        self.dropped_steps[slots] += received - self._steps_at_start[slots]
        self._steps_at_start[slots] = received
        with self._condition:
            self._start[slots] = records
            # A training lease of the slot before may have left an unroll that training will take.
            idle = self._waiting[slots] == 0
            self._oldest[slots[idle]] = records[idle]

    def end(self) -> None:
        """Hands the unrolls that the last `begin` completed to training."""
        if not len(self._finishing):
            return
        with self._condition:
            self._finished.extend(map(Unroll._make, self._finishing.tolist()))
            self._condition.notify()
        self._finishing = self._finishing[:0]

    def unfinished_steps(self) -> int:
        """Steps of the unrolls that are being made or wait, counted in the records themselves."""
        with self._condition:
            waiting = [(u.slot, u.start) for u in self._finished]
            # Of a slot that is not trained on nothing comes after its start.
            making = [(slot, int(self._start[slot])) for slot in range(len(self._start))]
        slots, start = np.array(waiting + making, np.int64).reshape(-1, 2).T
        records = start[:, None] + np.arange(1, self._length + 1)
        step_type = self._store.step_type[slots[:, None], records % self._store.layout.ring]
        written = records < self._store.written[slots][:, None]
        return int(np.count_nonzero(written & (step_type != StepType.FIRST)))

    def stack_rows(self, slots: IntArray, records: IntArray, stack: int) -> IntArray:
        """Rows of the frames that the records' observations are stacked from.

        Returns:
          int64 [n, stack] into the store's flat arrays, oldest first; an episode's first frame
          is repeated.
        """
        wanted = records[:, None] - np.arange(stack - 1, -1, -1)
        newest: IntArray = np.maximum(wanted, self._first[slots][:, None])
        ring = self._store.layout.ring
        return (slots * ring)[:, None] + newest % ring

    def take(self, batch_size: int, timeout_seconds: float) -> list[Unroll] | None:
        """Waits for finished unrolls and takes up to `batch_size`.

        The caller copies what it needs by `gather`, then gives them back by `release`.

        Returns:
          One or more unrolls, oldest first, or None after the timeout.
        """
        with self._condition:
            if not self._condition.wait_for(lambda: self._finished, timeout_seconds):
                return None
            count = min(batch_size, len(self._finished))
            return [self._finished.popleft() for _ in range(count)]

    def release(self, unrolls: list[Unroll]) -> None:
        """Lets the records of taken unrolls be overwritten."""
        with self._condition:
            for slot, start, _ in unrolls:
                self._waiting[slot] -= 1
                # The next one of the slot begins with this one's last record, or later.
                self._oldest[slot] = (
                    start + self._length if self._waiting[slot] else self._start[slot]
                )

    def gather(self, unrolls: list[Unroll]) -> RecordBatch:
        """Copies the records of taken unrolls."""
        store = self._store
        slots, start, kept = np.array(unrolls, np.int64).T
        length, context = self._length, self._context
        records = start[:, None] + np.arange(-context, length + 1)
        all_rows = (slots * store.layout.ring)[:, None] + records % store.layout.ring
        rows = all_rows[:, context:]
        spec = store.layout.spec
        step_type = store.step_type_flat[all_rows]
        return RecordBatch(
            observation=tuple(tensor.take(all_rows, axis=0) for tensor in store.observation_flat),
            stack_index=tuple(
                stack_index(step_type, context, tensor.stack) for tensor in spec.observation
            ),
            previous_action=store.action_flat[all_rows[:, context - 1 : -1]],
            action=store.action_flat[rows],
            reward=store.reward_flat[rows],
            discount=store.discount_flat[rows],
            step_type=step_type[:, context:],
            policy_parameters=store.policy_parameters_flat[rows],
            initial_state=tuple(part[slots, kept] for part in self._start_state),
            policy_version=store.policy_version_flat[rows],
        )
