"""One Insert stream: messages go in, and acknowledgements follow when they are safe.

Acknowledging runs beside reading, so that a writer need not wait for the log after each message;
one acknowledgement covers whatever has been written meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio

from services.replay.host import TableHost
from services.replay.waits import Writer
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.status import StatusError


class InsertStream:
    """See the module."""

    def __init__(self, host: TableHost, writer: Writer, context: Any) -> None:
        """Wraps a stream that was opened by `TableHost.open_writer`."""
        self._host = host
        self._writer = writer
        self._epoch = writer.epoch
        self._context = context
        self._failures = host.log_failures
        self._inserted = writer.received
        self._progress = asyncio.Event()
        self._ended = False
        self._error: StatusError | None = None
        self._task = asyncio.current_task()

    async def run(self) -> None:
        """Runs until the writer ends the stream.

        Raises:
          StatusError: As the proto says.
        """
        acknowledging = asyncio.create_task(self._acknowledge())
        self._host.count_streams(1)
        try:
            await self._answer(self._inserted, max_item_bytes=self._host.max_item_bytes)
            while (message := await self._context.read()) is not grpc.aio.EOF:
                # A message that has begun is inserted to its end, even if the stream is lost:
                # its first items may have been sampled already.
                inserting = asyncio.ensure_future(
                    self._host.insert(self._writer, self._epoch, message)
                )
                sequence = await asyncio.shield(inserting)
                self._inserted = max(self._inserted, sequence)
                self._progress.set()
            self._ended = True
            self._progress.set()
            await acknowledging
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._host.count_streams(-1)
            acknowledging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await acknowledging
            self._host.close_writer(self._writer, self._epoch)

    async def _acknowledge(self) -> None:
        try:
            while not (self._ended and self._writer.acknowledged >= self._inserted):
                await self._progress.wait()
                self._progress.clear()
                sequence = self._inserted
                await self._host.written(self._failures)
                self._writer.acknowledged = max(self._writer.acknowledged, sequence)
                await self._answer(sequence)
        except StatusError as error:
            self._error = error
            if self._task is not None:
                self._task.cancel()

    async def _answer(self, sequence: int, **fields: int) -> None:
        response = replay_pb2.InsertResponse(
            sequence=sequence, window_bytes=self._host.window_bytes, **fields
        )
        await self._context.write(response.SerializeToString())
