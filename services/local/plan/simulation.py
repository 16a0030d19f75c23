"""A discrete-event simulation of one learner with its actors.

It follows services/actor and services/learner message by message, with their own rules for
batches, rings and frames (docs/architecture.md); only the time that each part takes is given,
and jobs on one machine share its cores. `planner` asks it what a system would do.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from services.learner import statistics
from services.local.plan.processor import Processor
from services.local.plan.system import Costs, System

_Process = Generator[simpy.Event, Any, None]


@dataclasses.dataclass(frozen=True)
class Result:
    """What a simulated system did in the measured time.

    Attributes:
      frames_per_second: Taken into training.
      records_per_second: Answered.
      bottleneck: As the learner's gauge tells it.
      policy_lag: Mean updates between acting and training.
      round_trip_seconds: Mean time from a group's request to its answer.
      batch_fill: Mean share of the inference batch size.
      held_groups: Mean number of groups that wait for training.
      busy: Shares of the time at work: inference, training, front_ends (mean of them), actors (of
        their cores; of the whole machine if they share the learner's).
    """

    frames_per_second: float
    records_per_second: float
    bottleneck: str
    policy_lag: float
    round_trip_seconds: float
    batch_fill: float
    held_groups: float
    busy: dict[str, float]


class Group:
    """Environments that step together; all their slots are at the same record.

    Attributes:
      written: Records that were answered.
      left: Slots of each finished unroll that training has not taken, oldest first.
      taken: Unrolls that training has taken from all slots.
      is_leaving: It makes no more requests.
      asked, arrived: When its newest request was made, and when it reached inference.
      mean_versions: Mean policy version of each of these unrolls.
      versions: Sum over the records of the unroll being made.
    """

    def __init__(self, worker: simpy.Store, front_end: simpy.Store) -> None:
        """Starts without a record.

        Args:
          worker: Gets the group when it is answered.
          front_end: Gets it with its request.
        """
        self.worker = worker
        self.front_end = front_end
        self.is_leaving = False
        self.written = 0
        self.taken = 0
        self.asked = self.arrived = 0.0
        self.left: collections.deque[int] = collections.deque()
        self.mean_versions: collections.deque[float] = collections.deque()
        self.versions = 0


class Simulation:
    """One learner and its actors; `run` lets time pass.

    Attributes:
      actors: That are connected.
      groups: All of them.
      frames: Taken into training.
      trained_records: The same, in records.
      updates: So far.
    """

    def __init__(self, costs: Costs, system: System, seed: int = 0) -> None:
        """Starts all actors at once, with requests to make."""
        self.actors = 0
        self.groups: list[Group] = []
        self.frames = 0.0
        self.trained_records = 0
        self.updates = 0
        self._costs = costs
        self._system = system
        self._random = np.random.default_rng(seed)
        self._clock = clock = simpy.Environment()
        self._host = Processor(clock, system.learner_cores)
        self._inference_device = self._training_device = self._host
        if system.device != "cpu":
            self._inference_device = self._training_device = Processor(clock, 1)
        if system.device == "separate":
            self._training_device = Processor(clock, 1)
        self._front_ends = [simpy.Store(clock) for _ in range(system.front_ends)]
        self._machines: list[Processor] = []
        self._link_free = 0.0
        self._ready: collections.deque[Group] = collections.deque()
        self._held: list[Group] = []
        self._finished: collections.deque[Group] = collections.deque()
        self._wake = clock.event()
        self._unrolls = clock.event()
        self._sums: collections.defaultdict[str, float] = collections.defaultdict(float)
        self._held_since = 0.0
        for _ in range(system.actors):
            self.add_actor()
        for queue in self._front_ends:
            clock.process(self._front_end(queue))
        clock.process(self._inference())
        clock.process(self._trainer())

    def scale(self, actors: int) -> None:
        """Connects more actors, or lets the newest end with their next answers."""
        while self.actors < actors:
            self.add_actor()
        per_actor = self._system.workers * self._system.groups
        for group in self.groups[actors * per_actor :]:
            group.is_leaving = True
        del self.groups[actors * per_actor :]
        self.actors = actors

    def add_actor(self) -> None:
        """Connects another actor."""
        system, clock = self._system, self._clock
        machine = self._host
        if system.actor_cores is not None:
            machine = Processor(clock, system.actor_cores)
            self._machines.append(machine)
        self.actors += 1
        for _ in range(system.workers):
            queue = simpy.Store(clock)
            for _ in range(system.groups):
                front_end = self._front_ends[len(self.groups) % len(self._front_ends)]
                group = Group(queue, front_end)
                self.groups.append(group)
                queue.put(group)
            clock.process(self._worker(queue, machine))

    def run(self, seconds: float) -> Result:
        """Lets time pass; what happened in it."""
        before, began = self._look(), self._clock.now
        self._clock.run(began + seconds)
        passed = collections.defaultdict(
            float, {name: value - before.get(name, 0.0) for name, value in self._look().items()}
        )
        busy = {name: passed[name] / seconds for name in ("inference", "training")}
        busy["front_ends"] = passed["front_ends"] / seconds / len(self._front_ends)
        cores = self._system.learner_cores
        if self._system.actor_cores is not None:
            cores = self._system.actor_cores * len(self._machines)
        busy["actors"] = passed["actors"] / seconds / cores
        held = passed["held"] / seconds
        slots = passed["calls"] * self._system.inference_batch_size
        return Result(
            frames_per_second=passed["frames"] / seconds,
            records_per_second=passed["records"] / seconds,
            bottleneck=statistics.bottleneck(busy["training"], busy["inference"], held),
            policy_lag=passed["lag"] / max(1, passed["unrolls"]),
            round_trip_seconds=passed["waited"] / max(1, passed["answers"]),
            batch_fill=passed["records"] / slots if slots else 0.0,
            held_groups=held,
            busy=busy,
        )

    def _look(self) -> dict[str, float]:
        self._count_held()
        machines = self._machines or [self._host]
        # A job of no length: brings the processors' counts up to now.
        for machine in machines:
            machine.run(0.0)
        used = sum(machine.busy_seconds for machine in machines)
        return {**self._sums, "frames": self.frames, "actors": used}

    # Actors.

    def _worker(self, queue: simpy.Store, machine: Processor) -> _Process:
        costs, system = self._costs, self._system
        while True:
            group = yield queue.get()
            if group.is_leaving:
                continue
            yield machine.run(self._step_seconds() + costs.actor_message_seconds)
            group.asked = self._clock.now
            # One link into the learner: messages queue for it.
            transfer = system.message_bytes / system.bytes_per_second
            self._link_free = max(self._link_free, self._clock.now) + transfer
            self._later(
                self._link_free - self._clock.now + system.latency_seconds,
                lambda group=group: group.front_end.put((group, False)),
            )

    def _step_seconds(self) -> float:
        """Time of k environments, each drawn from a gamma distribution."""
        k, mean = self._system.environments_per_group, self._costs.environment_seconds
        variance = self._costs.environment_variation**2
        if not variance or not mean:
            return k * mean
        return float(self._random.gamma(k / variance, mean * variance))

    # The learner.

    def _front_end(self, queue: simpy.Store) -> _Process:
        half = self._costs.front_end_message_seconds / 2
        arrival = self._costs.front_end_seconds(self._system.message_bytes) - half
        while True:
            group, is_answered = yield queue.get()
            began = self._clock.now
            yield self._host.run(half if is_answered else arrival)
            self._sums["front_ends"] += self._clock.now - began
            if is_answered:
                self._later(self._system.latency_seconds, lambda group=group: self._answer(group))
            else:
                self._arrive(group)

    def _answer(self, group: Group) -> None:
        self._sums["waited"] += self._clock.now - group.asked
        self._sums["answers"] += 1
        group.worker.put(group)

    def _arrive(self, group: Group) -> None:
        group.arrived = self._clock.now
        if self._has_room(group):
            self._ready.append(group)
            self._later(self._system.max_wait_seconds, self._wake_inference)
        else:
            self._count_held()
            self._held.append(group)
        self._wake_inference()

    def _has_room(self, group: Group) -> bool:
        """Whether the record after the group's newest would overwrite none that is needed."""
        length = self._system.unroll_length
        kept = (self._system.unrolls_per_slot + 1) * length
        return group.written + 1 - group.taken * length <= kept

    def _count_held(self) -> None:
        self._sums["held"] += len(self._held) * (self._clock.now - self._held_since)
        self._held_since = self._clock.now

    def _release_held(self) -> None:
        """Lets those go on that have room now; they are older than what is ready."""
        self._count_held()
        free = [group for group in self._held if self._has_room(group)]
        self._held = [group for group in self._held if not self._has_room(group)]
        self._ready.extendleft(reversed(free))
        self._wake_inference()

    def _wake_inference(self) -> None:
        if not self._wake.triggered:
            self._wake.succeed()

    def _due(self) -> list[Group]:
        """The batch to process now: full, or all have reported, or the oldest has waited."""
        if not self._ready:
            return []
        k, size = self._system.environments_per_group, self._system.inference_batch_size
        fit = max(1, size // k)
        waited = self._clock.now - self._ready[0].arrived
        if not (
            len(self._ready) > fit
            or len(self._ready) * k >= size
            # A tolerance: the alarm comes at the sum of two floats.
            or waited >= self._system.max_wait_seconds * (1 - 1e-9)
            or len(self._ready) + len(self._held) >= len(self.groups)
        ):
            return []
        return [self._ready.popleft() for _ in range(min(fit, len(self._ready)))]

    def _inference(self) -> _Process:
        costs, k = self._costs, self._system.environments_per_group
        while True:
            batch = self._due()
            if not batch:
                self._wake = self._clock.event()
                yield self._wake
                continue
            began = self._clock.now
            slots = len(batch) * k
            yield self._inference_device.run(
                costs.inference_call_seconds + slots * costs.inference_slot_seconds
            )
            self._sums["inference"] += self._clock.now - began
            self._sums["calls"] += 1
            self._sums["records"] += slots
            for group in batch:
                self._record(group)
                group.front_end.put((group, True))

    def _record(self, group: Group) -> None:
        """Counts an answered record; T of them after the first, which it shares, are an unroll."""
        length = self._system.unroll_length
        if group.written and group.written % length == 0:
            group.left.append(self._system.environments_per_group)
            group.mean_versions.append(group.versions / length)
            group.versions = 0
            self._finished.append(group)
            if not self._unrolls.triggered:
                self._unrolls.succeed()
        group.versions += self.updates
        group.written += 1

    def _trainer(self) -> _Process:
        system, costs = self._system, self._costs
        while True:
            missing, versions = system.batch_size, 0.0
            while missing:
                if not self._finished:
                    self._unrolls = self._clock.event()
                    yield self._unrolls
                    continue
                count, version = self._take(missing)
                missing -= count
                versions += count * version
            self.trained_records += system.batch_size * system.unroll_length
            self.frames += system.frames_per_batch
            yield self._host.run(costs.gather_seconds)
            self._sums["lag"] += self.updates * system.batch_size - versions
            self._sums["unrolls"] += system.batch_size
            for _ in range(system.sample_reuse):
                began = self._clock.now
                yield self._training_device.run(costs.update_seconds)
                self._sums["training"] += self._clock.now - began
                self.updates += 1

    def _take(self, most: int) -> tuple[int, float]:
        """Takes unrolls of the oldest group that has some; their number and mean version."""
        group = self._finished[0]
        count = min(most, group.left[0])
        version = group.mean_versions[0]
        group.left[0] -= count
        if not group.left[0]:
            self._finished.popleft()
            group.left.popleft()
            group.mean_versions.popleft()
            group.taken += 1
            self._release_held()
        return count, version

    def _later(self, seconds: float, action: Any) -> None:
        self._clock.timeout(seconds).callbacks.append(lambda _: action())
