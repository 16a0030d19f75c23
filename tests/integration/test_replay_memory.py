"""Many writers and one slow reader: the process stays within its bytes and a fifth more."""

from __future__ import annotations

import asyncio
import pathlib
import re
from typing import Any

import numpy as np

from services.shared import rpc
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay.connection import SERVICE
from tests.integration.replay_clients import LAYOUT, insert_request
from tests.integration.replay_server import ReplayServer

MEBIBYTE = 1 << 20
CAPACITY = 512 * MEBIBYTE
WRITERS = 64
BLOCK = 70_000
# Half more than the table holds.
MESSAGES = 3 * CAPACITY // 2 // (WRITERS * 2 * BLOCK)


def memory(server: ReplayServer, name: str) -> int:
    assert server.process is not None
    text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    match = re.search(rf"{name}:\s+(\d+) kB", text)
    assert match is not None
    return int(match[1]) * 1024


async def write(address: str, writer: int) -> None:
    """Keeps two messages on their way, as the window allows."""
    async with rpc.aio_channel(address) as channel:
        call = channel.stream_stream(SERVICE + "Insert")()
        opening = replay_pb2.InsertOpen(table="sequences", layout=LAYOUT, writer_id=writer + 1)
        await call.write(replay_pb2.InsertRequest(open=opening).SerializeToString())
        await call.read()
        block = np.random.default_rng(writer).bytes(BLOCK)
        acknowledged = 0
        for sequence in range(1, MESSAGES + 1):
            request = insert_request(sequence, [1.0, 1.0], sequence * 2, block)
            await call.write(request.SerializeToString())
            while acknowledged < sequence - 1:
                data: Any = await call.read()
                acknowledged = replay_pb2.InsertResponse.FromString(data).sequence
        await call.done_writing()
        while acknowledged < MESSAGES:
            acknowledged = replay_pb2.InsertResponse.FromString(await call.read()).sequence


async def read_slowly(address: str) -> None:
    async with rpc.aio_channel(address) as channel:
        call = channel.stream_stream(SERVICE + "StreamSamples")()
        opening = replay_pb2.StreamSamplesOpen(table="sequences", layout=LAYOUT)
        request = replay_pb2.StreamSamplesRequest(open=opening, credit=1000, batch_size=64)
        await call.write(request.SerializeToString())
        while True:
            await call.read()
            await asyncio.sleep(0.3)


async def load(address: str) -> None:
    reader = asyncio.ensure_future(read_slowly(address))
    await asyncio.gather(*(write(address, writer) for writer in range(WRITERS)))
    reader.cancel()


def test_64_writers_and_a_slow_reader_stay_within_the_bytes(tmp_path: pathlib.Path) -> None:
    table = {"max_bytes": CAPACITY, "max_items": 10_000}
    server = ReplayServer(tmp_path, table, insert_window_bytes=256 * 1024).start()
    try:
        before = memory(server, "VmRSS")
        asyncio.run(asyncio.wait_for(load(server.address), 60))
        status = server.status()
        assert status.inserted_items == WRITERS * MESSAGES * 2
        assert 0.9 * CAPACITY < status.bytes <= CAPACITY
        used = memory(server, "VmHWM") - before
        print(f"{used / MEBIBYTE:.1f} MiB for {CAPACITY / MEBIBYTE:.0f} MiB")
        assert used < 1.2 * CAPACITY
    finally:
        server.close()
