"""How seedpod's processes open channels and servers: keepalive, limits, backoff.

Actors call `channel`, the learner's front ends `server_options`; both sides notice a stopped
peer within twice the keepalive time.
"""

from __future__ import annotations

import random

import grpc
import grpc.aio

# No message of ours comes near it (a group of 1,024 packed football frames has 3.5 MB); Join
# refuses a layout that would.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# The name by which a health check asks whether a process lives at all; whether it can be used is
# asked by the API's name or none. Kubernetes restarts what does not live, and only waits for what
# is not ready: a replay service that recovers, for example.
LIVENESS = "liveness"

LEASE_METADATA = "seedpod-lease"
GROUP_METADATA = "seedpod-group"


class StatusError(Exception):
    """An error with a gRPC status code; servicers turn it into the call's status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Backoff:
    """Waiting times of a retry loop: they double up to a maximum, with full jitter."""

    def __init__(self, initial: float = 0.2, maximum: float = 10.0) -> None:
        self._initial = initial
        self._maximum = maximum
        self._attempt = 0

    def next(self) -> float:
        """Seconds to wait before the next try: uniform in [half, all] of the current limit."""
        limit = min(self._maximum, self._initial * 2**self._attempt)
        self._attempt = min(self._attempt + 1, 30)
        return random.uniform(limit / 2, limit)

    def reset(self) -> None:
        """After a success: the next wait is the initial one again."""
        self._attempt = 0


def _keepalive_options(keepalive_seconds: float) -> list[tuple[str, int]]:
    milliseconds = int(keepalive_seconds * 1000)
    return [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        # The core times the ping itself with this one, whose default is a minute: without it a
        # stopped peer stayed unnoticed for longer than 16 s at a keepalive of 1 s.
        ("grpc.http2.ping_timeout_ms", milliseconds),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]


def channel(address: str, keepalive_seconds: float = 5.0) -> grpc.Channel:
    """A channel of its own to `address` (host:port), not shared with others of the process."""
    return grpc.insecure_channel(address, options=_channel_options(keepalive_seconds))


def aio_channel(address: str, keepalive_seconds: float = 5.0) -> grpc.aio.Channel:
    """`channel` for the running event loop."""
    return grpc.aio.insecure_channel(address, options=_channel_options(keepalive_seconds))


def _channel_options(keepalive_seconds: float) -> list[tuple[str, int]]:
    return [
        *_keepalive_options(keepalive_seconds),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]


def server_options(keepalive_seconds: float, reuse_port: bool) -> list[tuple[str, int]]:
    """Options of a server.

    Args:
      keepalive_seconds: A client that is silent for twice this time is disconnected.
      reuse_port: Whether several processes share the port. gRPC's default is yes, and then a
        server left over from an earlier run silently takes a share of the connections.
    """
    return [
        *_keepalive_options(keepalive_seconds),
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
    ]
