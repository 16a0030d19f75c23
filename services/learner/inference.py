"""The inference loop: requests that arrived -> one batched call of the policy -> answers.

It runs in a thread of its own. Between the transport and the policy nothing loops over
environments: every step is a numpy operation over env slots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from services.learner.cpu_time import CpuTime
from services.learner.fair_lock import FairLock
from services.learner.leases import Group
from services.learner.request_queue import RequestQueue
from services.learner.roles import Role
from services.learner.statistics import Statistics
from services.learner.step_store import StepStore
from services.learner.unrolls import IntArray, UnrollAssembler
from services.shared.config import LearnerConfig
from services.shared.specs import StepType

# Plain integers: numpy compares with them several times faster than with an enum's members.
_FIRST, _ABSENT = int(StepType.FIRST), int(StepType.ABSENT)
_IDLE_SECONDS = 0.1  # how soon the loop notices that it shall stop, when nothing arrives

Arrays = tuple[npt.NDArray[np.generic], ...]


class Decisions(NamedTuple):
    """What a policy answers to n slots.

    Attributes:
      action: [n, A].
      policy_parameters: float32 [n, P].
      value: float32 [n], of the situations that the actions were chosen in; in the policy's
        units, see `explanation.value`.
      state: For each state tensor [n, ...], the new one.
    """

    action: npt.NDArray[np.generic]
    policy_parameters: npt.NDArray[np.float32]
    value: npt.NDArray[np.float32]
    state: Arrays


class Policy(Protocol):
    """What chooses actions; `services.learner.agent.Agent` implements it."""

    @property
    def version(self) -> int:
        """Updates that the parameters have seen."""

    def act(
        self,
        slots: IntArray,
        observation: Arrays,
        previous_action: npt.NDArray[np.generic],
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        state: Arrays,
    ) -> Decisions:
        """Chooses actions for n slots.

        Args:
          slots: int64 [n].
          observation: For each tensor [n, *storage_shape], or [n, stack, *storage_shape] where
            the spec stacks.
          previous_action: [n, A].
          reward: float32 [n].
          first: bool [n].
          state: For each state tensor [n, ...].
        """


class InferenceTransport(Protocol):
    """Where requests come from and answers go; `transport.Transport` implements it."""

    lock: FairLock

    @property
    def live_groups(self) -> int:
        """Groups that have a stream, so that a request can be expected of them."""

    @property
    def live_training_groups(self) -> int:
        """Those of them that are trained on."""

    def wait(self, timeout_seconds: float) -> None:
        """Waits for a request, a wake-up or the timeout."""

    def wake(self) -> None:
        """Ends a `wait`."""

    def take(self) -> list[Group]:
        """Groups whose requests have arrived since the last call."""

    def is_current(self, group: Group, epoch: int) -> bool:
        """Whether the group is still leased and its stream is still the same."""

    def answer(self, groups: Iterable[Group]) -> None:
        """Sends the groups' answers."""


