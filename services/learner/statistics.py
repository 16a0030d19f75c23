"""What the learner counts, for GetStatus, TensorBoard and Prometheus."""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Histogram

from services.learner import evaluation
from services.learner.roles import Role
from services.learner.unrolls import IntArray
from services.shared.specs import EnvironmentSpec, StepType

_SECONDS_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_RATE_WINDOW_SECONDS = 20.0
_SNAPSHOT_SECONDS = 1.0
_SATURATED = 0.9  # share of the time at work from which a thread limits the others
_HELD_GROUPS = 0.5
_REPLAY_WAITS = 0.5  # share of the time
# What autoscaling aims at: busy, with a little room, so that the learner is not what limits.
TARGET_UTILISATION = 0.9
_EPISODES = 100
# Plain integers: numpy compares with them several times faster than with an enum's members.
_FIRST, _MID, _LAST = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)


EpisodeInfoSource = Callable[[int], tuple[str, dict[str, float]]]
"""Takes what is told of a slot's episode that has just ended: level and values."""


class Rate:
    """Growth per second of a counter over the last seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts at zero, now."""
        self.total = 0.0
        self._clock = clock
        self._grown = clock()
        self._snapshots: collections.deque[tuple[float, float]] = collections.deque()
        self._snapshots.append((self._grown, 0.0))

    def add(self, amount: float) -> None:
        """Lets the counter grow."""
        self.total += amount
        now = self._grown = self._clock()
        if now - self._snapshots[-1][0] >= _SNAPSHOT_SECONDS:
            self._snapshots.append((now, self.total))
            # The newest one from before the window stays: a counter that grows more rarely than
            # once in a window has a rate too.
            while self._snapshots[1][0] <= now - _RATE_WINDOW_SECONDS:
                self._snapshots.popleft()

    def per_second(self) -> float:
        """The rate; 0 when nothing was added for twice the window."""
        now = self._clock()
        if now - self._grown >= 2 * _RATE_WINDOW_SECONDS:
            return 0.0
        snapshots = self._snapshots.copy()
        then, total = snapshots[0]
        for snapshot in snapshots:
            if snapshot[0] <= now - _RATE_WINDOW_SECONDS:
                then, total = snapshot
        return (self.total - total) / (now - then) if now > then else 0.0


def bottleneck(training: float, inference: float, held: float, replay: float = 0.0) -> str:
    """Which part limits throughput.

    Args:
      training: Share of the time at work of training.
      inference: The same of inference.
      held: Mean number of groups that training holds back.
      replay: Share of the time that finished sequences waited for replay.

    Returns:
      Training, when it has hardly a pause, or when actors are held back because their unrolls
      are not taken; replay, when it is the one that does not take them; inference, when its
      thread has hardly a pause; else environment.
    """
    if training > _SATURATED:
        return "training"
    if replay > _REPLAY_WAITS:
        return "replay"
    if held > _HELD_GROUPS:
        return "training"
    return "inference" if inference > _SATURATED else "environment"


def actors_wanted(actors: float, training: float, inference: float, limit: str) -> float:
    """See `Statistics.actors_wanted`; `training` and `inference` are shares of the time at work."""
    busy = max(training, inference)
    # Nothing has been measured yet: no reason to change anything.
    wanted = actors * TARGET_UTILISATION / busy if busy > 0 else float(actors)
    if limit != "environment":
        wanted = min(wanted, actors)
    return max(1.0, wanted)


