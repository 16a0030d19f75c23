"""The settings of the replay service: one YAML document, validated and frozen.

`__main__` calls `load`. The document is the service's own, or an experiment that has these
settings under `replay`.
"""

from __future__ import annotations

import pathlib
from typing import Annotated, Any, Literal

import pydantic
import yaml

_PositiveInt = Annotated[int, pydantic.Field(ge=1)]
_Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
_NonNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Port = Annotated[int, pydantic.Field(ge=0, le=65535)]

MEBIBYTE = 1 << 20


class ConfigError(ValueError):
    """Settings that cannot be used; the message names what was given and allowed."""


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class TableConfig(_Model):
    """One table."""

    name: Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "sequences"
    max_items: Annotated[int, pydantic.Field(ge=1, le=1 << 24)] = pydantic.Field(
        default=100_000,
        description="The oldest leave first. At most 2^24, what a key has bits for.",
    )
    max_bytes: _PositiveInt = pydantic.Field(
        default=4096 * MEBIBYTE,
        description="Of the messages kept for the items; the oldest leave first.",
    )
    selector: Literal["prioritized", "uniform", "fifo"] = "prioritized"
    priority_exponent: _NonNegative = pydantic.Field(
        default=0.9, description="Alpha. R2D2 (Kapturowski 2019), section 2.3: 0.9."
    )
    samples_per_insert: _Positive | None = pydantic.Field(
        default=None, description="Items sampled for each one inserted. Default: no limit."
    )
    error_buffer: _NonNegative = pydantic.Field(
        default=1000.0,
        description="How far inserts or samples may run ahead, in samples.",
    )
    min_size_to_sample: _PositiveInt = pydantic.Field(
        default=1, description="Items that the table must hold before the first sample."
    )
    max_times_sampled: _PositiveInt | None = pydantic.Field(
        default=None, description="An item leaves after so many samples. Default: never."
    )

    @pydantic.model_validator(mode="after")
    def _both_sides_can_go_on(self) -> TableConfig:
        if self.min_size_to_sample > self.max_items:
            raise ValueError(
                f"min_size_to_sample is {self.min_size_to_sample}, allowed: at most max_items,"
                f" {self.max_items}, or nothing would ever be sampled"
            )
        least = max(1.0, self.samples_per_insert or 0.0)
        if self.samples_per_insert is not None and self.error_buffer < least:
            raise ValueError(
                f"error_buffer is {self.error_buffer}, allowed: {least} (the larger of 1 and"
                " samples_per_insert) or more, or inserts and samples would wait for each other"
            )
        return self


class PersistenceConfig(_Model):
    """The log on the volume; without a directory nothing is kept."""

    directory: str | None = None
    segment_bytes: Annotated[int, pydantic.Field(ge=1024)] = 256 * MEBIBYTE
    sync_bytes: _PositiveInt = pydantic.Field(
        default=64 * MEBIBYTE,
        description="Written bytes after which the disk is made to take them.",
    )
    sync_seconds: _Positive = pydantic.Field(
        default=1.0, description="The same by time: what a crash of the machine may cost."
    )
    snapshot_seconds: _Positive = pydantic.Field(
        default=30.0, description="How old saved priorities may be after a kill."
    )


class ReplayConfig(_Model):
    """The replay service."""

    address: str = pydantic.Field(default="0.0.0.0:50052", description="host:port to listen on.")
    tables: Annotated[tuple[TableConfig, ...], pydantic.Field(min_length=1)] = (TableConfig(),)
    persistence: PersistenceConfig = PersistenceConfig()
    insert_window_bytes: _PositiveInt = pydantic.Field(
        default=MEBIBYTE, description="What one writer may send without acknowledgement."
    )
    reply_bytes: _PositiveInt = pydantic.Field(
        default=4 * MEBIBYTE,
        description="Replies are cut here; one of 36 MB cost three times as much per item.",
    )
    max_batch_size: _PositiveInt = 4096
    sample_timeout_seconds: _Positive = pydantic.Field(
        default=60.0, description="Of a Sample call that has no deadline of its own."
    )
    keepalive_seconds: _Positive = pydantic.Field(
        default=5.0, description="A client silent for twice this time is disconnected."
    )
    metrics_port: _Port | None = None
    metrics_host: str = "0.0.0.0"
    seed: int | None = None

    @pydantic.model_validator(mode="after")
    def _names_are_unique(self) -> ReplayConfig:
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError(f"tables are named {names}, allowed: each name once")
        return self


def load(path: str | pathlib.Path, overrides: list[str] | None = None) -> ReplayConfig:
    """Reads settings.

    Args:
      path: A YAML file.
      overrides: KEY=VALUE each, the key with dots (`persistence.directory=/data`).

    Raises:
      ConfigError: The file or a setting is not valid.
    """
    try:
        document = yaml.safe_load(pathlib.Path(path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must be a mapping, is {type(document).__name__}")
    document = document.get("replay", document)
    for override in overrides or []:
        _apply(document, override)
    try:
        return ReplayConfig.model_validate(document)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None


def _apply(document: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"override {override!r} must look like persistence.directory=/data")
    *parents, last = key.split(".")
    node = document
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override {override!r}: {parent} is {child!r}, not a mapping")
        node = child
    try:
        node[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: value is not YAML: {error}") from None
