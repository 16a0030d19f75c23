"""What the parts cost: measured rates of the presets, or those of a finished run."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import Any

from services.learner import checkpoint
from services.local.plan.system import Costs, System
from services.local.report.run import SUMMARY_FILE
from services.shared import config

# gRPC's, of each byte that a front end receives: 0.85 us/KB of a bare stream; the whole front end
# took 1.05 in make bench-inference (128 environments, 460 B against 13.8 KB).
FRONT_END_BYTE_SECONDS = 0.85e-9
# Of a batched call however small, TensorFlow's and the loop's: an assumption. A run's CPU time by
# part gives the sum only; this is taken out of it, up to half.
INFERENCE_CALL_SECONDS = 0.0005


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a run's summary says, however it came about.

    Attributes:
      cpu: CPU milliseconds of a frame by part, as in `cpu_seconds_per_1000_frames`.
      frames_per_update: Environment frames of one learner's batch.
      frames_per_episode: Environment frames.
      observation_bytes: Of one environment's record.
      source: Where it was measured.
      frames_per_step: Action repeats.
    """

    cpu: dict[str, float]
    frames_per_update: float
    frames_per_episode: float
    observation_bytes: int
    source: str
    frames_per_step: int = 1

    @property
    def episode_steps(self) -> float:
        """Mean length of an episode."""
        return self.frames_per_episode / self.frames_per_step

    def system(self, experiment: config.Experiment, **machines: Any) -> System:
        """One learner with its actors, as that experiment has set them.

        Args:
          experiment: Of which groups, batches and unrolls are taken.
          **machines: The other fields of `System`: processes, cores, network.
        """
        learner, actor = experiment.learner, experiment.actor
        return System(
            groups=actor.groups,
            environments_per_group=actor.environments_per_group,
            inference_batch_size=learner.inference_batch_size,
            max_wait_seconds=learner.inference_max_wait_seconds,
            unroll_length=learner.unroll_length,
            batch_size=learner.batch_size,
            unrolls_per_slot=learner.unrolls_per_slot,
            sample_reuse=learner.sample_reuse,
            observation_bytes=self.observation_bytes,
            frames_per_step=self.frames_per_step,
            episode_steps=self.episode_steps,
            **machines,
        )

    def costs(self, experiment: config.Experiment) -> Costs:
        """The costs of the parts, as that experiment has set groups and batches."""
        k = experiment.actor.environments_per_group
        slots = experiment.learner.inference_batch_size
        # Seconds of a record: an episode has one more than steps.
        scale = self.frames_per_step / (1 + 1 / self.episode_steps) / 1000
        record = {name: milliseconds * scale for name, milliseconds in self.cpu.items()}
        message_bytes = k * self.observation_bytes * FRONT_END_BYTE_SECONDS
        batch = record["inference"] * slots
        call = min(INFERENCE_CALL_SECONDS, batch / 2)
        update = self.frames_per_update / 1000
        return Costs(
            environment_seconds=record["environment"],
            actor_message_seconds=record["actor"] * k,
            front_end_message_seconds=max(0.0, record["front_ends"] * k - message_bytes),
            front_end_byte_seconds=FRONT_END_BYTE_SECONDS,
            inference_call_seconds=call,
            inference_slot_seconds=(batch - call) / slots,
            update_seconds=self.cpu["training"] * update,
            gather_seconds=self.cpu["learner_other"] * update * experiment.learner.sample_reuse,
            environment_variation=1.0,
        )


def _row(
    environment: float,
    actor: float,
    front_ends: float,
    inference: float,
    training: float,
    other: float,
) -> dict[str, float]:
    return {
        "environment": environment,
        "actor": actor,
        "front_ends": front_ends,
        "inference": inference,
        "training": training,
        "learner_other": other,
    }


_README = "README.md, two cores (seedpod train)"
PRESETS = {
    "cartpole": Measured(
        _row(0.0425, 0.0552, 0.0866, 0.113, 0.0485, 0.036), 63.6, 164.5, 16, _README
    ),
    "football": Measured(_row(3.48, 0.15, 0.22, 0.50, 0.04, 0.10), 121.0, 16.0, 568, _README),
    "football-smm": Measured(_row(2.74, 0.22, 0.29, 4.11, 8.95, 0.21), 121.0, 16.0, 3456, _README),
}


def of_preset(name: str) -> Measured:
    """The table's entry.

    Raises:
      ConfigError: There is none.
    """
    if name not in PRESETS:
        raise config.ConfigError(
            f"what experiment {name!r} costs is not known; allowed: one of {sorted(PRESETS)},"
            " or --run with the folder of a finished run of it"
        )
    return PRESETS[name]


def of_run(folder: pathlib.Path) -> Measured:
    """What a finished V-trace run has measured.

    Raises:
      ConfigError: It has no summary with CPU times, or no checkpoint.
    """
    path = folder / SUMMARY_FILE
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise config.ConfigError(f"{folder}: not the folder of a finished run: {error}") from None
    cpu, frames = summary.get("cpu_seconds_per_1000_frames"), summary.get("frames")
    if not cpu or not frames or not summary.get("updates"):
        raise config.ConfigError(f"{path}: has no CPU times, allowed: a run that has trained")
    newest = checkpoint.latest(folder / "checkpoints")
    if newest is None:
        raise config.ConfigError(f"{folder}: no checkpoint, which tells the observation's size")
    spec = checkpoint.read(newest).environment_spec
    # An update takes a batch of each learner; CPU times are those of one.
    learners = config.load(str(folder / "experiment.yaml")).local.learners
    return Measured(
        {name: cpu[name] for name in _row(0, 0, 0, 0, 0, 0)},
        frames / summary["updates"] / learners,
        frames / summary["episodes"] if summary["episodes"] else math.inf,
        sum(tensor.storage_bytes for tensor in spec.observation),
        str(folder),
        spec.frames_per_step,
    )
