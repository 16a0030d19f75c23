"""How many actors, front ends and learners a frame rate needs, and what they cost."""

from __future__ import annotations

import dataclasses
import math

from services.learner.statistics import TARGET_UTILISATION, actors_wanted
from services.local.plan.simulation import Result, Simulation
from services.local.plan.system import Costs, System

_TRIES = 6
_TOLERANCE = 0.1
_CLOSE = 0.98  # of the wanted rate
_FULL = 0.95  # of the inference batch size
# Updates to let pass before measuring, so that the rings are as full as they will be, and those
# to measure; at least so many records, at most so many seconds.
_UPDATES = (8, 24)
_LEAST_RECORDS = 5_000
_MOST_SECONDS = 120.0


class PlanError(ValueError):
    """No such system reaches the rate; the message says what limits it."""


@dataclasses.dataclass(frozen=True)
class Prices:
    """Dollars an hour.

    Attributes:
      core: Of a CPU core. The default is about that of a general-purpose machine on demand; spot
        machines cost a third or less.
      accelerator: Of one accelerator.
    """

    core: float = 0.035
    accelerator: float = 1.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """A system, and what it does by simulation.

    Attributes:
      learners: Data-parallel ones; the others are numbers of all of them together.
      system: One learner with its actors.
      result: What one of them does.
      cores: Of learners and actors.
      dollars_per_hour: By the prices.
    """

    learners: int
    system: System
    result: Result
    cores: float
    accelerators: int
    dollars_per_hour: float

    @property
    def frames_per_second(self) -> float:
        """Of all learners."""
        return self.learners * self.result.frames_per_second

    @property
    def actors(self) -> int:
        """Of all learners."""
        return self.learners * self.system.actors

    @property
    def dollars_per_million_frames(self) -> float:
        """At this rate."""
        return self.dollars_per_hour / 3600 / self.frames_per_second * 1e6


def simulate(costs: Costs, system: System, seed: int = 0) -> Result:
    """What a system does once it runs evenly."""
    rate = min(
        learner_frames_per_second(costs, system) / TARGET_UTILISATION,
        _actors_frames_per_second(costs, system),
    )
    simulation = Simulation(costs, system, seed)
    update = max(
        system.frames_per_batch / rate, _LEAST_RECORDS * system.frames_per_record / rate / 24
    )
    # Before there is a first unroll of each slot nothing is as it will be.
    fill = 2 * system.environments * system.unroll_length * system.frames_per_record / rate
    simulation.run(min(_MOST_SECONDS, fill + _UPDATES[0] * update))
    return simulation.run(min(_MOST_SECONDS, _UPDATES[1] * update))


def learner_frames_per_second(costs: Costs, system: System) -> float:
    """What one learner can take, at the target utilisation of its busiest part.

    Full batches; one front end more for each that is needed, so they are no limit but for cores.
    """
    frames = system.frames_per_record
    k = system.environments_per_group
    batch = max(1, system.inference_batch_size // k) * k
    inference = (costs.inference_call_seconds / batch + costs.inference_slot_seconds) / frames
    training = costs.update_seconds * system.sample_reuse / system.frames_per_batch
    gather = costs.gather_seconds / system.frames_per_batch
    host = costs.front_end_seconds(system.message_bytes) / k / frames + gather
    # Seconds of a frame, of each thing of which there is one.
    limits = [inference, training + gather]
    if system.device == "shared":
        limits.append(inference + training)
    if system.device == "cpu":
        host += inference + training
        if system.actor_cores is None:
            host += _actor_seconds(costs, system)
    limits.append(host / system.learner_cores)
    limits.append(system.observation_bytes / system.bytes_per_second / frames)
    seconds = max(limits)
    return TARGET_UTILISATION / seconds if seconds else math.inf


def _actor_seconds(costs: Costs, system: System) -> float:
    """Core-seconds of a frame on an actor."""
    record = costs.environment_seconds + costs.actor_message_seconds / system.environments_per_group
    return record / system.frames_per_record


def _actors_frames_per_second(costs: Costs, system: System) -> float:
    cores = float(system.actors * system.workers)
    if system.actor_cores is not None:
        cores = min(cores, system.actors * system.actor_cores)
    return cores / _actor_seconds(costs, system)


def plan(costs: Costs, one: System, frames_per_second: float, prices: Prices) -> Plan:
    """The smallest system that reaches the rate.

    Args:
      costs: Of the parts.
      one: A learner; its numbers of actors and front ends are what is looked for.
      frames_per_second: Wanted.
      prices: Dollars.

    Raises:
      PlanError: More actors do not help; the message says why.
    """
    capacity = learner_frames_per_second(costs, one)
    learners = max(1, math.ceil(frames_per_second / capacity))
    share = frames_per_second / learners
    message = costs.front_end_seconds(one.message_bytes)
    records = share / one.frames_per_record / one.environments_per_group
    front_ends = max(1, math.ceil(records * message / TARGET_UTILISATION))
    single = dataclasses.replace(one, actors=1)
    actors = max(1, math.ceil(share / _actors_frames_per_second(costs, single)))
    for _ in range(_TRIES):
        system = dataclasses.replace(one, actors=actors, front_ends=front_ends)
        result = simulate(costs, system)
        if result.frames_per_second >= _CLOSE * share:
            return _priced(learners, system, result, prices)
        # Inference whose batches are not full can take more.
        is_full = result.bottleneck == "training" or (
            result.bottleneck == "inference" and result.batch_fill > _FULL
        )
        if is_full or not result.frames_per_second:
            break
        actors = max(actors + 1, math.ceil(actors * share / result.frames_per_second))
    raise PlanError(
        f"{frames_per_second:,.0f} frames/s: {learners} learner(s) with {actors} actors each give"
        f" {learners * result.frames_per_second:,.0f} by simulation, limited by"
        f" {result.bottleneck}; allowed: a lower rate, a larger inference batch, or more groups"
    )


def _priced(learners: int, system: System, result: Result, prices: Prices) -> Plan:
    cores = learners * (system.learner_cores + system.actors * (system.actor_cores or 0.0))
    accelerators = learners * {"cpu": 0, "shared": 1, "separate": 2}[system.device]
    dollars = cores * prices.core + accelerators * prices.accelerator
    return Plan(learners, system, result, cores, accelerators, dollars)


def autoscaled(
    simulation: Simulation, interval_seconds: float, rounds: int, most: int
) -> list[int]:
    """Lets an autoscaler follow `seedpod_actors_wanted`.

    Args:
      simulation: Is changed.
      interval_seconds: Between two looks, each at what happened since the last.
      rounds: Looks.
      most: Actors that it may start.

    Returns:
      Numbers of actors after each look.
    """
    numbers = []
    for _ in range(rounds):
        result = simulation.run(interval_seconds)
        wanted = actors_wanted(
            simulation.actors,
            result.busy["training"],
            result.busy["inference"],
            result.bottleneck,
        )
        # As Kubernetes does it: rounded up, and no change within a tenth.
        if abs(wanted / simulation.actors - 1) > _TOLERANCE:
            simulation.scale(min(most, math.ceil(wanted)))
        numbers.append(simulation.actors)
    return numbers