class InferenceLoop:
    """Batches requests and answers them."""

    def __init__(
        self,
        config: LearnerConfig,
        store: StepStore,
        transport: InferenceTransport,
        policy: Policy,
        state: Arrays,
        assembler: UnrollAssembler,
        statistics: Statistics,
        cpu_time: CpuTime,
    ) -> None:
        """Prepares the loop; `run` is the thread's body.

        Args:
          config: The learner's settings.
          store: The records.
          transport: Where requests come from.
          policy: What chooses actions.
          state: Recurrent state of all slots, [slots, ...] a tensor; updated in place.
          assembler: Cuts the records into unrolls; reads `state`.
          statistics: Counts episodes and batches.
          cpu_time: Attributes the process's CPU time.
        """
        self._batch_size = config.inference_batch_size
        self._max_wait_seconds = config.inference_max_wait_seconds
        self._store = store
        self._transport = transport
        self._policy = policy
        self._state = state
        self._assembler = assembler
        self._statistics = statistics
        self._cpu_time = cpu_time
        self._queue = RequestQueue(transport.is_current, self._has_room)
        self._last_step = time.monotonic()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Makes `run` return."""
        self._stop.set()
        self._transport.wake()

    def run(self) -> None:
        """Answers requests until `stop`."""
        while not self._stop.is_set():
            self._transport.wait(self._patience())
            self.step()

    def step(self) -> None:
        """Takes what has arrived and processes a batch if one is due."""
        queue = self._queue
        with self._transport.lock:
            now = time.monotonic()
            queue.add(self._transport.take(), now)
            self._observe_held(now)
            if self._is_due(now) and (batch := queue.take(self._batch_size)):
                self._process([request.group for request in batch])
                self._statistics.queue_wait.observe(now - batch[0].arrived)

    def _observe_held(self, now: float) -> None:
        self._statistics.observe_busy(
            "held", self._statistics.held_groups * (now - self._last_step)
        )
        self._statistics.held_groups = self._queue.held
        self._last_step = now

    def _patience(self) -> float:
        # Requests that are held back for lack of room wait for `wake`, not for the clock.
        due_at = self._queue.oldest + self._max_wait_seconds
        return min(_IDLE_SECONDS, due_at - time.monotonic())

    def _has_room(self, slots: IntArray) -> bool:
        return self._store.finished[0] > 0 or self._assembler.has_room(slots)

    def _is_due(self, now: float) -> bool:
        """Whether it does not pay to wait for more."""
        queue = self._queue
        return (
            queue.ready_slots >= self._batch_size
            or now - queue.oldest >= self._max_wait_seconds
            or (queue.ready_slots > 0 and self._all_reported())
        )

    def _all_reported(self) -> bool:
        """Whether no other request is worth waiting for; evaluation never holds training up."""
        training = self._transport.live_training_groups
        if not training:
            return self._queue.waiting() >= self._transport.live_groups
        return self._queue.waiting(Role.TRAINING) >= training

    def _process(self, groups: list[Group]) -> None:
        store = self._store
        slots = np.concatenate([group.slots for group in groups])
        records = store.written[slots]
        rows = slots * store.layout.ring + records % store.layout.ring
        step_type = store.step_type_flat[rows]
        present = step_type != _ABSENT
        if np.count_nonzero(present) < len(slots):
            slots, records, rows = slots[present], records[present], rows[present]
            step_type = step_type[present]
        with self._cpu_time.inference(len(slots)):
            if len(slots):
                self._advance(slots, records, rows, step_type)
            self._transport.answer(groups)

    def _advance(
        self, slots: IntArray, records: IntArray, rows: IntArray, step_type: npt.NDArray[np.uint8]
    ) -> None:
        """Chooses actions.

        Args:
          slots: int64 [n].
          records: int64 [n], the number of each slot's record.
          rows: int64 [n], where these are in the store's flat arrays.
          step_type: uint8 [n], theirs.
        """
        store, assembler = self._store, self._assembler
        reward = store.reward_flat[rows]
        first = step_type == _FIRST
        assembler.begin(slots, records, rows, first)
        # `take` copies whole records, which indexing with an array does not.
        observation = tuple(
            tensor.take(
                rows if spec.stack == 1 else assembler.stack_rows(slots, records, spec.stack),
                axis=0,
            )
            for tensor, spec in zip(
                store.observation_flat, store.layout.spec.observation, strict=True
            )
        )
        previous = store.action[slots, (records - 1) % store.layout.ring]
        version = self._policy.version
        started = time.monotonic()
        decisions = self._policy.act(
            slots, observation, previous, reward, first, tuple(part[slots] for part in self._state)
        )
        seconds = time.monotonic() - started
        self._statistics.inference_latency.observe(seconds)
        self._statistics.observe_busy("inference", seconds)
        store.action_flat[rows] = decisions.action
        store.policy_parameters_flat[rows] = decisions.policy_parameters
        store.value[slots] = decisions.value
        store.policy_version_flat[rows] = version
        for part, new in zip(self._state, decisions.state, strict=True):
            part[slots] = new
        store.written[slots] = records + 1
        assembler.end()
        self._statistics.observe_steps(
            slots, step_type, reward, self._batch_size, store.take_episode_info
        )
