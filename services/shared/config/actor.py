"""The actor service's settings."""

from __future__ import annotations

from typing import Any

import pydantic

from services.shared.config.base import Model, Port, Positive, PositiveInt, TlsConfig


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
    seed: int = pydantic.Field(default=0, description="Each environment's seed derives from it.")
    learner_address: str = pydantic.Field(
        default="localhost:50051", description="host:port of the learner."
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
