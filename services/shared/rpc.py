"""How seedpod's processes open channels and servers: keepalive, limits, backoff, TLS.

Actors call `channel`, the learner's front ends `server_options`; both sides notice a stopped
peer within twice the keepalive time.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import random
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from services.shared.config import TlsConfig
from services.shared.tls import Certificates, channel_credentials, server_credentials

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
      tls: This side's certificate, as it is now; None: no encryption.
      server_name: That the server's certificate has; None: the address's host.

    Raises:
      OSError: A file of the certificate cannot be read.
    """
    options: list[tuple[str, int | str]] = [*_channel_options(keepalive_seconds)]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    credentials = channel_credentials(Certificates(tls).read())
    return grpc.secure_channel(address, credentials, options=options)


def aio_channel(
    address: str, keepalive_seconds: float = 5.0, tls: TlsConfig | None = None
) -> grpc.aio.Channel | RenewingChannel:
    """`channel` for the running event loop; with TLS it takes renewed certificates up."""
    options = _channel_options(keepalive_seconds)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return RenewingChannel(address, options, tls)


class RenewingChannel:
    """A `grpc.aio.Channel` whose calls use the certificate that is there when they begin.

    gRPC's own channel keeps the one that it was made with, and connects again with that, years
    later. Here a call that finds other files opens another channel; calls under way go on over the
    old one, which is closed with the last of them.
    """

    def __init__(self, address: str, options: list[tuple[str, int]], tls: TlsConfig) -> None:
        """Opens the first channel.

        Raises:
          OSError: A file of the certificate cannot be read.
        """
        self._address = address
        self._options = options
        self._certificates = Certificates(tls)
        self._channel = self._open(self._certificates.read())
        self._calls: collections.Counter[grpc.aio.Channel] = collections.Counter()

    def unary_unary(self, method: str, **arguments: Any) -> Callable[..., Any]:
        """See `grpc.aio.Channel.unary_unary`."""
        return functools.partial(self._call, "unary_unary", method, arguments)

    def stream_unary(self, method: str, **arguments: Any) -> Callable[..., Any]:
        """See `grpc.aio.Channel.stream_unary`."""
        return functools.partial(self._call, "stream_unary", method, arguments)

    def stream_stream(self, method: str, **arguments: Any) -> Callable[..., Any]:
        """See `grpc.aio.Channel.stream_stream`."""
        return functools.partial(self._call, "stream_stream", method, arguments)

    async def __aenter__(self) -> RenewingChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all calls."""
        for channel in {self._channel, *self._calls}:
            await channel.close()

    def _open(self, pems: tuple[bytes, bytes, bytes]) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(
            self._address, channel_credentials(pems), options=self._options
        )

    def _call(
        self, kind: str, method: str, arguments: dict[str, Any], *args: Any, **keywords: Any
    ) -> Any:
        if (pems := self._certificates.renewed_or_none()) is not None:
            old, self._channel = self._channel, self._open(pems)
            _log.info("%s: the certificate was renewed", self._address)
            self._close_unused(old)
        channel = self._channel
        call = getattr(channel, kind)(method, **arguments)(*args, **keywords)
        self._calls[channel] += 1
        call.add_done_callback(lambda _: self._ended(channel))
        return call

    def _ended(self, channel: grpc.aio.Channel) -> None:
        self._calls[channel] -= 1
        self._close_unused(channel)

    def _close_unused(self, channel: grpc.aio.Channel) -> None:
        if self._calls[channel] <= 0:
            del self._calls[channel]
            if channel is not self._channel:
                self._closing = asyncio.ensure_future(channel.close())


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
    return int(server.add_secure_port(address, server_credentials(tls)))


def check_files(tls: TlsConfig | None) -> None:
    """Reads what a server will need, before its processes are started.

    Raises:
      OSError: A file of the certificate cannot be read.
    """
    if tls is not None:
        server_credentials(tls)


def _channel_options(keepalive_seconds: float) -> list[tuple[str, int]]:
    return [
        *_keepalive_options(keepalive_seconds),
        ("grpc.use_local_subchannel_pool", 1),
        # Callers try again themselves, with a backoff. gRPC's own retries have none: a call to a
        # server that was ending when it was found (SETTINGS and GOAWAY in one read) was tried
        # until its deadline, with all of a core and a gigabyte a second, and the channel's next
        # call aborted the process ("memory_quota.cc: Check failed: request.max()").
        ("grpc.enable_retries", 0),
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