class Statistics:
    """Counters of one learner.

    Attributes:
      steps: Steps taken into training here, of all agents, and before this process began.
      frames: Environment frames taken into training, other learners' included.
      updates: Parameter updates.
      episodes: Episodes of training slots that ended here, and before this process began.
      elsewhere_steps: Of other learners, since this process began.
      elsewhere_episodes: Likewise.
      ended_episodes: Return and length of the newest, oldest first.
      evaluation_episodes: The newest of evaluation slots, oldest first.
      evaluated: How many of these have ended so far.
      held_groups: Groups that wait now for training to take their unrolls.
      policy_lag: Mean updates between acting and training, of the last batch.
    """

    def __init__(
        self,
        slots: int,
        registry: CollectorRegistry,
        roles: npt.NDArray[np.uint8],
        environments: npt.NDArray[np.int64],
        evaluation_episodes: int | None = None,
        opponent_agents: int = 0,
    ) -> None:
        """Starts at zero.

        Args:
          slots: Number of env slots.
          registry: For the histograms.
          roles: uint8 [slots], `Role`s.
          environments: int64 [slots], the first slot of each slot's environment.
          evaluation_episodes: How many to keep of evaluation slots; None: all.
          opponent_agents: Agents of each environment whose steps are not trained on.
        """
        self.slots = slots
        self.steps = 0
        self.frames = 0
        self.updates = 0
        self.episodes = 0
        self.elsewhere_steps = 0
        self.elsewhere_episodes = 0
        # With R2D2 sequences are counted in one thread, what other learners count in another.
        self._counting = threading.Lock()
        self.held_groups = 0
        self.policy_lag = 0.0
        self.skipped_updates = 0
        self.ended_episodes: collections.deque[tuple[float, int]] = collections.deque(
            maxlen=_EPISODES
        )
        self.evaluation_episodes: collections.deque[evaluation.Episode] = collections.deque(
            maxlen=evaluation_episodes
        )
        self.evaluated = 0
        self._roles = roles
        self._environments = environments
        self._opponent_agents = opponent_agents
        self._return = np.zeros(slots)
        self._length = np.zeros(slots, np.int64)
        self._fill = 0.0
        self._frame_rate = Rate()
        parts = ("inference", "training", "held", "backlog", "replay")
        self._busy = {part: Rate() for part in parts}
        self.queue_wait = Histogram(
            "seedpod_inference_queue_wait_seconds",
            "Time that the oldest request of a batch waited",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.inference_latency = Histogram(
            "seedpod_inference_seconds",
            "Time of one batched call of the policy",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.training_latency = Histogram(
            "seedpod_training_step_seconds",
            "Time of one training step",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.training_wait = Histogram(
            "seedpod_training_wait_seconds",
            "Time that the trainer waited for a batch of unrolls",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )

    def observe_steps(
        self,
        slots: IntArray,
        step_type: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        batch_size: int,
        take_info: EpisodeInfoSource,
    ) -> None:
        """Counts one inference batch.

        Args:
          slots: int64 [n].
          step_type: uint8 [n].
          reward: float32 [n].
          batch_size: The size at which a batch is full.
          take_info: Asked for what is told of an evaluation slot's episode.
        """
        self._return[slots] += reward
        self._length[slots] += 1
        if np.count_nonzero(step_type != _MID):
            first = slots[step_type == _FIRST]
            self._return[first] = 0.0
            self._length[first] = 0
            for slot in slots[step_type == _LAST].tolist():
                self._end_episode(slot, take_info)
        fill = min(1.0, len(slots) / batch_size)
        self._fill = fill if self._fill == 0 else 0.99 * self._fill + 0.01 * fill

    def _end_episode(self, slot: int, take_info: EpisodeInfoSource) -> None:
        total, length = float(self._return[slot]), int(self._length[slot])
        if self._roles[slot] == Role.EVALUATION:
            if self._environments[slot] == slot:
                self._add_evaluated(slot, length, *take_info(slot))
        elif self._roles[slot] == Role.TRAINING:
            self.add_episode(total, length)

    def add_episode(self, total: float, length: int) -> None:
        """Counts an episode of a training slot by its return and length."""
        self.episodes += 1
        self.ended_episodes.append((total, length))

    def _add_evaluated(
        self, environment: int, length: int, level: str, values: dict[str, float]
    ) -> None:
        """Counts an environment's episode once: its agents' returns depend on each other."""
        agents = (self._environments == environment) & (self._roles == Role.EVALUATION)
        total = float(np.mean(self._return[agents]))
        self.evaluation_episodes.append(
            evaluation.Episode(environment, total, length, level, values)
        )
        self.evaluated += 1

    def observe_busy(self, part: str, seconds: float) -> None:
        """Counts time that a thread was at work, or that requests or sequences had to wait."""
        self._busy[part].add(seconds)

    def busy_share(self, part: str) -> float:
        """Share of the last seconds, 0 to 1.

        For "held" it is the mean number of groups held back, for "backlog" that of actors whose
        unrolls find no room.
        """
        return self._busy[part].per_second()

    def bottleneck(self) -> str:
        """Which part limits throughput now; see `bottleneck`."""
        held = max(self.busy_share("held"), self.busy_share("backlog"))
        training, inference = self.busy_share("training"), self.busy_share("inference")
        return bottleneck(training, inference, held, self.busy_share("replay"))

    def actors_wanted(self, actors: int) -> float:
        """How many actor services would keep the learner at its target utilisation.

        actors x 0.9 / max(share of the time at work of training, of inference). More than there
        are only if the environments are what limits: a learner that holds them back, or waits
        for replay, gains nothing from more of them.

        Args:
          actors: Actor services that are connected now.

        Returns:
          At least 1; not rounded, which is the autoscaler's matter.
        """
        training, inference = self.busy_share("training"), self.busy_share("inference")
        return actors_wanted(actors, training, inference, self.bottleneck())

    def add_steps(self, steps: int, spec: EnvironmentSpec) -> None:
        """Counts steps taken into training: each agent's, so an environment's may be several."""
        with self._counting:
            self.steps += steps
            self._count_frames(spec)

    def add_elsewhere(self, steps: int, episodes: int, spec: EnvironmentSpec) -> None:
        """Counts what other learners have taken into training."""
        with self._counting:
            self.elsewhere_steps += steps
            self.elsewhere_episodes += episodes
            self._count_frames(spec)

    def frames_of(self, steps: int, spec: EnvironmentSpec) -> int:
        """Environment frames of so many steps of agents that are trained on."""
        return steps * spec.frames_per_step // (spec.agents - self._opponent_agents)

    def own_share(self, steps_at_start: int) -> float:
        """Share of the steps since this process began that were taken into training here."""
        own = self.steps - steps_at_start
        return own / max(1, own + self.elsewhere_steps)

    def _count_frames(self, spec: EnvironmentSpec) -> None:
        frames = self.frames_of(self.steps + self.elsewhere_steps, spec)
        self._frame_rate.add(frames - self.frames)
        self.frames = frames

    @property
    def frames_per_second(self) -> float:
        """Rate over the last seconds."""
        return self._frame_rate.per_second()

    @property
    def batch_fill(self) -> float:
        """Mean share of the inference batch size that was filled."""
        return self._fill

    @property
    def mean_return(self) -> float:
        """Over the last 100 episodes; NaN before the first."""
        returns = [total for total, _ in self.ended_episodes.copy()]
        return float(np.mean(returns)) if returns else math.nan

    @property
    def mean_length(self) -> float:
        """Over the last 100 episodes; NaN before the first."""
        lengths = [length for _, length in self.ended_episodes.copy()]
        return float(np.mean(lengths)) if lengths else math.nan
