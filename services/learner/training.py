"""Puts together what an experiment's algorithm needs, from the agent to the threads that train.

V-trace takes unrolls straight from the step store:

    assembler -> UnrollSource -> Trainer

or, where actors hold the policy, from what they send:

    actors -> UnrollQueue -> TrajectorySource -> Trainer

R2D2 goes through the replay service, with a thread on each side:

    assembler -> SequenceSender -> replay -> ReplaySource -> Trainer
                                      ^------- priorities -------|
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from services.learner import exploration, sequences, unrolls
from services.learner.agent import Agent
from services.learner.agreement import Agreement
from services.learner.cpu_time import CpuTime
from services.learner.leases import LeaseTable
from services.learner.r2d2_agent import R2d2Agent
from services.learner.replay_source import ReplaySource
from services.learner.replicas import ALONE, Replicas
from services.learner.statistics import Statistics
from services.learner.trainer import Trainer, UnrollSource
from services.learner.unroll_queue import Desk, TrajectorySource
from services.learner.unrolls import UnrollAssembler
from services.learner.vtrace_agent import VtraceAgent
from services.shared import config
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.replay import ReplayClient
from services.shared.specs import DiscreteActionSpec, EnvironmentSpec

# Sequences of this many batches may be on their way; with more, actors would run ahead of what
# the rate limiter allows.
_BATCHES_AHEAD = 2


def make_agent(
    settings: config.LearnerConfig,
    spec: EnvironmentSpec,
    leases: LeaseTable,
    replicas: Replicas = ALONE,
) -> Agent:
    """Makes the agent of the algorithm.

    Args:
      settings: The learner's.
      spec: What the environments look like.
      leases: What becomes of each slot.
      replicas: What makes an update together.

    Raises:
      NetworkError: The network or the algorithm does not suit the environment.
    """
    if settings.algorithm == "vtrace":
        return VtraceAgent(settings, spec, leases.evaluated, replicas)
    explore = exploration.by_slot(
        settings.r2d2, leases.roles, leases.places, settings.evaluation.greedy
    )
    return R2d2Agent(settings, spec, explore, replicas)


def policy_kind(settings: config.LearnerConfig, spec: EnvironmentSpec) -> inference_pb2.PolicyKind:
    """What the policy's parameters stand for."""
    if settings.algorithm == "r2d2":
        return inference_pb2.POLICY_KIND_ACTION_VALUES
    if isinstance(spec.action, DiscreteActionSpec):
        return inference_pb2.POLICY_KIND_PROBABILITIES
    return inference_pb2.POLICY_KIND_NORMAL


def run_length(settings: config.LearnerConfig) -> int:
    """Transitions of the runs that the assembler cuts."""
    r2d2 = settings.algorithm == "r2d2"
    return settings.r2d2.replay_period if r2d2 else settings.unroll_length


@dataclasses.dataclass
class Training:
    """What trains.

    Attributes:
      trainer: Makes the updates.
      taker: Takes finished unrolls.
      client: Of the replay service; None without.
      sender: Sends sequences to it.
    """

    trainer: Trainer
    taker: UnrollSource | TrajectorySource | sequences.SequenceSender
    client: ReplayClient | None = None
    sender: sequences.SequenceSender | None = None

    def threads(self) -> list[threading.Thread]:
        """Not started yet."""
        bodies = {"trainer": self.trainer.run}
        if self.sender is not None:
            bodies["sequences"] = self.sender.run
        return [
            threading.Thread(target=body, name=name, daemon=True) for name, body in bodies.items()
        ]

    def stop(self) -> None:
        """Ends the threads after what they are at."""
        self.trainer.stop()
        if self.sender is not None:
            self.sender.stop()

    def close(self) -> None:
        """Leaves the replay service, after the threads have ended."""
        if self.client is not None:
            self.client.close()


def make_training(
    settings: config.LearnerConfig,
    spec: EnvironmentSpec,
    agent: Agent,
    assembler: UnrollAssembler,
    statistics: Statistics,
    cpu_time: CpuTime,
    wake_inference: Callable[[], None],
    after_update: Callable[[dict[str, float]], None],
    on_failure: Callable[[Exception], None],
    desk: Desk | None = None,
    replicas: Replicas = ALONE,
) -> Training:
    """Makes what trains.

    Args:
      settings: The learner's.
      spec: What the environments look like.
      agent: From `make_agent`.
      assembler: Of runs of `run_length`.
      statistics: Counts.
      cpu_time: Attributes the process's CPU time.
      wake_inference: Called when records may be overwritten again.
      after_update: See `Trainer`.
      on_failure: Called with what ended another thread than the trainer's.
      desk: Where unrolls come from, if actors hold the policy.
      replicas: What makes an update together.
    """
    agreement = Agreement(statistics, spec, settings.total_frames, replicas.learners)
    if desk is not None:
        trajectories = TrajectorySource(settings.batch_size, spec, desk.queue, statistics)
        trainer = Trainer(
            settings, trajectories, agent, agreement, statistics, cpu_time, after_update
        )
        return Training(trainer, trajectories)
    if not isinstance(agent, R2d2Agent):
        source = UnrollSource(settings.batch_size, spec, assembler, statistics, wake_inference)
        trainer = Trainer(settings, source, agent, agreement, statistics, cpu_time, after_update)
        return Training(trainer, source)
    r2d2 = settings.r2d2
    client = ReplayClient(
        r2d2.replay_addresses,
        sequences.layout(spec, agent.parameter_size, agent.initial_state(1)),
        r2d2.replay_table,
        max_pending_bytes=r2d2.max_pending_bytes,
        max_waiting_items=max(
            1, _BATCHES_AHEAD * settings.batch_size // len(r2d2.replay_addresses)
        ),
        keepalive_seconds=settings.keepalive_seconds,
        tls=settings.tls,
    )
    records = unrolls.context_length(spec) + r2d2.burn_in + settings.unroll_length + 1
    sampler = client.sampler(
        settings.batch_size,
        records,
        r2d2.importance_exponent,
        seed=settings.seed + replicas.learner,
    )
    replayed = ReplaySource(spec, sampler)
    trainer = Trainer(settings, replayed, agent, agreement, statistics, cpu_time, after_update)
    sender = sequences.SequenceSender(
        settings, spec, assembler, client, agent, statistics, wake_inference, on_failure
    )
    return Training(trainer, sender, client, sender)
