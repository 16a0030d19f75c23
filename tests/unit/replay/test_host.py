"""Waiting for the rate limiter: order, cancellation, and streams that end meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from services.replay.host import TableHost
from services.replay.recovery import Layout, Recovered
from services.shared.config import PersistenceConfig, TableConfig
from tests.integration.replay_clients import insert_request

LAYOUT = Layout("bytes", 1)


def make_host(**table: Any) -> TableHost:
    config = TableConfig.model_validate(table)
    host = TableHost("t", config, PersistenceConfig(), 0, 1 << 20)
    host.recovered(Recovered())
    return host


def message(sequence: int, count: int, is_released: bool = True) -> bytes:
    request = insert_request(sequence, np.ones(count), sequence * 1000)
    if not is_released:
        request.released_block_ids = b""
    return bytes(request.SerializeToString())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_message_is_completed_after_its_stream_ended() -> None:
    async def main() -> None:
        host = make_host(samples_per_insert=1.0, error_buffer=4.0, min_size_to_sample=1)
        writer = await host.open_writer(1, LAYOUT)
        inserting = asyncio.ensure_future(
            host.insert(writer, writer.epoch, message(1, 8, is_released=False))
        )
        await settle()
        assert (host.table.items, host.writers.waiting) == (5, 1)
        host.close_writer(writer, writer.epoch)
        assert host.table.blocks.rows == 8
        host.table.unpin(await host.choose(4))
        assert await inserting == 1
        assert (host.table.items, host.writers.waiting) == (8, 0)
        host.table.remove(host.table.state()["keys"].astype(np.uint64))
        assert host.table.blocks.bytes == 0  # nobody holds them any more
        # The client, which does not know, sends it again over a new stream.
        writer = await host.open_writer(1, LAYOUT)
        assert await host.insert(writer, writer.epoch, message(1, 8)) == 1
        assert host.table.limiter.inserted == 8

    asyncio.run(main())


def test_a_cancelled_batch_is_neither_counted_nor_kept() -> None:
    async def main() -> None:
        host = make_host(samples_per_insert=1.0, error_buffer=4.0, min_size_to_sample=1)
        writer = await host.open_writer(1, LAYOUT)
        await host.insert(writer, writer.epoch, message(1, 3))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await host.choose(100)
        assert (host.table.limiter.sampled, host.readers.waiting) == (0, 0)
        chosen = await host.choose(6)
        assert host.table.limiter.sampled == 6
        host.table.unpin(chosen)

    asyncio.run(main())


def test_readers_are_served_in_turn() -> None:
    async def main() -> None:
        host = make_host(samples_per_insert=1.0, error_buffer=8.0, min_size_to_sample=1)
        writer = await host.open_writer(1, LAYOUT)
        done: list[int] = []

        async def read(number: int) -> None:
            host.table.unpin(await host.choose(5))
            done.append(number)

        readers = [asyncio.ensure_future(read(number)) for number in range(4)]
        for sequence in range(1, 30):
            await host.insert(writer, writer.epoch, message(sequence, 1))
            await settle()
            if all(reader.done() for reader in readers):
                break
        assert done == [0, 1, 2, 3]
        assert host.readers.count > 0

    asyncio.run(main())
