"""What a simulation is given: the costs of the parts, and how many of them there are."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

Device = Literal["cpu", "shared", "separate"]
DEVICES: tuple[Device, ...] = ("cpu", "shared", "separate")


@dataclasses.dataclass(frozen=True)
class Costs:
    """Time of the parts, in seconds of one core or of the device.

    Attributes:
      environment_seconds: Of a record of one environment: a step, with its share of the resets.
      environment_variation: Standard deviation of a record's time, as a share of its mean.
      actor_message_seconds: An actor's own, of one message and its answer.
      front_end_message_seconds: A front end's, of one message and its answer, without its bytes.
      front_end_byte_seconds: A front end's, of each byte of observations.
      inference_call_seconds: Of a batched call, whatever is in it.
      inference_slot_seconds: Of each slot in it.
      update_seconds: Of one update.
      gather_seconds: Of the host, of what else there is to do for a batch of training.
    """

    environment_seconds: float
    actor_message_seconds: float
    front_end_message_seconds: float
    inference_call_seconds: float
    inference_slot_seconds: float
    update_seconds: float
    gather_seconds: float = 0.0
    front_end_byte_seconds: float = 0.0
    environment_variation: float = 0.0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          ValueError: One is negative or no number.
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} is {value}, allowed: 0 or more")

    def front_end_seconds(self, message_bytes: float) -> float:
        """A front end's, of one message with so many bytes of observations, and its answer."""
        return self.front_end_message_seconds + message_bytes * self.front_end_byte_seconds


@dataclasses.dataclass(frozen=True)
class System:
    """One learner and its actors.

    Attributes:
      actors: Actor services.
      workers: Of each actor.
      groups: Of each worker.
      environments_per_group: k.
      actor_cores: Of each actor's machine; None: the actors run on the learner's.
      learner_cores: Of the learner's machine.
      front_ends: Processes.
      device: Where the networks run. `cpu`: on the learner's cores; `shared`: inference and
        training on one accelerator; `separate`: on one each (or on one group of devices each).
      inference_batch_size: Slots.
      max_wait_seconds: See docs/architecture.md, "Batching".
      unroll_length: T.
      batch_size: Unrolls of an update.
      unrolls_per_slot: Finished ones that may wait.
      sample_reuse: Updates from a batch.
      observation_bytes: Of one environment's record.
      frames_per_step: Action repeats.
      episode_steps: Mean length; a record more of each episode, FIRST, is no step.
      latency_seconds: Of the network, one way.
      bytes_per_second: Of the learner's network.
    """

    actors: int
    workers: int
    groups: int
    environments_per_group: int
    learner_cores: float
    inference_batch_size: int
    unroll_length: int
    batch_size: int
    actor_cores: float | None = None
    front_ends: int = 1
    device: Device = "cpu"
    max_wait_seconds: float = 0.002
    unrolls_per_slot: int = 1
    sample_reuse: int = 1
    observation_bytes: int = 0
    frames_per_step: int = 1
    episode_steps: float = math.inf
    latency_seconds: float = 0.0
    bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
          ValueError: One is outside its limits.
        """
        for name in (
            "actors", "workers", "groups", "environments_per_group", "front_ends",
            "inference_batch_size", "unroll_length", "batch_size", "unrolls_per_slot",
            "sample_reuse", "frames_per_step",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed: 1 or more")
        if self.device not in DEVICES:
            raise ValueError(f"device is {self.device!r}, allowed: {', '.join(DEVICES)}")

    @property
    def environments(self) -> int:
        """Of all actors."""
        return self.actors * self.workers * self.groups * self.environments_per_group

    @property
    def message_bytes(self) -> int:
        """Observations of one group's message."""
        return self.environments_per_group * self.observation_bytes

    @property
    def frames_per_record(self) -> float:
        """Environment frames that a record counts for, on average."""
        share = (
            1.0 if math.isinf(self.episode_steps) else self.episode_steps / (self.episode_steps + 1)
        )
        return share * self.frames_per_step

    @property
    def frames_per_batch(self) -> float:
        """Environment frames of a batch of training."""
        return self.batch_size * self.unroll_length * self.frames_per_record
