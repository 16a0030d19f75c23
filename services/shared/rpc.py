"""How seedpod's processes open channels and servers: keepalive, limits, backoff, TLS.

Actors call `channel`, the learner's front ends `server_options`; both sides notice a stopped
peer within twice the keepalive time.
"""

from __future__ import annotations

import logging
import pathlib
import random
from typing import Any

import grpc
import grpc.aio

from services.shared.config import TlsConfig

# No message of ours comes near it (a group of 1,024 packed football frames has 3.5 MB); Join
# refuses a layout that would.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

# The name by which a health check asks whether a process lives at all; whether it can be used is
# asked by the API's name or none. Kubernetes restarts what does not live, and only waits for what
# is not ready: a replay service that recovers, for example.
LIVENESS = "liveness"

LEASE_METADATA = "seedpod-lease"
GROUP_METADATA = "seedpod-group"
_log = logging.getLogger(__name__)


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


def channel(
    address: str,
    keepalive_seconds: float = 5.0,
    tls: TlsConfig | None = None,
    server_name: str | None = None,
) -> grpc.Channel:
    """A channel of its own to `address` (host:port), not shared with others of the process.

    Args:
      address: With TLS, its host must be named in the server's certificate.
      keepalive_seconds: A silent server is given up after twice this time.
      tls: This side's certificate; None: no encryption.
      server_name: That the server's certificate has; None: the address's host.

    Raises:
      OSError: A file of the certificate cannot be read.
    """
    options: list[tuple[str, int | str]] = [*_channel_options(keepalive_seconds)]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, _channel_credentials(tls), options=options)


def aio_channel(
    address: str, keepalive_seconds: float = 5.0, tls: TlsConfig | None = None
) -> grpc.aio.Channel:
    """`channel` for the running event loop."""
    options = _channel_options(keepalive_seconds)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, _channel_credentials(tls), options=options)


def add_port(server: grpc.aio.Server, address: str, tls: TlsConfig | None) -> int:
    """Makes a server listen, and returns the port.

    With TLS a client without a certificate of the authority is refused. Renewed files are taken
    up by the next connection.

    Raises:
      OSError: A file of the certificate cannot be read.
      RuntimeError: The address is taken.
    """
    if tls is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, _Certificates(tls).credentials()))


def check_files(tls: TlsConfig | None) -> None:
    """Reads what a server will need, before its processes are started.

    Raises:
      OSError: A file of the certificate cannot be read.
    """
    if tls is not None:
        _Certificates(tls).credentials()


class _Certificates:
    """A server's certificate, read again when its files have changed."""

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._read_at: tuple[int, ...] = ()

    def credentials(self) -> grpc.ServerCredentials:
        configuration = self._newer()
        assert configuration is not None, "nothing was read before"
        return grpc.dynamic_ssl_server_credentials(
            configuration, self._fetch, require_client_authentication=True
        )

    def _fetch(self) -> Any:
        """Called by gRPC at each handshake; None: as before."""
        try:
            return self._newer()
        except OSError as error:
            _log.error("certificate cannot be read again: %s", error)
            return None

    def _newer(self) -> Any:
        paths = [pathlib.Path(p) for p in (self._tls.key, self._tls.certificate)]
        paths.append(pathlib.Path(self._tls.authority))
        times = tuple(path.stat().st_mtime_ns for path in paths)
        if times == self._read_at:
            return None
        key, certificate, authority = (path.read_bytes() for path in paths)
        self._read_at = times
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)


def _channel_credentials(tls: TlsConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        pathlib.Path(tls.authority).read_bytes(),
        pathlib.Path(tls.key).read_bytes(),
        pathlib.Path(tls.certificate).read_bytes(),
    )


def _channel_options(keepalive_seconds: float) -> list[tuple[str, int]]:
    return [
        *_keepalive_options(keepalive_seconds),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5000),
        # A pod that is replaced comes back under another address; gRPC's default is 30 s.
        ("grpc.dns_min_time_between_resolutions_ms", 1000),
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
