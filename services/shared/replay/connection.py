"""What the client's parts share: errors, and the thread with the event loop.

grpc.aio in one thread, whatever the number of shards and streams: a message costs half of what
it costs with the synchronous API, which pins a thread to each stream.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay.layout import VERSION, SequenceLayout

SERVICE = "/seedpod.replay.v1.ReplayService/"
# Trying again would not help.
FATAL = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
_Result = TypeVar("_Result")


class ReplayError(Exception):
    """The service refuses what this client does; the message is the service's."""


class ReplayTimeout(TimeoutError):
    """It did not happen in time; the message says what each shard does."""


class LoopThread:
    """An event loop in a thread of its own, shared by all clients of the process.

    It is never closed: grpc.aio goes on calling loops that it has seen once.
    """

    _shared: LoopThread | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        """Starts it; see `shared`."""
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever, name="replay-client", daemon=True)
        thread.start()

    @classmethod
    def shared(cls) -> LoopThread:
        """The one of this process."""
        with cls._lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def call(
        self, coroutine: Coroutine[Any, Any, _Result], timeout: float | None = None
    ) -> _Result:
        """Runs a coroutine and waits for it.

        Raises:
          TimeoutError: It took longer, and was cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise


def to_proto(layout: SequenceLayout) -> replay_pb2.Layout:
    """The layout as the service sees it."""
    return replay_pb2.Layout(description=layout.description, version=VERSION)


def describe(error: grpc.aio.AioRpcError) -> str:
    """A call's error in one line."""
    return f"{error.code().name}: {error.details()}"
