"""What the outside sees of the tables: GetStatus and Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.replay.host import TableHost
from services.replay.recovery import Progress
from services.shared.config import ReplayConfig
from services.shared.generated.seedpod.replay.v1 import replay_pb2

_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
_SAMPLED_PRIORITIES = 10_000


def table_status(host: TableHost) -> replay_pb2.TableStatus:
    """One table's part of GetStatus."""
    table, limiter = host.table, host.table.limiter
    status = replay_pb2.TableStatus(
        name=table.name,
        items=table.items,
        bytes=table.blocks.bytes,
        max_items=table.config.max_items,
        max_bytes=table.config.max_bytes,
        total_priority=table.total_priority,
        inserted_items=limiter.inserted,
        sampled_items=limiter.sampled,
        evicted_items=table.evicted,
        used_up_items=table.used_up,
        stale_updates=table.stale,
        can_sample=limiter.samplable(1, table.items) > 0,
        can_insert=limiter.insertable(1, table.items) > 0,
        waiting_writers=host.writers.waiting,
        waiting_readers=host.readers.waiting,
        insert_wait_seconds=host.writers.seconds,
        sample_wait_seconds=host.readers.seconds,
        lost_items=host.lost_items,
        min_size_to_sample=table.config.min_size_to_sample,
    )
    if host.layout is not None:
        status.layout.description = host.layout.description
        status.layout.version = host.layout.version
    return status


_GAUGES: tuple[tuple[str, str, Callable[[TableHost], float]], ...] = (
    ("items", "Items in the table", lambda h: h.table.items),
    ("bytes", "Bytes of the messages kept for them", lambda h: h.table.blocks.bytes),
    ("capacity_items", "Items that the table may hold", lambda h: h.table.config.max_items),
    ("capacity_bytes", "Bytes that the table may hold", lambda h: h.table.config.max_bytes),
    ("index_bytes", "Bytes of the arrays beside them", lambda h: h.table.index_bytes),
    ("priority_total", "Sum of priority^alpha", lambda h: h.table.total_priority),
    (
        "samples_per_insert",
        "Items sampled for each one inserted, since the beginning",
        lambda h: h.table.limiter.sampled / max(1, h.table.limiter.inserted),
    ),
    ("waiting_writers", "Streams that wait to insert", lambda h: h.writers.waiting),
    ("waiting_readers", "Streams and calls that wait to sample", lambda h: h.readers.waiting),
    ("log_pending_bytes", "Not written yet", lambda h: h.log.pending_bytes if h.log else 0),
)
_COUNTERS: tuple[tuple[str, str, Callable[[TableHost], float]], ...] = (
    ("inserted_items", "Items inserted", lambda h: h.table.limiter.inserted),
    ("sampled_items", "Items chosen", lambda h: h.table.limiter.sampled),
    ("evicted_items", "Items that left for room", lambda h: h.table.evicted),
    ("used_up_items", "Items that left by max_times_sampled", lambda h: h.table.used_up),
    ("stale_updates", "Priorities of items that had left", lambda h: h.table.stale),
    ("lost_items", "Items whose blocks a damaged segment had", lambda h: h.lost_items),
    ("insert_waits", "Waits for the rate limiter", lambda h: h.writers.count),
    ("insert_wait_seconds", "Their time", lambda h: h.writers.seconds),
    ("sample_waits", "Waits for the rate limiter", lambda h: h.readers.count),
    ("sample_wait_seconds", "Their time", lambda h: h.readers.seconds),
    ("log_bytes", "Bytes written to the log", lambda h: h.log.written_bytes if h.log else 0),
    ("log_failures", "Writes that the volume refused", lambda h: h.log_failures),
)


class _ReplayCollector(Collector):
    """Reads the tables at each scrape."""

    def __init__(self, hosts: dict[str, TableHost], progress: Progress, is_ready: Any) -> None:
        self._hosts = hosts
        self._progress = progress
        self._is_ready = is_ready
        self._random = np.random.default_rng(0)

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: the names are not checked against others in this registry."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All metrics; those of the tables once recovery is over."""
        ready = self._is_ready()
        progress = self._progress
        yield GaugeMetricFamily("seedpod_replay_ready", "1 after recovery", value=float(ready))
        yield GaugeMetricFamily(
            "seedpod_replay_recovered_bytes", "Read of the log", value=progress.read_bytes
        )
        yield GaugeMetricFamily(
            "seedpod_replay_recoverable_bytes", "Of the log", value=progress.total_bytes
        )
        yield GaugeMetricFamily(
            "seedpod_replay_damaged_segments", "See the logs", value=len(progress.damaged)
        )
        if not ready:
            return
        for kind, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text, read in metrics:
                family = kind(f"seedpod_replay_{name}", text, labels=["table"])
                for table, host in self._hosts.items():
                    family.add_metric([table], read(host))
                yield family
        yield self._quantiles()

    def _quantiles(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "seedpod_replay_priority", "Quantiles over items", labels=["table", "quantile"]
        )
        for name, host in self._hosts.items():
            sample = host.table.priority_sample(_SAMPLED_PRIORITIES, self._random)
            if len(sample):
                for q, value in zip(_QUANTILES, np.quantile(sample, _QUANTILES), strict=True):
                    family.add_metric([name, str(q)], float(value))
        return family


def serve_metrics(
    config: ReplayConfig,
    hosts: dict[str, TableHost],
    progress: Progress,
    is_ready: Callable[[], bool],
) -> int | None:
    """Serves /metrics if a port is configured (0: any free one), and returns the port.

    Raises:
      OSError: The port cannot be had.
    """
    if config.metrics_port is None:
        return None
    registry = prometheus_client.CollectorRegistry()
    registry.register(_ReplayCollector(hosts, progress, is_ready))
    server, _ = prometheus_client.start_http_server(
        config.metrics_port, config.metrics_host, registry
    )
    return int(server.server_port)
