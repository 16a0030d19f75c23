"""What of a run outlives the process: variables and counters, in checkpoints.

Of several learners the first one, the chief, writes and reads them; the others take over what it
has, through the network, so that they need no folder in common.
"""

from __future__ import annotations

import json
import logging
import time

import yaml

from services.learner import checkpoint, checkpoint_writer
from services.learner.agent import Agent
from services.learner.statistics import Statistics
from services.shared import config
from services.shared.specs import EnvironmentSpec

# Of learners that differ in one of these each would make an update of its own.
_COMMON_SETTINGS = (
    *("network", "algorithm", "vtrace", "r2d2", "self_play", "optimizer", "seed"),
    *("total_frames", "unroll_length", "batch_size", "sample_reuse"),
)
_log = logging.getLogger(__name__)


class RunState:
    """Saves and restores a learner's run.

    Attributes:
      checkpoints: What saves.
      restored: The checkpoint that the run goes on from; None without one.
      environment_name: Of the environments that the network was made for, as far as it is known.
      frames_at_start: When this process began.
      steps_at_start: Likewise.
    """

    def __init__(
        self, experiment: config.Experiment, statistics: Statistics, claims: bool, is_chief: bool
    ) -> None:
        """Looks for a checkpoint.

        Args:
          experiment: The experiment.
          statistics: Where the counters are.
          claims: Whether this process will write checkpoints, and nobody else may.
          is_chief: Whether it is the learner that has them.

        Raises:
          CheckpointError: The checkpoint cannot be used.
        """
        settings = experiment.learner
        self._experiment = experiment
        self._statistics = statistics
        self._is_chief = is_chief
        self._interval_seconds = settings.checkpoint_interval_seconds
        self._next_checkpoint = time.monotonic() + self._interval_seconds
        self.checkpoints = checkpoint_writer.Writer(
            settings.checkpoint_directory if is_chief else None, settings.checkpoints_to_keep
        )
        if claims:
            self.checkpoints.claim()
        self.restored = self.checkpoints.latest()
        self.environment_name = "" if self.restored is None else _environment_name(self.restored)
        self.frames_at_start = self.steps_at_start = 0

    def begin(self, agent: Agent, spec: EnvironmentSpec, counts: bool) -> None:
        """Makes the agent, and all that is counted, what the run has reached; waits for the chief.

        Args:
          agent: New.
          spec: What the environments look like.
          counts: Take over the counters, too.

        Raises:
          CheckpointError: The checkpoint does not fit.
          PeerLost: Another learner has gone, or has other settings or environments.
        """
        counters = {"steps": 0, "frames": 0, "episodes": 0}
        if self.restored is not None:
            self.restored.check_environment(spec)
            agent.restore(self.restored)
            counters = {name: self.restored.counters[name] for name in counters}
        elif self._is_chief and (path := self._experiment.learner.initial_checkpoint) is not None:
            initial = checkpoint.read(path)
            initial.check_agent(spec, self._experiment.learner.network)
            agent.begin_with(initial)
            _log.info("the network begins as that of %s", initial.path)
        counters = agent.synchronize(counters, self._common(spec))
        if not counts:
            return
        statistics = self._statistics
        statistics.steps = self.steps_at_start = counters["steps"]
        statistics.frames = self.frames_at_start = counters["frames"]
        statistics.episodes = counters["episodes"]
        statistics.updates = agent.version
        if agent.version:
            source = "the first learner" if self.restored is None else self.restored.path
            _log.info("resumed from %s at %d frames", source, counters["frames"])

    def _common(self, spec: EnvironmentSpec) -> dict[str, str]:
        """What all learners must have alike, as text by name."""
        settings = self._experiment.learner.model_dump(mode="json")
        values = {
            f"learner.{name}": json.dumps(settings[name], sort_keys=True)
            for name in _COMMON_SETTINGS
        }
        return {**values, "environment": str(spec)}

    def save_if_due(self, agent: Agent, spec: EnvironmentSpec) -> None:
        """Saves a checkpoint in the background, once in a while."""
        if time.monotonic() >= self._next_checkpoint:
            self._next_checkpoint = time.monotonic() + self._interval_seconds
            if not self.checkpoints.is_late():
                self.save(agent, spec, wait=False)

    def save(self, agent: Agent, spec: EnvironmentSpec, *, wait: bool) -> None:
        """Saves a checkpoint; see `checkpoint_writer.Writer.save`.

        Raises:
          CheckpointError: It could not be written, and `wait` is set.
        """
        if not self.checkpoints.saves:
            return
        statistics = self._statistics
        counters = {
            "updates": agent.version,
            "steps": statistics.steps + statistics.elsewhere_steps,
            "frames": statistics.frames,
            "episodes": statistics.episodes + statistics.elsewhere_episodes,
        }
        self.checkpoints.save(
            agent.variables(), counters, spec, config.dump(self._experiment), wait=wait
        )


def _environment_name(saved: checkpoint.Checkpoint) -> str:
    """Of the environments that a checkpoint was trained on."""
    # Not all of the experiment: it may have settings that this version does not know.
    actor = yaml.safe_load(saved.experiment)["actor"]
    return config.environment_name(actor["environment"], actor.get("environment_arguments", {}))
