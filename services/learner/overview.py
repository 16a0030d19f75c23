"""What is known of a learner: to GetStatus, to metrics, and in the summary at its end."""

from __future__ import annotations

import math
import time

import numpy as np

from services.learner import training, unrolls
from services.learner.accounts import StepAccount
from services.learner.cpu_time import CpuTime
from services.learner.evaluation import figures, summarize
from services.learner.evaluator import Evaluator
from services.learner.recordings import Recordings
from services.learner.run_state import RunState
from services.learner.statistics import Statistics
from services.learner.step_store import COUNTERS, StepStore
from services.learner.trainer import Trainer
from services.learner.trajectory_server import TrajectoryServer
from services.learner.transport import Transport
from services.learner.unroll_queue import Desk
from services.shared import config
from services.shared.generated.seedpod.inference.v1 import inference_pb2


class Overview:
    """Reads a learner's parts, most of which are there only when it knows its environments.

    Attributes:
      statistics: The counters.
      checkpoints: What saves them.
      cpu_time: Of the learner's process.
      store: The step store.
      assembler: What cuts records into unrolls.
      training: What trains.
      evaluator: What evaluates instead.
      desk: Where unrolls arrive, if actors hold the policy.
      missing_learners: Learners of the run that this one waits for.
      asked_slots: Slots that actors have asked for before there was a network, by actor.
      error: Of the service itself; what trains or evaluates keeps its own.
      started: `time.monotonic()` when the parts were there.
      ended: Likewise when the run was over.
    """

    def __init__(
        self,
        settings: config.LearnerConfig,
        transport: Transport,
        trajectories: TrajectoryServer | None,
        statistics: Statistics,
        state: RunState,
        recordings: Recordings,
    ) -> None:
        """Sets what there is from the start."""
        self._config = settings
        self._transport = transport
        self._trajectories = trajectories
        self._state = state
        self._recordings = recordings
        self.statistics = statistics
        self.checkpoints = state.checkpoints
        self.cpu_time = CpuTime()
        self.store: StepStore | None = None
        self.assembler: unrolls.UnrollAssembler | None = None
        self.training: training.Training | None = None
        self.evaluator: Evaluator | None = None
        self.desk: Desk | None = None
        self.missing_learners = 0
        self.asked_slots: dict[str, int] = {}
        self.error: Exception | None = None
        self.started = time.monotonic()
        self.ended: float | None = None

    @property
    def worker(self) -> Trainer | Evaluator | None:
        """What decides when the run is over."""
        return self.evaluator if self.training is None else self.training.trainer

    @property
    def failure(self) -> Exception | None:
        """What ends the run before its time."""
        failure = self.error or self._state.checkpoints.lost
        return failure or (None if self.worker is None else self.worker.failure)

    @property
    def is_finished(self) -> bool:
        """Whether the run is over for good."""
        return self.worker is not None and self.worker.is_finished

    @property
    def is_visited(self) -> bool:
        """Whether actors are connected that shall hear of the end."""
        senders = 0 if self._trajectories is None else self._trajectories.live_actors
        return self._transport.leases.live_groups + senders > 0

    @property
    def arrived_recordings(self) -> int:
        """Also those that could not be kept: nothing is gained by waiting for them."""
        if self.store is None:
            return 0
        columns = [COUNTERS.index(name) for name in ("recordings", "recording_failures")]
        return int(self.store.counters[:, columns].sum())

    def status(self) -> inference_pb2.GetStatusResponse:
        """What GetStatus answers."""
        s, leases = self.statistics, self._transport.leases
        evaluated = figures(s.evaluation_episodes.copy())
        failure = self.failure
        return inference_pb2.GetStatusResponse(
            frames=s.frames,
            frames_per_second=s.frames_per_second,
            updates=s.updates,
            episodes=s.episodes + s.elsewhere_episodes,
            mean_return=s.mean_return,
            evaluation_return=evaluated.mean_return,
            evaluation_standard_error=evaluated.standard_error,
            evaluation_episodes=evaluated.episodes,
            mean_episode_length=s.mean_length,
            live_slots=leases.live_slots + self._sending_slots,
            leased_slots=leases.leased_slots + self._sending_slots + self._asked_slots,
            inference_batch_fill=s.batch_fill,
            policy_lag=s.policy_lag,
            bottleneck=s.bottleneck(),
            finished=self.is_finished,
            cpu_seconds=self.cpu_seconds(),
            checkpoint=str(self._state.checkpoints.newest or ""),
            failure="" if failure is None else str(failure),
        )

    def cpu_seconds(self) -> inference_pb2.CpuSeconds:
        """CPU seconds so far, by part."""
        inference, trained, other = self.cpu_time.seconds()
        client = None if self.training is None else self.training.client
        empty = np.zeros(len(COUNTERS))
        counters = empty if self.store is None else self.store.counters.sum(axis=0)
        sent = self._trajectories
        return inference_pb2.CpuSeconds(
            environment=counters[5] + (0.0 if sent is None else sent.environment_cpu_seconds),
            actor=counters[6] + (0.0 if sent is None else sent.actor_cpu_seconds),
            front_ends=counters[7],
            inference=inference,
            training=trained,
            learner_other=other,
            replay=0.0 if client is None else client.server_cpu_seconds(),
        )

    def steps(self) -> StepAccount | None:
        """Where the steps are that actors have delivered; None if nothing is trained."""
        assembler, training = self.assembler, self.training
        if assembler is None or training is None:
            return None
        trained = self.statistics.steps - self._state.steps_at_start
        if self.desk is not None:  # what actors have not sent is not known here
            queue = self.desk.queue
            unfinished = queue.waiting_steps + training.taker.steps_in_hand
            return StepAccount(queue.received_steps, trained, 0, unfinished)
        dropped = int(assembler.dropped_steps.sum())
        return StepAccount(
            received=int(assembler.received_steps.sum()),
            trained=trained,
            dropped=dropped + (0 if training.sender is None else training.sender.dropped_steps),
            unfinished=assembler.unfinished_steps() + training.taker.steps_in_hand,
        )

    def summary(self) -> dict[str, object]:
        """This process's run in one JSON-able object; rates leave the time before it began out."""
        status = self.status()
        if self.evaluator is not None:
            return {
                **self.evaluator.summary(),
                "greedy": self._config.evaluation.greedy,
                "recordings": self._recordings.names(),
                "checkpoint": status.checkpoint,
                "failure": status.failure or None,
            }
        frames = status.frames - self._state.frames_at_start
        seconds = (self.ended or time.monotonic()) - self.started
        # CPU time is that of this learner and its actors, frames are those of all learners.
        own_frames = frames * self.statistics.own_share(self._state.steps_at_start)
        cpu = {
            field.name: round(getattr(status.cpu_seconds, field.name) / own_frames * 1000, 4)
            for field in status.cpu_seconds.DESCRIPTOR.fields
            if own_frames > 0
        }
        return {
            "frames": status.frames,
            "frames_per_second": round(frames / max(seconds, 1e-3), 1),
            "updates": status.updates,
            "episodes": status.episodes,
            "mean_return": _rounded(status.mean_return),
            "evaluation_return": _rounded(status.evaluation_return),
            "evaluation": summarize(self.statistics.evaluation_episodes.copy())
            if self.statistics.evaluated
            else None,
            "cpu_seconds_per_1000_frames": {"total": round(sum(cpu.values()), 4), **cpu}
            if cpu
            else None,
            "steps": None if (steps := self.steps()) is None else steps.to_json(),
            "checkpoint": status.checkpoint or None,
            "failure": status.failure or None,
        }

    @property
    def live_actors(self) -> int:
        """Actor services that are connected."""
        senders = 0 if self._trajectories is None else self._trajectories.live_actors
        return self._transport.leases.live_actors + senders

    @property
    def training_slots(self) -> int:
        """Env slots that are leased for training."""
        return self._transport.leases.training_slots + self._sending_slots

    @property
    def _asked_slots(self) -> int:
        return 0 if self.store is not None else sum(list(self.asked_slots.values()))

    @property
    def _sending_slots(self) -> int:
        return 0 if self._trajectories is None else self._trajectories.live_slots

    @property
    def queued_unrolls(self) -> int:
        """Unrolls of actors that hold the policy, not taken by training."""
        return 0 if self.desk is None else len(self.desk.queue)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of records that actors have sent, and of parameters that were sent to them."""
        rows = 0 if self.store is None else int(self.store.counters[:, 2].sum())
        sent = self._trajectories
        return (rows, 0) if sent is None else (rows + sent.received_bytes, sent.parameter_bytes)


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
