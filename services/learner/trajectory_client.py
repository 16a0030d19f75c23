"""The learner as a local policy sees it: registers, fetches parameters, sends unrolls.

All calls wait for as long as the learner is away, visibly; they end early when `close` is called
(`Closed`) or there is no point in going on (`Refused`).
"""

from __future__ import annotations

import logging
import queue
import random
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from services.learner import trajectories
from services.shared import rpc
from services.shared.config import TlsConfig
from services.shared.generated.seedpod.trajectory.v1 import trajectory_pb2, trajectory_pb2_grpc

_REGISTER_SECONDS = 300.0  # the first one waits for the network to be built
_FETCH_SECONDS = 60.0
_FATAL = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
_log = logging.getLogger(__name__)


class Refused(Exception):
    """The learner will never take what this actor offers; the message is the learner's."""


class Finished(Exception):
    """Training is over."""


class Closed(Exception):
    """`close` was called."""


class TrajectoryClient:
    """One actor's connection; all but `close` are for one thread at a time."""

    def __init__(self, address: str, keepalive_seconds: float, tls: TlsConfig | None) -> None:
        """Opens a channel.

        Args:
          address: host:port of the learner's trajectory service.
          keepalive_seconds: A silent learner is given up after twice this time.
          tls: The actor's certificate; None: no encryption.

        Raises:
          OSError: A file of the certificate cannot be read.
        """
        self._address = address
        self._channel = rpc.channel(address, keepalive_seconds, tls)
        self._stub = trajectory_pb2_grpc.TrajectoryServiceStub(self._channel)
        self._actor_id = random.SystemRandom().getrandbits(63)
        self._request = trajectory_pb2.RegisterRequest()
        self._sequence = 0
        self._call: Any = None
        self._outbox: queue.SimpleQueue[trajectory_pb2.PutUnrollsRequest | None]
        self._outbox = queue.SimpleQueue()
        self._backoff = rpc.Backoff()
        self._closed = threading.Event()

    def close(self) -> None:
        """Ends all calls; any thread may call it."""
        self._closed.set()
        self._outbox.put(None)
        self._channel.close()

    def register(self, request: trajectory_pb2.RegisterRequest) -> None:
        """Agrees on specs; what is sent later counts as of this actor.

        Raises:
          Finished: Training is over.
          Refused: The learner does not take such unrolls.
          Closed: See the module.
        """
        request.api_version = trajectories.API_VERSION
        request.actor_id = self._actor_id
        while True:
            try:
                response = self._stub.Register(request, timeout=_REGISTER_SECONDS)
            except (grpc.RpcError, ValueError) as error:
                self._wait_after(error)
            else:
                break
        if response.finished:
            raise Finished
        self._request = request
        self._sequence = 0
        self._backoff.reset()
        _log.info("registered with the learner at %s", self._address)

    def fetch(self, version: int) -> tuple[int, bytes] | None:
        """The newest parameters and their version; None if that is `version`.

        Raises:
          Finished, Refused, Closed: As `register`.
        """
        while True:
            request = trajectory_pb2.GetParametersRequest(version=version)
            try:
                pieces = list(self._stub.GetParameters(request, timeout=_FETCH_SECONDS))
            except (grpc.RpcError, ValueError) as error:
                if _code(error) is grpc.StatusCode.NOT_FOUND:
                    self.register(self._request)
                    continue
                self._wait_after(error)
                continue
            newest: int = pieces[0].version
            return None if newest == version else (newest, b"".join(p.data for p in pieces))

    def put(
        self, message: trajectory_pb2.PutUnrollsRequest
    ) -> trajectory_pb2.PutUnrollsResponse | None:
        """Sends unrolls and waits until the learner has taken them.

        Returns:
          The learner's answer; None if another learner is there now, for which they are not.

        Raises:
          Finished, Refused, Closed: As `register`.
        """
        message.actor_id = self._actor_id
        message.sequence = self._sequence + 1
        while True:
            try:
                response = self._exchange(message)
            except (grpc.RpcError, ValueError) as error:
                self._hang_up()
                if _code(error) is grpc.StatusCode.NOT_FOUND:
                    self.register(self._request)
                    return None
                self._wait_after(error)
                continue
            if response is None:  # the learner ended the stream
                self._hang_up()
                self._pause("the learner ended the stream")
                continue
            self._backoff.reset()
            self._sequence = response.sequence
            if response.finished:
                raise Finished
            return response

    def _exchange(
        self, message: trajectory_pb2.PutUnrollsRequest
    ) -> trajectory_pb2.PutUnrollsResponse | None:
        if self._call is None:
            self._outbox = queue.SimpleQueue()
            self._call = self._stub.PutUnrolls(_messages(self._outbox))
        self._outbox.put(message)
        response: trajectory_pb2.PutUnrollsResponse | None = next(self._call, None)
        return response

    def _hang_up(self) -> None:
        self._outbox.put(None)
        if self._call is not None:
            self._call.cancel()
        self._call = None

    def _wait_after(self, error: Exception) -> None:
        """Waits before the next try.

        Raises:
          Refused: It would end like this one.
          Closed: See the module.
        """
        if self._closed.is_set():  # a closed channel raises ValueError
            raise Closed from None
        if not isinstance(error, grpc.RpcError):
            raise error
        if error.code() in _FATAL:
            raise Refused(f"the learner refuses this actor: {error.details()}") from None
        self._pause(f"{error.code().name}: {error.details()}")

    def _pause(self, reason: str) -> None:
        wait = self._backoff.next()
        _log.warning("the learner at %s: %s; trying again in %.1f s", self._address, reason, wait)
        if self._closed.wait(wait):
            raise Closed


def _messages(
    outbox: queue.SimpleQueue[trajectory_pb2.PutUnrollsRequest | None],
) -> Iterator[trajectory_pb2.PutUnrollsRequest]:
    while (message := outbox.get()) is not None:
        yield message


def _code(error: Exception) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.RpcError) else None
