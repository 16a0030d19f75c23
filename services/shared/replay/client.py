"""The client's front door: one connection to each shard, writers for slots, samplers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

from services.shared import rpc
from services.shared.config import TlsConfig
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay.connection import SERVICE, LoopThread, to_proto
from services.shared.replay.inserting import ShardInserter
from services.shared.replay.layout import SequenceLayout
from services.shared.replay.sampler import Sampler
from services.shared.replay.writer import SlotWriter

_MEBIBYTE = 1 << 20


class ReplayClient:
    """Inserts into one table and samples from it, over any number of shards.

    Usable by several threads; each `SlotWriter` and `Sampler` by one at a time. The connections
    are made in the background, and made again when they are lost.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        layout: SequenceLayout,
        table: str = "sequences",
        message_bytes: int = _MEBIBYTE,
        max_pending_bytes: int = 64 * _MEBIBYTE,
        max_waiting_items: int | None = None,
        keepalive_seconds: float = 5.0,
        tls: TlsConfig | None = None,
    ) -> None:
        """Prepares the client.

        Args:
          addresses: host:port of each shard, in the same order for every client.
          layout: Of the sequences; the service refuses another one than the table has.
          table: The table's name.
          message_bytes: Where a message of inserts is cut.
          max_pending_bytes: What may wait for each shard, acknowledgement included, before
            writers wait; what a lost service can cost.
          max_waiting_items: The same in items, of a shard that is there; None: any number.
          keepalive_seconds: A silent service is given up after twice this time.
          tls: This client's certificate; None: no encryption.
        """
        if not addresses:
            raise ValueError("addresses is empty, allowed: one or more")
        self.layout = layout
        self._table = table
        self._addresses = list(addresses)
        self._thread = LoopThread.shared()
        self._ids = itertools.count(1)
        self._samplers: list[Sampler] = []
        self._inserters: list[ShardInserter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._settings = message_bytes, max_pending_bytes, max_waiting_items
        self._thread.call(self._connect(keepalive_seconds, tls))

    def __enter__(self) -> ReplayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def writer(self, slot: int, max_length: int, block_length: int = 40) -> SlotWriter:
        """A writer for a slot's steps.

        Args:
          slot: Its shard is slot modulo the number of shards, while that has room.
          max_length: Steps of the longest item.
          block_length: Steps after which a block is cut; items that begin and end at multiples
            of it share all their bytes.
        """
        inserters = self._started_inserters()
        home = slot % len(inserters)
        return SlotWriter(self.layout, inserters, home, self._ids, max_length, block_length)

    def sampler(
        self,
        batch_size: int,
        sequence_length: int,
        importance_exponent: float = 0.6,
        depth: int = 2,
        seed: int | None = None,
    ) -> Sampler:
        """A sampler that reads batches ahead of need into two sets of arrays.

        Args:
          batch_size: B.
          sequence_length: T, at least the longest item's length.
          importance_exponent: Beta. R2D2 (Kapturowski 2019), section 2.3: 0.6.
          depth: Batches on their way at once; each was chosen before the priorities of the
            `depth` batches before it came back.
          seed: Of the division among shards.
        """

        async def make() -> Sampler:
            return Sampler(
                self._thread, self._channels, self._table, self.layout, batch_size,
                sequence_length, importance_exponent, depth, seed,
            )  # fmt: skip

        sampler = self._thread.call(make())
        self._samplers.append(sampler)
        return sampler

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every item is acknowledged by its shard.

        Raises:
          ReplayError: The service refuses this client.
          ReplayTimeout: It took longer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for inserter in self._inserters:
            inserter.flush(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def status(self, timeout: float = 10.0) -> list[replay_pb2.GetStatusResponse]:
        """What each shard says about itself.

        Raises:
          grpc.aio.AioRpcError: A shard is away.
        """
        answers = self._thread.call(self._call_all("GetStatus", b"", timeout))
        return [replay_pb2.GetStatusResponse.FromString(data) for data in answers]

    def checkpoint(self, timeout: float = 60.0) -> int:
        """Makes all shards save log and priorities; returns the number of items.

        Raises:
          grpc.aio.AioRpcError: A shard is away, or cannot.
        """
        answers = self._thread.call(self._call_all("Checkpoint", b"", timeout))
        return sum(replay_pb2.CheckpointResponse.FromString(data).items for data in answers)

    @property
    def shards_away(self) -> int:
        """Shards that cannot be written to at this moment, 0 before the first writer.

        Any thread may ask; nothing waits.
        """
        return sum(not inserter.is_usable for inserter in self._inserters)

    @property
    def is_away(self) -> bool:
        """Whether no shard at all can be written to at this moment.

        Says whether a `create_item` that timed out found the service away, or waits for the rate
        limiter. Any thread may ask; nothing waits. False before the first writer.
        """
        return 0 < len(self._inserters) == self.shards_away

    @property
    def acknowledged_items(self) -> int:
        """Items that the shards have; any thread may ask."""
        return sum(inserter.acknowledged_items for inserter in self._inserters)

    def server_cpu_seconds(self) -> float:
        """CPU seconds that the shards have used since there is a sampler; any thread may ask."""
        return max((sampler.server_cpu_seconds() for sampler in self._samplers), default=0.0)

    def statistics(self) -> dict[str, int]:
        """Counts of this client, for metrics."""
        return {
            "waiting_bytes": sum(i.waiting_bytes for i in self._inserters),
            "insert_reconnects": sum(i.reconnects for i in self._inserters),
            "sample_reconnects": sum(s.reconnects() for s in self._samplers),
            "sample_shards_missing": max((s.missing_shards for s in self._samplers), default=0),
            "incomplete_batches": sum(s.incomplete_batches for s in self._samplers),
        }

    def close(self) -> None:
        """Ends all streams; what is not acknowledged may be lost, see `flush`."""
        self._thread.call(self._disconnect())

    async def _connect(self, keepalive_seconds: float, tls: TlsConfig | None) -> None:
        self._channels = [
            (address, rpc.aio_channel(address, keepalive_seconds, tls))
            for address in self._addresses
        ]

    def _started_inserters(self) -> list[ShardInserter]:
        """Readers alone open no Insert stream, which would declare the table's layout."""
        if not self._inserters:
            self._thread.call(self._start_inserters())
        return self._inserters

    async def _start_inserters(self) -> None:
        if self._inserters:
            return
        opening = replay_pb2.InsertOpen(table=self._table, layout=to_proto(self.layout))
        self._inserters = [
            ShardInserter(channel, address, opening, *self._settings)
            for address, channel in self._channels
        ]
        self._tasks = [asyncio.ensure_future(inserter.run()) for inserter in self._inserters]

    async def _call_all(self, method: str, request: bytes, timeout: float) -> list[Any]:
        calls = [
            channel.unary_unary(SERVICE + method)(request, timeout=timeout)
            for _, channel in self._channels
        ]
        return [await call for call in calls]

    async def _disconnect(self) -> None:
        for sampler in self._samplers:
            await sampler.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, channel in self._channels:
            await channel.close()
