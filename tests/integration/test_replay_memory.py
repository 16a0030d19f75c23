"""Many writers and one slow reader: the process stays within its bytes and a fifth more."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pathlib
import re
import signal
import time

import numpy as np

from services.shared import rpc
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay.connection import SERVICE
from tests.integration.replay_clients import LAYOUT, insert_request
from tests.integration.replay_server import ReplayServer

MEBIBYTE = 1 << 20
CAPACITY = 256 * MEBIBYTE
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


async def write(address: str, writer: int, messages: int) -> None:
    """Keeps as much on its way as the window allows."""
    async with rpc.aio_channel(address) as channel:
        call = channel.stream_stream(SERVICE + "Insert")()
        opening = replay_pb2.InsertOpen(table="sequences", layout=LAYOUT, writer_id=writer + 1)
        await call.write(replay_pb2.InsertRequest(open=opening).SerializeToString())
        answer = replay_pb2.InsertResponse.FromString(await call.read())
        block = np.random.default_rng(writer).bytes(BLOCK)
        for sequence in range(1, messages + 1):
            request = insert_request(sequence, [1.0, 1.0], sequence * 2, block).SerializeToString()
            while (sequence - answer.sequence) * len(request) > answer.window_bytes:
                if answer.sequence == sequence - 1:
                    break  # one message may be larger
                answer = replay_pb2.InsertResponse.FromString(await call.read())
            await call.write(request)
        await call.done_writing()
        while answer.sequence < messages:
            answer = replay_pb2.InsertResponse.FromString(await call.read())


async def read_slowly(address: str) -> None:
    async with rpc.aio_channel(address) as channel:
        call = channel.stream_stream(SERVICE + "StreamSamples")()
        opening = replay_pb2.StreamSamplesOpen(table="sequences", layout=LAYOUT)
        request = replay_pb2.StreamSamplesRequest(open=opening, credit=1000, batch_size=64)
        await call.write(request.SerializeToString())
        while True:
            await call.read()
            await asyncio.sleep(0.3)


async def load(address: str, writers: range, messages: int) -> None:
    reader = asyncio.ensure_future(read_slowly(address))
    await asyncio.gather(*(write(address, writer, messages) for writer in writers))
    reader.cancel()


def run_load(address: str, writers: range, messages: int) -> None:
    """For another process."""
    asyncio.run(load(address, writers, messages))


def check(server: ReplayServer, before: int) -> None:
    status = server.status()
    assert 0.8 * CAPACITY < status.bytes <= CAPACITY
    used = memory(server, "VmHWM") - before
    print(f"{used / MEBIBYTE:.1f} MiB for {CAPACITY / MEBIBYTE:.0f} MiB")
    assert used < 1.2 * CAPACITY


def test_64_writers_and_a_slow_reader_stay_within_the_bytes(tmp_path: pathlib.Path) -> None:
    server = ReplayServer(tmp_path, {"max_bytes": CAPACITY, "max_items": 10_000}).start()
    try:
        before = memory(server, "VmRSS")
        asyncio.run(asyncio.wait_for(load(server.address, range(WRITERS), MESSAGES), 60))
        assert server.status().inserted_items == WRITERS * MESSAGES * 2
        check(server, before)
    finally:
        server.close()


def test_stopped_clients_cost_no_more_and_hold_nobody_up(tmp_path: pathlib.Path) -> None:
    """Some writers and their reader are stopped while the others go on."""
    table = {"max_bytes": CAPACITY, "max_items": 10_000}
    server = ReplayServer(tmp_path, table, keepalive_seconds=30.0).start()
    stopped = WRITERS // 4
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(
        target=run_load, args=(server.address, range(stopped), 1_000_000), daemon=True
    )
    try:
        before = memory(server, "VmRSS")
        process.start()
        deadline = time.monotonic() + 30
        while server.status().sampled_items < 1000:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        others = load(server.address, range(stopped, WRITERS), MESSAGES)
        asyncio.run(asyncio.wait_for(others, 60))
        check(server, before)
    finally:
        process.kill()
        process.join()
        server.close()
