"""The RPCs: decode, call the table's host, encode. Messages come and go as bytes.

`server` registers the handlers. Blocks are never copied into protobuf objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from services.replay.host import TableHost
from services.replay.ingest import invalid
from services.replay.insert_stream import InsertStream
from services.replay.recovery import Progress
from services.replay.replies import describe, parse, replies, to_layout, update
from services.replay.status import table_status
from services.shared import tls
from services.shared.config import ReplayConfig
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import messages
from services.shared.rpc import MAX_MESSAGE_BYTES
from services.shared.status import StatusError

SERVICE = "seedpod.replay.v1.ReplayService"
# A call that would exceed its deadline is answered a little before, to say what is missing.
_DEADLINE_MARGIN_SECONDS = 0.1


class ReplayServicer:
    """See the module.

    Attributes:
      hosts: The tables by name.
      ready: Set when recovery is over; until then only GetStatus answers.
    """

    def __init__(
        self, config: ReplayConfig, hosts: dict[str, TableHost], progress: Progress
    ) -> None:
        """Serves these tables."""
        self.hosts = hosts
        self.ready = False
        self._config = config
        self._progress = progress
        self._calls: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def handlers(self) -> Any:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Insert": self._stream("Insert", self._insert),
                "StreamSamples": self._stream("StreamSamples", self._stream_samples),
                "Sample": self._unary("Sample", self._sample),
                "UpdatePriorities": self._unary("UpdatePriorities", self._update_priorities),
                "GetStatus": self._unary("GetStatus", self._get_status, always=True),
                "Checkpoint": self._unary("Checkpoint", self._checkpoint),
            },
        )

    def end_calls(self) -> None:
        """Ends all streams and waiting calls with UNAVAILABLE."""
        self._stopping = True
        for task in self._calls:
            task.cancel()

    def _stream(self, name: str, method: Callable[[Any], Awaitable[None]]) -> Any:
        async def handler(_: object, context: Any) -> None:
            await self._guarded(name, lambda: method(context), context)

        return grpc.stream_stream_rpc_method_handler(handler)

    def _unary(
        self, name: str, method: Callable[[bytes, Any], Awaitable[bytes]], always: bool = False
    ) -> Any:
        async def handler(request: bytes, context: Any) -> bytes:
            call = functools.partial(method, request, context)
            response: bytes = await self._guarded(name, call, context, always)
            return response

        return grpc.unary_unary_rpc_method_handler(handler)

    async def _guarded(
        self, name: str, call: Callable[[], Awaitable[Any]], context: Any, always: bool = False
    ) -> Any:
        """Lets only learners call, and turns exceptions into the call's status.

        Args:
          name: Of the method.
          call: Makes what is to be awaited.
          context: Of the call.
          always: Whether it is answered during recovery too.
        """
        task = asyncio.current_task()
        assert task is not None, "gRPC runs each call in a task"
        self._calls.add(task)
        try:
            tls.authorize(context, self._config.tls, "learner", name)
            if not always and (self._stopping or not self.ready):
                raise StatusError(grpc.StatusCode.UNAVAILABLE, self._why_unavailable())
            return await call()
        except StatusError as error:
            await context.abort(error.code, error.message)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._why_unavailable())
        finally:
            self._calls.discard(task)

    def _why_unavailable(self) -> str:
        if self._stopping:
            return "the replay service is stopping"
        progress = self._progress
        return (
            f"the replay service is recovering: {progress.read_bytes >> 20} of"
            f" {progress.total_bytes >> 20} MiB of its log are read"
        )

    def _host(self, table: str) -> TableHost:
        host = self.hosts.get(table)
        if host is None:
            raise StatusError(
                grpc.StatusCode.NOT_FOUND, f"no table {table!r}; there are {sorted(self.hosts)}"
            )
        return host

    async def _insert(self, context: Any) -> None:
        first = await context.read()
        if first is grpc.aio.EOF:
            return
        request = parse(first, replay_pb2.InsertRequest)
        if not request.HasField("open"):
            raise invalid("the first message of a stream must have `open`")
        host = self._host(request.open.table)
        writer = await host.open_writer(request.open.writer_id, to_layout(request.open.layout))
        await InsertStream(host, writer, context).run()

    async def _stream_samples(self, context: Any) -> None:
        first = await context.read()
        if first is grpc.aio.EOF:
            return
        request = parse(first, replay_pb2.StreamSamplesRequest)
        if not request.HasField("open"):
            raise invalid("the first message of a stream must have `open`")
        host = self._host(request.open.table)
        layout = to_layout(request.open.layout)
        host.check_layout(layout, "reader")
        _check_exponent(request.open.importance_exponent)
        # Batch sizes that were granted, or what is wrong with a message; None at the end.
        credit: asyncio.Queue[int | StatusError | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read_requests(host, request, context, credit))
        try:
            batch = 0
            while (granted := await credit.get()) is not None:
                if isinstance(granted, StatusError):
                    raise granted
                batch += 1
                chosen = await host.choose(granted)
                try:
                    host.check_layout(layout, "reader")
                    exponent = request.open.importance_exponent
                    for reply in replies(host, batch, chosen, exponent, self._config.reply_bytes):
                        await context.write(reply)
                finally:
                    host.table.unpin(chosen)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _read_requests(
        self,
        host: TableHost,
        request: replay_pb2.StreamSamplesRequest,
        context: Any,
        credit: asyncio.Queue[int | StatusError | None],
    ) -> None:
        """Applies priorities as they come, so that they count for the next batch."""
        try:
            while True:
                if request.keys or request.priorities:
                    update(host, request)
                if request.credit:
                    self._check_batch_size(request.batch_size)
                    self._check_credit(credit.qsize() + request.credit)
                    for _ in range(request.credit):
                        credit.put_nowait(request.batch_size)
                message = await context.read()
                if message is grpc.aio.EOF:
                    credit.put_nowait(None)
                    return
                request = parse(message, replay_pb2.StreamSamplesRequest)
        except StatusError as error:
            credit.put_nowait(error)

    async def _sample(self, data: bytes, context: Any) -> bytes:
        request = parse(data, replay_pb2.SampleRequest)
        host = self._host(request.table)
        layout = to_layout(request.layout)
        host.check_layout(layout, "reader")
        self._check_batch_size(request.batch_size)
        _check_exponent(request.importance_exponent)
        remaining = context.time_remaining()
        timeout = self._config.sample_timeout_seconds
        if remaining is not None:
            timeout = remaining - min(_DEADLINE_MARGIN_SECONDS, remaining / 10)
        try:
            async with asyncio.timeout(timeout):
                chosen = await host.choose(request.batch_size)
        except TimeoutError:
            table = host.table
            raise StatusError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"table {table.name!r} allowed no batch of {request.batch_size} within"
                f" {timeout:.1f} s: {table.limiter.describe(table.items)}",
            ) from None
        try:
            host.check_layout(layout, "reader")
            rows, header = describe(host, chosen, request.importance_exponent)
            size = int(host.table.blocks.sizes(rows).sum())
            if size + header.ByteSize() + 64 > MAX_MESSAGE_BYTES:
                raise StatusError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"the batch has {size} bytes, one message at most {MAX_MESSAGE_BYTES}; use"
                    " StreamSamples",
                )
            views = host.table.blocks.views(rows)
            return messages.join(replay_pb2.SampleResponse(header=header), views, size)
        finally:
            host.table.unpin(chosen)

    async def _update_priorities(self, data: bytes, _: Any) -> bytes:
        request = parse(data, replay_pb2.UpdatePrioritiesRequest)
        stale = update(self._host(request.table), request)
        return bytes(replay_pb2.UpdatePrioritiesResponse(stale=stale).SerializeToString())

    async def _get_status(self, _: bytes, __: Any) -> bytes:
        response = replay_pb2.GetStatusResponse(
            # Recovery's thread is at work in the tables until it is over.
            tables=[table_status(host) for host in self.hosts.values()] if self.ready else [],
            log_directory=self._config.persistence.directory or "",
            recovering=not self.ready,
            recovered_bytes=self._progress.read_bytes,
            recoverable_bytes=self._progress.total_bytes,
            damaged_segments=list(self._progress.damaged),
            cpu_seconds=time.process_time(),
        )
        return bytes(response.SerializeToString())

    async def _checkpoint(self, _: bytes, __: Any) -> bytes:
        if self._config.persistence.directory is None:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "persistence is off: persistence.directory is not set",
            )
        try:
            items = sum([await host.checkpoint() for host in self.hosts.values()])
        except OSError as error:
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None
        return bytes(replay_pb2.CheckpointResponse(items=items).SerializeToString())

    def _check_batch_size(self, size: int) -> None:
        if not 1 <= size <= self._config.max_batch_size:
            raise invalid(
                f"batch_size is {size}, allowed: 1 to {self._config.max_batch_size}"
                " (max_batch_size)"
            )

    def _check_credit(self, batches: int) -> None:
        if batches > self._config.max_credit:
            raise invalid(
                f"credit for {batches} batches that are not sent yet, allowed:"
                f" {self._config.max_credit} (max_credit)"
            )


def _check_exponent(exponent: float) -> None:
    if not 0 <= exponent < math.inf:
        raise invalid(f"importance_exponent is {exponent}, allowed: finite, 0 or more")
