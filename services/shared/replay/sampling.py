"""Sampling from one shard: a stream that asks for parts of batches and returns priorities.

The sampler divides each batch into parts, one for each shard. All of this runs in the client's
event loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import numpy as np
import numpy.typing as npt

from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import messages
from services.shared.replay.codec import BatchBuffer, MalformedBlock
from services.shared.replay.connection import FATAL, SERVICE, describe
from services.shared.rpc import Backoff
from services.shared.varint import MalformedMessage

_STATUS_TIMEOUT_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Part:
    """The items of a batch that come from one shard.

    Attributes:
      batch: The sampler's.
      first_row, count: Rows of the batch.
    """

    batch: Any
    first_row: int
    count: int


class Assembly:
    """A part while its messages come in: an item is decoded when its last block is there."""

    def __init__(self, header: replay_pb2.BatchHeader) -> None:
        """Reads the header of a reply."""
        self.keys = messages.array(header.keys, np.uint64, "keys")
        self.probabilities = messages.array(header.probabilities, np.float64, "probabilities")
        self.priorities = messages.array(header.priorities, np.float64, "priorities")
        self.times_sampled = messages.array(header.times_sampled, np.uint32, "times_sampled")
        offsets = messages.array(header.item_offsets, np.uint32, "item_offsets")
        lengths = messages.array(header.item_lengths, np.uint32, "item_lengths")
        counts = messages.array(header.item_block_counts, np.uint32, "item_block_counts")
        blocks = messages.array(header.item_blocks, np.uint32, "item_blocks")
        self.offsets, self.lengths = offsets.tolist(), lengths.tolist()
        # Each item's block if each has one, whole; its steps, if all have equally many.
        is_whole = (counts == 1).all() and not offsets.any()
        self._whole_blocks = blocks if is_whole and (lengths == lengths[0]).all() else None
        stops = np.cumsum(counts, dtype=np.int64)
        starts = stops - counts
        # Blocks come in order: an item is complete when its last one is there.
        last = np.maximum.reduceat(blocks, starts)
        order = np.argsort(last, kind="stable")
        self._order = list(zip(order.tolist(), last[order].tolist(), strict=True))
        self._decoded = 0
        self._starts, self._stops = starts.tolist(), stops.tolist()
        self._blocks = blocks.tolist()
        self._sizes = messages.array(header.block_bytes, np.uint32, "block_bytes").tolist()
        self._views: list[memoryview] = []

    def take(
        self, first_block: int, payload: memoryview, buffer: BatchBuffer, first_row: int
    ) -> None:
        """Takes a message's blocks, and decodes the items that are complete.

        Args:
          first_block: Of the payload.
          payload: Whole blocks.
          buffer: Takes the items.
          first_row: Of the first item in the buffer.

        Raises:
          MalformedBlock: An item is none, or the payload does not have its blocks.
        """
        views = self._views
        if first_block != len(views):
            raise MalformedBlock(f"block {first_block} came after {len(views)} blocks")
        if (
            self._whole_blocks is not None
            and not first_block
            and len(payload) == sum(self._sizes)
            and buffer.decode_raw(first_row, payload, self._whole_blocks, self.lengths[0])
        ):
            self._decoded = len(self._order)
            return
        at = 0
        for size in self._sizes[first_block:]:
            if at == len(payload):
                break
            views.append(payload[at : at + size])
            at += size
        if at != len(payload):
            raise MalformedBlock(f"a payload has {len(payload)} bytes, its blocks {at}")
        for item, last in self._order[self._decoded :]:
            if last >= len(views):
                break
            used = [views[b] for b in self._blocks[self._starts[item] : self._stops[item]]]
            buffer.decode_item(first_row + item, used, self.offsets[item], self.lengths[item])
            self._decoded += 1

    def check_complete(self) -> None:
        """Raises MalformedBlock unless all items were decoded."""
        if missing := len(self._order) - self._decoded:
            raise MalformedBlock(f"{missing} items lack blocks")


class ShardSampler:
    """See the module.

    Attributes:
      address: Of the shard.
      is_up: Its stream works.
      is_tried: It is known whether it is there.
      items, total_priority: As last heard of it.
      min_size: Items it must have before it samples.
      error: Set once it has refused this client for good.
      problem: What went wrong last.
      reconnects: Count.
      server_cpu_seconds: What the shard has used since the first answer.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        opening: replay_pb2.StreamSamplesOpen,
        take: Callable[[Part, Assembly | None, replay_pb2.StreamSamplesResponse, memoryview],
                       Awaitable[Assembly]],
        lost: Callable[[list[Part]], None],
    ) -> None:  # fmt: skip
        """Prepares; `run` connects.

        Args:
          channel: To the shard.
          address: For messages.
          opening: Table, layout, exponent.
          take: Takes a message of a part and returns its assembly; may wait for a buffer.
          lost: Takes back the parts that will not come.
        """
        self.address = address
        self.is_up = self.is_tried = False
        self.items = 0
        self.total_priority = 0.0
        self.min_size = 1
        self.error: str | None = None
        self.problem = "not connected yet"
        self.reconnects = 0
        self.server_cpu_seconds = 0.0
        self._last_cpu_seconds: float | None = None
        self._stream = channel.stream_stream(SERVICE + "StreamSamples")
        self._status = channel.unary_unary(SERVICE + "GetStatus")
        self._opening = opening
        self._take = take
        self._lost = lost
        self._requests: collections.deque[Part] = collections.deque()
        self._asked: collections.deque[Part] = collections.deque()
        self._updates: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]] = []
        self._wake = asyncio.Event()

    @property
    def can_sample(self) -> bool:
        """Whether a batch may be asked of it."""
        return self.is_up and self.items >= max(1, self.min_size)

    def request(self, part: Part) -> None:
        """Asks for a part."""
        self._requests.append(part)
        self._wake.set()

    def update(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> None:
        """Sends priorities [u], with a request if one is made at the same time."""
        self._updates.append((keys, priorities))
        self._wake.set()

    async def refresh(self) -> None:
        """Asks how much the shard has."""
        try:
            data = await self._status(b"", timeout=_STATUS_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            self.problem = describe(error)
            return
        status = replay_pb2.GetStatusResponse.FromString(data)
        self._count_cpu(status.cpu_seconds)
        for table in status.tables:
            if table.name == self._opening.table:
                self.items, self.total_priority = table.items, table.total_priority
                self.min_size = table.min_size_to_sample

    def _count_cpu(self, seconds: float) -> None:
        """Adds what has come since the last answer; a restarted service begins at 0 again."""
        if self._last_cpu_seconds is not None:
            begun_anew = seconds < self._last_cpu_seconds
            self.server_cpu_seconds += seconds - (0.0 if begun_anew else self._last_cpu_seconds)
        self._last_cpu_seconds = seconds

    async def run(self) -> None:
        """Connects and samples until it is cancelled or refused."""
        backoff = Backoff(0.1, 5.0)
        while True:
            call = self._stream()
            is_fatal = False
            try:
                await self._serve(call, backoff)
                self.problem = "the service ended the stream"
            except grpc.aio.AioRpcError as error:
                self.problem = describe(error)
                is_fatal = error.code() in FATAL
            except asyncio.InvalidStateError:
                code = await call.code()
                self.problem = f"{code.name}: {await call.details()}"
                is_fatal = code in FATAL
            except (MalformedBlock, MalformedMessage) as error:
                self.problem, is_fatal = str(error), True
            finally:
                call.cancel()
            if is_fatal:
                self.error = f"{self.address}: {self.problem}"
                _log.error("%s", self.error)
            elif self.is_up:
                _log.warning("lost %s: %s; trying again", self.address, self.problem)
                self.reconnects += 1
            self.is_up, self.is_tried = False, True
            parts = [*self._asked, *self._requests]
            self._asked.clear()
            self._requests.clear()
            self._lost(parts)
            if is_fatal:
                return
            await asyncio.sleep(backoff.next())

    async def _serve(self, call: Any, backoff: Backoff) -> None:
        await call.write(replay_pb2.StreamSamplesRequest(open=self._opening).SerializeToString())
        # The first sign of life comes over another call: this one is silent until it samples.
        before = self.problem
        self.problem = ""
        await self.refresh()
        if self.problem:
            if call.done():
                raise asyncio.InvalidStateError
            return
        if before and not self.is_up and self.reconnects:
            _log.info("connected to %s again", self.address)
        self.is_up = self.is_tried = True
        self.problem = before and ""
        backoff.reset()
        self._lost([])
        reading = asyncio.ensure_future(self._read(call))
        reading.add_done_callback(lambda _: self._wake.set())
        try:
            while not reading.done():
                self._wake.clear()
                await self._send(call)
                await self._wake.wait()
            await reading
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reading

    async def _send(self, call: Any) -> None:
        while self._requests or self._updates:
            request = replay_pb2.StreamSamplesRequest()
            if self._updates:
                keys, priorities = zip(*self._updates, strict=True)
                self._updates.clear()
                request.keys = np.concatenate(keys).tobytes()
                request.priorities = np.concatenate(priorities).tobytes()
            if self._requests:
                part = self._requests.popleft()
                self._asked.append(part)
                request.credit, request.batch_size = 1, part.count
            await call.write(request.SerializeToString())

    async def _read(self, call: Any) -> None:
        assembly: Assembly | None = None
        while (data := await call.read()) is not grpc.aio.EOF:
            head, payload = messages.split(data, replay_pb2.StreamSamplesResponse)
            if head.HasField("header"):
                self.items = head.header.table_items
                self.total_priority = head.header.total_priority
            part = self._asked[0]
            assembly = await self._take(part, assembly, head, payload)
            if head.last:
                self._asked.popleft()
                assembly = None
        raise asyncio.InvalidStateError
