"""Rows of SEED RL's table 1 (arXiv 1910.06591), simulated from one row of each environment.

The table says how many environments and CPUs there are and the frames/s, but not what a step takes.
So the first row of each group gives the CPU time of a step (inferred: as if the actors, whose
frames/s per CPU hardly change, were all that limits), and the others are predicted. The figures
are quoted from memory, not read from the paper. Assumed, not in the paper: an actor of one
core for each CPU or two, a process for each environment; 1 ms for a batch of 64 on two cores or the
V100, of 256 on eight; 2 microseconds of the host for each query; training that keeps up. 64 cores
are 8 hosts of 8, each with its own actors.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from services.local.plan.simulation import Simulation
from services.local.plan.system import Costs, System


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
      name: Environment and accelerator.
      environments, cpus: Of the actors.
      frames_per_second: Reported.
      frames_per_step: Action repeats.
      hosts: Learners' machines, inferred.
      inference_batch_size: Assumed.
    """

    name: str
    environments: int
    cpus: int
    frames_per_second: float
    frames_per_step: int
    hosts: int = 1
    inference_batch_size: int = 64


GROUPS = (
    (
        Row("DeepMind Lab, 2 TPU v3 cores", 312, 104, 74e3, 4),
        Row("DeepMind Lab, 8 TPU v3 cores", 1560, 520, 330e3, 4, 1, 256),
        Row("DeepMind Lab, 64 TPU v3 cores", 12480, 4160, 2.4e6, 4, 8, 256),
    ),
    (
        Row("football, 2 TPU v3 cores", 624, 416, 18e3, 1),
        Row("football, 8 TPU v3 cores", 2496, 1664, 71e3, 1, 1, 256),
    ),
    (
        Row("Atari, V100", 256, 55, 67e3, 4),
        Row("Atari, 8 TPU v3 cores", 610, 213, 260e3, 4, 1, 256),
    ),
)
_SECONDS = (0.3, 0.3)  # until all runs evenly, and measured


def reproduce() -> list[dict[str, Any]]:
    """Each row beside its simulation; the first of each group is what the others follow from."""
    rows = []
    for group in GROUPS:
        first = group[0]
        step_seconds = first.cpus * first.frames_per_step / first.frames_per_second
        for row in group:
            simulated = _simulate(row, step_seconds)
            rows.append(
                {
                    "row": row.name,
                    "paper": row.frames_per_second,
                    "simulated": simulated,
                    "ratio": simulated / row.frames_per_second,
                    "predicted": row is not first,
                }
            )
    return rows


def _simulate(row: Row, step_seconds: float) -> float:
    environments, cpus = row.environments // row.hosts, row.cpus // row.hosts
    costs = Costs(
        environment_seconds=step_seconds,
        environment_variation=0.5,
        actor_message_seconds=0.0,
        front_end_message_seconds=2e-6,
        inference_call_seconds=1e-3,
        inference_slot_seconds=0.0,
        update_seconds=0.0,
    )
    # Actors whose numbers of processes and cores have the table's ratio, nearly.
    processes = max(2, round(2 * environments / cpus))
    actors = round(environments / processes)
    system = System(
        actors=actors,
        workers=processes,
        groups=1,
        environments_per_group=1,
        actor_cores=cpus / actors,
        learner_cores=16,
        front_ends=4,
        device="separate",
        inference_batch_size=row.inference_batch_size,
        max_wait_seconds=1e-3,
        # None is finished in this time: training is no part of it.
        unroll_length=10_000,
        batch_size=32,
        frames_per_step=row.frames_per_step,
        latency_seconds=1e-4,
    )
    simulation = Simulation(costs, system)
    simulation.run(_SECONDS[0])
    return row.hosts * simulation.run(_SECONDS[1]).records_per_second * row.frames_per_step
