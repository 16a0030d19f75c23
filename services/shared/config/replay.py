"""The replay service's settings."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from services.shared.config.base import (
    MEBIBYTE,
    Model,
    NonNegative,
    Port,
    Positive,
    PositiveInt,
    TlsConfig,
)

TableName = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class TableConfig(Model):
    """One table."""

    max_items: Annotated[int, pydantic.Field(ge=1, le=1 << 24)] = pydantic.Field(
        default=100_000,
        description="The oldest leave first. At most 2^24, what a key has bits for.",
    )
    max_bytes: PositiveInt = pydantic.Field(
        default=4096 * MEBIBYTE,
        description="Of the messages kept for the items; the oldest leave first.",
    )
    selector: Literal["prioritized", "uniform", "fifo"] = "prioritized"
    priority_exponent: NonNegative = pydantic.Field(
        default=0.9, description="Alpha. R2D2 (Kapturowski 2019), section 2.3: 0.9."
    )
    samples_per_insert: Positive | None = pydantic.Field(
        default=None, description="Items sampled for each one inserted. Default: no limit."
    )
    error_buffer: NonNegative = pydantic.Field(
        default=1000.0,
        description="How far inserts or samples may run ahead, in samples.",
    )
    min_size_to_sample: PositiveInt = pydantic.Field(
        default=1, description="Items that the table must hold before the first sample."
    )
    max_times_sampled: PositiveInt | None = pydantic.Field(
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


class PersistenceConfig(Model):
    """The log on the volume; without a directory nothing is kept."""

    directory: str | None = None
    segment_bytes: Annotated[int, pydantic.Field(ge=1024)] = 256 * MEBIBYTE
    sync_bytes: PositiveInt = pydantic.Field(
        default=64 * MEBIBYTE,
        description="Written bytes after which the disk is made to take them.",
    )
    sync_seconds: Positive = pydantic.Field(
        default=1.0, description="The same by time: what a crash of the machine may cost."
    )
    snapshot_seconds: Positive = pydantic.Field(
        default=30.0, description="How old saved priorities may be after a kill."
    )


class ReplayConfig(Model):
    """The replay service."""

    address: str = pydantic.Field(default="localhost:50052", description="host:port to serve on.")
    tables: dict[TableName, TableConfig] = pydantic.Field(
        default={"sequences": TableConfig()}, min_length=1, description="By name."
    )
    persistence: PersistenceConfig = PersistenceConfig()
    insert_window_bytes: PositiveInt = pydantic.Field(
        default=4 * MEBIBYTE,
        description="What one writer may send without acknowledgement; less if all of them"
        " together could send more than a sixteenth of the table's max_bytes.",
    )
    reply_bytes: PositiveInt = pydantic.Field(
        default=4 * MEBIBYTE,
        description="Replies are cut here; one of 36 MB cost three times as much per item.",
    )
    max_batch_size: PositiveInt = 4096
    max_credit: PositiveInt = pydantic.Field(
        default=1024, description="Batches that one reader may have asked for and not got yet."
    )
    sample_timeout_seconds: Positive = pydantic.Field(
        default=60.0, description="Of a Sample call that has no deadline of its own."
    )
    keepalive_seconds: Positive = pydantic.Field(
        default=5.0, description="A client silent for twice this time is disconnected."
    )
    tls: TlsConfig | None = pydantic.Field(
        default=None, description="Files of the service's certificate. Default: no encryption."
    )
    metrics_port: Port | None = pydantic.Field(
        default=None, description="Prometheus port; 0: any free one; null: none."
    )
    metrics_host: str = pydantic.Field(default="127.0.0.1", description="Where /metrics binds.")
    seed: int | None = pydantic.Field(
        default=None, description="Of the draws. Default: another one at each start."
    )
