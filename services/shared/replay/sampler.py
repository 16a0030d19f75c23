"""Batches from all shards in proportion to their total priority, read ahead of need.

A batch is divided by one multinomial draw over the shards' total priorities as last heard. The
probability of each item is the share of its shard in that draw times its probability there, so
the importance weights are exact for what was really done, however old the totals were.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import grpc.aio
import numpy as np
import numpy.typing as npt

from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay.codec import BatchBuffer, Tensors
from services.shared.replay.connection import LoopThread, ReplayError, ReplayTimeout, to_proto
from services.shared.replay.layout import SequenceLayout
from services.shared.replay.sampling import Assembly, Part, ShardSampler
from services.shared.replay.weights import importance_weights

_STATUS_SECONDS = 0.5


@dataclasses.dataclass(eq=False)
class Batch:
    """B items; the arrays are valid until `Sampler.next` is called again.

    Attributes:
      keys: uint64 [B], with `shards` what `update_priorities` needs.
      shards: int32 [B].
      probabilities: float64 [B], of being chosen in one draw over all shards.
      weights: float64 [B], probability^-beta divided by the largest of the batch.
      priorities: float64 [B], as they were.
      times_sampled: uint32 [B].
      lengths: int32 [B], steps of each item; the rest of its row is zeros.
      steps: For each step field [B, T, ...].
      context: For each context field [B, ...].
    """

    keys: npt.NDArray[np.uint64]
    shards: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]
    priorities: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.int32]
    steps: Tensors
    context: Tensors


_Returned = tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32], npt.NDArray[np.float64]]


class _Ticket:
    """A batch on its way."""

    def __init__(self, size: int) -> None:
        self.buffer: BatchBuffer | None = None
        self.missing = size
        self.shards = np.zeros(size, np.int32)
        self.keys = np.zeros(size, np.uint64)
        self.probabilities = np.zeros(size)
        self.priorities = np.zeros(size)
        self.times_sampled = np.zeros(size, np.uint32)
        self.lengths = np.zeros(size, np.int32)
        self.shares = np.ones(size)


class Sampler:
    """See the module. `next` and `update_priorities` are called by one thread.

    Attributes:
      missing_shards: Shards that batches were made without, at this moment.
      incomplete_batches: Batches that were made while a shard was missing.
    """

    def __init__(
        self,
        thread: LoopThread,
        channels: list[tuple[str, grpc.aio.Channel]],
        table: str,
        layout: SequenceLayout,
        batch_size: int,
        sequence_length: int,
        importance_exponent: float,
        depth: int,
        seed: int | None,
    ) -> None:
        """Begins to read; must run in the client's event loop. See `ReplayClient.sampler`."""
        self.missing_shards = self.incomplete_batches = 0
        self._thread = thread
        self._batch_size = batch_size
        self._exponent = importance_exponent
        self._depth = depth
        self._random = np.random.default_rng(seed)
        self._free = [BatchBuffer(layout, batch_size, sequence_length) for _ in range(2)]
        self._held: BatchBuffer | None = None
        self._tickets: list[_Ticket] = []
        self._changed = asyncio.Condition()
        self._closed = False
        opening = replay_pb2.StreamSamplesOpen(
            table=table, layout=to_proto(layout), importance_exponent=importance_exponent
        )
        self._shards = [
            ShardSampler(channel, address, opening, self._taker(index), self._lost)
            for index, (address, channel) in enumerate(channels)
        ]
        self._unplaced: list[Part] = []
        self._returned: collections.deque[_Returned] = collections.deque()
        self._tasks = [asyncio.ensure_future(shard.run()) for shard in self._shards]
        self._tasks.append(asyncio.ensure_future(self._look_after()))

    def next(self, timeout: float | None = None) -> Batch:
        """The next batch; the one before is not valid any more.

        Raises:
          ReplayError: The service refuses this client.
          ReplayTimeout: There was none in time; says what each shard does.
        """
        try:
            return self._thread.call(self._next(), timeout)
        except TimeoutError:
            raise ReplayTimeout(f"no batch within {timeout} s: {self._describe()}") from None

    def update_priorities(self, batch: Batch, priorities: npt.ArrayLike) -> None:
        """Returns new priorities of a batch's items.

        They travel with the request that `next` makes; if it is not called they go alone, within
        a second.

        Args:
          batch: Any earlier one.
          priorities: [B], finite, 0 or more.

        Raises:
          ValueError: A priority outside its limits; none is sent.
        """
        values = np.array(priorities, np.float64)
        if values.shape != batch.keys.shape or not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(
                f"priorities are {values}, allowed: {batch.keys.shape}, finite, 0 or more"
            )
        # Not handed over to the loop: waking its thread would cost more than all the rest.
        self._returned.append((batch.keys, batch.shards, values))

    def reconnects(self) -> int:
        """Streams that were lost so far."""
        return sum(shard.reconnects for shard in self._shards)

    def server_cpu_seconds(self) -> float:
        """CPU seconds that the shards have used while this sampler looked."""
        return sum(shard.server_cpu_seconds for shard in self._shards)

    async def close(self) -> None:
        """Ends the streams."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _next(self) -> Batch:
        self._send_returned()
        if self._held is not None:
            self._free.append(self._held)
            self._held = None
            self._assign_buffers()
            self._ask()
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(self._is_first_ready)
        if not self._tickets or self._tickets[0].missing:
            raise ReplayError("; ".join(s.error for s in self._shards if s.error))
        ticket = self._tickets.pop(0)
        assert ticket.buffer is not None, "its rows were decoded into it"
        self._held = ticket.buffer
        self._ask()
        return Batch(
            ticket.keys,
            ticket.shards,
            ticket.probabilities,
            importance_weights(ticket.probabilities, self._exponent),
            ticket.priorities,
            ticket.times_sampled,
            ticket.lengths,
            ticket.buffer.steps,
            ticket.buffer.context,
        )

    def _is_first_ready(self) -> bool:
        if any(shard.error for shard in self._shards):
            return True
        return bool(self._tickets) and not self._tickets[0].missing

    def _send_returned(self) -> None:
        while self._returned:
            keys, shards, priorities = self._returned.popleft()
            for index, shard in enumerate(self._shards):
                mine = shards == index
                if mine.any():
                    shard.update(keys[mine], priorities[mine])

    def _ask(self) -> None:
        """Keeps `depth` batches on their way."""
        for part in [self._unplaced.pop(0) for _ in range(len(self._unplaced))]:
            self._place(part.batch, part.first_row, part.count)
        if not all(shard.is_tried for shard in self._shards):
            return
        while (
            len(self._tickets) < self._depth and not self._unplaced and self._shares() is not None
        ):
            ticket = _Ticket(self._batch_size)
            self._tickets.append(ticket)
            self._assign_buffers()
            if self.missing_shards:
                self.incomplete_batches += 1
            self._place(ticket, 0, self._batch_size)

    def _place(self, ticket: _Ticket, first_row: int, count: int) -> None:
        """Divides rows among the shards by their total priorities."""
        shares = self._shares()
        if shares is None:
            self._unplaced.append(Part(ticket, first_row, count))
            return
        counts = self._random.multinomial(count, shares)
        for index, number in enumerate(counts.tolist()):
            if number:
                rows = slice(first_row, first_row + number)
                ticket.shards[rows] = index
                ticket.shares[rows] = shares[index]
                self._shards[index].request(Part(ticket, first_row, number))
                first_row += number

    def _shares(self) -> npt.NDArray[np.float64] | None:
        able = np.array([shard.can_sample for shard in self._shards])
        self.missing_shards = int(np.count_nonzero(~able))
        totals = np.array([shard.total_priority for shard in self._shards]) * able
        if totals.sum() <= 0:
            # All priorities are 0: every item has the same probability.
            totals = np.array([float(shard.items) for shard in self._shards]) * able
        total = totals.sum()
        return None if total <= 0 else totals / total

    def _taker(self, index: int) -> Callable[..., Any]:
        async def take(
            part: Part,
            assembly: Assembly | None,
            head: replay_pb2.StreamSamplesResponse,
            payload: memoryview,
        ) -> Assembly:
            return await self._take(part, assembly, head, payload)

        return take

    async def _take(
        self,
        part: Part,
        assembly: Assembly | None,
        head: replay_pb2.StreamSamplesResponse,
        payload: memoryview,
    ) -> Assembly:
        ticket: _Ticket = part.batch
        if ticket.buffer is None:
            async with self._changed:
                await self._changed.wait_for(lambda: ticket.buffer is not None)
        assert ticket.buffer is not None, "waited for it"
        buffer, first = ticket.buffer, part.first_row
        if assembly is None:
            assembly = Assembly(head.header)
        assembly.take(head.first_block, payload, buffer, first)
        if head.last:
            assembly.check_complete()
            rows = slice(first, first + part.count)
            ticket.keys[rows] = assembly.keys
            ticket.probabilities[rows] = assembly.probabilities * ticket.shares[rows]
            ticket.priorities[rows] = assembly.priorities
            ticket.times_sampled[rows] = assembly.times_sampled
            ticket.lengths[rows] = assembly.lengths
            ticket.missing -= part.count
            if not ticket.missing:
                async with self._changed:
                    self._changed.notify_all()
        return assembly

    def _assign_buffers(self) -> None:
        """In the order of the batches, so that the one waited for never lacks its buffer."""
        for ticket in self._tickets:
            if ticket.buffer is None and self._free:
                ticket.buffer = self._free.pop(0)

    def _lost(self, parts: list[Part]) -> None:
        """Parts of a lost shard go to the others; also called when a shard is there."""
        self._unplaced.extend(parts)
        self._ask()

    async def _look_after(self) -> None:
        """Keeps the totals of shards that are not being sampled up to date."""
        while True:
            able = [shard.can_sample for shard in self._shards]
            shards = self._shards if not all(able) or len(able) > 1 else []
            await asyncio.gather(*(s.refresh() for s in shards if s.is_up))
            self._send_returned()
            self._ask()
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(_STATUS_SECONDS if all(able) else _STATUS_SECONDS / 10)

    def _describe(self) -> str:
        texts = []
        for s in self._shards:
            state = f"{s.items} items, min_size_to_sample {s.min_size}" if s.is_up else s.problem
            texts.append(f"{s.address}: {state}")
        return "; ".join(texts)
