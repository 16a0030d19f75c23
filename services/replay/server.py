"""The process: listens at once, recovers, serves, and ends within seconds of SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import pathlib
import signal
import time

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.replay import recovery, segment_log, status
from services.replay.host import TableHost
from services.replay.recovery import Progress, Recovered
from services.replay.servicer import SERVICE, ReplayServicer
from services.shared import rpc
from services.shared.config import ReplayConfig

_STOP_GRACE_SECONDS = 1.0
_PROGRESS_SECONDS = 5.0

_log = logging.getLogger(__name__)


class CannotStart(Exception):
    """The message says why."""


async def serve(config: ReplayConfig) -> None:
    """Runs the service until SIGTERM or SIGINT.

    Raises:
      CannotStart: The address or the directory is in use.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    lock = _lock_directory(config.persistence.directory)
    progress = Progress()
    hosts = {
        name: TableHost(name, table, config.persistence, config.seed, config.insert_window_bytes)
        for name, table in config.tables.items()
    }
    servicer = ReplayServicer(config, hosts, progress)
    server = grpc.aio.server(options=rpc.server_options(config.keepalive_seconds, reuse_port=False))
    server.add_generic_rpc_handlers((servicer.handlers(),))
    health_servicer = await _add_health(server)
    try:
        port = rpc.add_port(server, config.address, config.tls)
    except RuntimeError as error:
        raise CannotStart(f"address {config.address}: {error}") from None
    metrics_port = status.serve_metrics(config, hosts, progress, lambda: servicer.ready)
    await server.start()
    host = config.address.rpartition(":")[0]
    _log.info("listening on %s:%d, metrics on port %s", host, port, metrics_port)
    recovering = asyncio.create_task(_recover(hosts, progress))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((recovering, stopping), return_when=asyncio.FIRST_COMPLETED)
    snapshots = None
    if not stop.is_set():
        recovering.result()
        servicer.ready = True
        for name in ("", SERVICE):
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        _log.info("serving tables %s", ", ".join(sorted(hosts)))
        snapshots = asyncio.create_task(_snapshot_forever(hosts, config))
        await stopping
    await _stop(server, servicer, health_servicer, hosts, snapshots)
    if lock >= 0:
        os.close(lock)
    if not recovering.done():
        os._exit(0)  # its thread cannot be interrupted, and has nothing to save


async def _add_health(server: grpc.aio.Server) -> health.aio.HealthServicer:
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    for name in ("", SERVICE):
        await servicer.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    await servicer.set(rpc.LIVENESS, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(
        (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    return servicer


def _lock_directory(directory: str | None) -> int:
    """Makes sure that no other process writes to the directory."""
    if directory is None:
        return -1
    path = pathlib.Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise CannotStart(f"persistence.directory {directory}: {error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotStart(
            f"persistence.directory {directory}: another replay service uses it"
        ) from None
    return lock


async def _recover(hosts: dict[str, TableHost], progress: Progress) -> None:
    directories = {name: host.directory for name, host in hosts.items() if host.directory}
    for directory in directories.values():
        directory.mkdir(parents=True, exist_ok=True)
        for _, path in segment_log.segment_paths(directory):
            progress.total_bytes += path.stat().st_size
    started = time.monotonic()
    reporter = asyncio.create_task(_report(progress))
    for name, host in hosts.items():
        result = Recovered()
        if name in directories:
            result = await asyncio.to_thread(
                recovery.recover, host.table, directories[name], progress
            )
        host.recovered(result)
        if host.table.items or result.lost_items:
            _log.info("table %s: %d items recovered", name, host.table.items)
        if result.lost_items:
            _log.error("table %s: %d items are lost", name, result.lost_items)
    reporter.cancel()
    if progress.total_bytes:
        _log.info("recovered in %.1f s", time.monotonic() - started)


async def _report(progress: Progress) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        _log.info("recovering: %d of %d MiB", progress.read_bytes >> 20, progress.total_bytes >> 20)


async def _snapshot_forever(hosts: dict[str, TableHost], config: ReplayConfig) -> None:
    while True:
        await asyncio.sleep(config.persistence.snapshot_seconds)
        await _snapshot(hosts)


async def _snapshot(hosts: dict[str, TableHost]) -> None:
    for name, host in hosts.items():
        try:
            await host.checkpoint()
        except OSError as error:
            _log.error("table %s: priorities cannot be saved: %s", name, error)


async def _stop(
    server: grpc.aio.Server,
    servicer: ReplayServicer,
    health_servicer: health.aio.HealthServicer,
    hosts: dict[str, TableHost],
    snapshots: asyncio.Task[None] | None,
) -> None:
    await health_servicer.enter_graceful_shutdown()
    servicer.end_calls()
    await server.stop(_STOP_GRACE_SECONDS)
    if snapshots is None:
        return
    snapshots.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await snapshots
    await _snapshot(hosts)
    for host in hosts.values():
        await asyncio.to_thread(host.close)
    _log.info("ended")
