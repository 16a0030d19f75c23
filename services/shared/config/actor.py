"""The actor service's settings."""

from __future__ import annotations

from typing import Any, Literal

import pydantic

from services.shared.config.base import (
    Model,
    NonNegativeInt,
    Port,
    Positive,
    PositiveInt,
    TlsConfig,
)


class RecordingConfig(Model):
    """Pictures of evaluation episodes; the learner keeps them."""

    every_episodes: NonNegativeInt = pydantic.Field(
        default=0,
        description="Record the first of so many episodes of the actor's first worker; 0: none.",
    )
    episodes: PositiveInt | None = pydantic.Field(
        default=None, description="No more after so many. Default: without end."
    )
    max_frames: PositiveInt = pydantic.Field(
        default=600, description="Of one recording; what comes after them is left out."
    )
    frames_per_second: Positive = pydantic.Field(
        default=10.0, description="Steps that a recording shows in a second; football plays 10."
    )
    football: Literal["drawn", "engine"] = pydantic.Field(
        default="drawn",
        description="`drawn`: a pitch from above; `engine`: the engine's own picture, which needs"
        " a display or OpenGL in software.",
    )


class ActorConfig(Model):
    """The actor service: environments and how they are stepped."""

    environment: str = pydantic.Field(
        description="`atari`, `football`, `memory`, any gymnasium id, or `module:factory` of your"
        " own."
    )
    environment_arguments: dict[str, Any] = pydantic.Field(
        default={}, description="Keyword arguments of the environment's constructor."
    )
    workers: PositiveInt | None = pydantic.Field(
        default=None, description="Environment processes. Default: one for each CPU core."
    )
    groups: PositiveInt = pydantic.Field(
        default=2,
        description="Groups of each worker; one steps while another waits for its actions.",
    )
    environments_per_group: PositiveInt = pydantic.Field(
        default=8, description="Environments that step together and share one message."
    )
    role: Literal["training", "evaluation"] = pydantic.Field(
        default="training",
        description="`evaluation`: its environments only show what has been learned.",
    )
    recording: RecordingConfig = RecordingConfig()
    seed: int = pydantic.Field(default=0, description="Each environment's seed derives from it.")
    learner_address: str = pydantic.Field(
        default="localhost:50051",
        description="host:port of the learner; of several learners all, with commas between them.",
    )
    rebalance_seconds: Positive = pydantic.Field(
        default=60.0,
        description="How often a worker looks whether another learner has fewer environments, and"
        " how long it waits for one that is away; with several learners.",
    )
    step_timeout_seconds: Positive = pydantic.Field(
        default=60.0,
        description="An environment that takes longer for one step or reset is replaced.",
    )
    start_timeout_seconds: Positive = pydantic.Field(
        default=120.0, description="An environment that takes longer to start has failed."
    )
    start_attempts: PositiveInt = pydantic.Field(
        default=3,
        description="An environment that fails to start this often in a row ends the actor.",
    )
    tls: TlsConfig | None = pydantic.Field(
        default=None, description="Files of the service's certificate. Default: no encryption."
    )
    metrics_port: Port | None = pydantic.Field(
        default=None, description="Prometheus port; 0: any free one; null: none."
    )
    metrics_host: str = pydantic.Field(default="127.0.0.1", description="Where /metrics binds.")

    @property
    def environment_name(self) -> str:
        """The environment with its arguments, for messages: `football(scenario=academy_corner)`."""
        return environment_name(self.environment, self.environment_arguments)

    @property
    def agents(self) -> int:
        """Agents of an environment, as far as settings tell: football's players, otherwise 1."""
        if self.environment != "football":
            return 1
        get = self.environment_arguments.get
        players = (get("left_players", 1), get("right_players", 0))
        # What is no number the environment refuses.
        return max(1, sum(number for number in players if isinstance(number, int)))


def environment_name(environment: str, arguments: dict[str, Any]) -> str:
    """See `ActorConfig.environment_name`."""
    listed = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"{environment}({listed})"
