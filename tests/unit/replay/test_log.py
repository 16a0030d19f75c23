"""The log: what was written comes back, damage costs only what it hit, old segments go."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import pytest

from services.replay import recovery, segment_log
from services.replay.host import TableHost
from services.replay.recovery import Layout, Progress
from services.shared.config import PersistenceConfig, TableConfig
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.status import StatusError
from tests.integration.replay_clients import insert_request

LAYOUT = Layout("bytes", 1)


def run(
    folder: pathlib.Path,
    body: Callable[[TableHost], Awaitable[Any]],
    segment_bytes: int = 4096,
    **table: Any,
) -> tuple[Progress, Any]:
    """Recovers a table, does something with it and ends as a kill would: without a snapshot."""

    async def main() -> tuple[Progress, Any]:
        config = TableConfig.model_validate(table)
        persistence = PersistenceConfig(directory=str(folder), segment_bytes=segment_bytes)
        host = TableHost("t", config, persistence, 0, 1 << 20)
        progress = Progress()
        directory = folder / "t"
        directory.mkdir(exist_ok=True)
        host.recovered(recovery.recover(host.table, directory, progress))
        result = await body(host)
        await host.written(host.log_failures)
        host.close()
        return progress, result

    return asyncio.run(main())


async def insert(host: TableHost, priorities: Any, block: bytes = b"12345678") -> None:
    writer = await host.open_writer(1, LAYOUT)
    sequence = writer.received + 1
    request = insert_request(sequence, priorities, sequence * 1000, block)
    await host.insert(writer, writer.epoch, request.SerializeToString())
    await host.written(host.log_failures)
    writer.acknowledged = sequence
    host.close_writer(writer, writer.epoch)


def contents(host: TableHost) -> list[tuple[int, float]]:
    state = host.table.state()
    generations = (state["keys"].astype(np.uint64) >> np.uint64(24)).tolist()
    return sorted(zip(generations, state["priorities"].tolist(), strict=True))


async def look(host: TableHost) -> list[tuple[int, float]]:
    return contents(host)


def test_what_was_written_comes_back(tmp_path: pathlib.Path) -> None:
    async def fill(host: TableHost) -> list[tuple[int, float]]:
        for n in range(40):
            await insert(host, [n, n + 0.5])
        return contents(host)

    _, before = run(tmp_path, fill, max_items=50)
    assert len(before) == 50

    async def check(host: TableHost) -> None:
        assert contents(host) == before
        assert host.layout == LAYOUT
        writer = await host.open_writer(1, LAYOUT)
        assert writer.received == 40
        views = host.table.blocks.views(host.table.choose(3).rows)
        assert [bytes(view) for view in views] == [b"12345678"] * 3
        with pytest.raises(StatusError, match="version 2 'other'"):
            await host.open_writer(2, Layout("other", 2))
        await insert(host, [1.0])
        newest = contents(host)[-1][0]
        assert newest > before[-1][0] + 1000  # no generation is given out twice

    run(tmp_path, check, max_items=50)


def test_priorities_and_counts_come_from_the_snapshot(tmp_path: pathlib.Path) -> None:
    async def fill(host: TableHost) -> list[tuple[int, float]]:
        await insert(host, np.ones(10))
        keys = host.table.state()["keys"].astype(np.uint64)
        host.table.update(keys, np.arange(10.0))
        host.table.choose(33)
        assert await host.checkpoint() == 10
        await insert(host, [77.0])
        return contents(host)

    _, before = run(tmp_path, fill)

    async def check(host: TableHost) -> None:
        assert contents(host) == before
        assert (host.table.limiter.inserted, host.table.limiter.sampled) == (11, 33)
        assert int(host.table.state()["times_sampled"].astype(int).sum()) == 33
        await insert(host, [78.0])

    run(tmp_path, check)

    async def check_again(host: TableHost) -> None:
        # Killed twice between two snapshots: the limiter must not count the generations that
        # recovery has left out.
        assert (host.table.limiter.inserted, host.table.limiter.sampled) == (12, 33)

    run(tmp_path, check_again)


def test_used_up_items_do_not_come_back(tmp_path: pathlib.Path) -> None:
    async def fill(host: TableHost) -> list[tuple[int, float]]:
        for _ in range(20):
            await insert(host, np.ones(10))
            host.table.unpin(host.table.choose(9))
        return contents(host)

    _, before = run(tmp_path, fill, max_items=30, max_times_sampled=1)
    assert len(before) == 20
    assert run(tmp_path, look, max_items=30, max_times_sampled=1)[1] == before


def test_old_segments_are_deleted(tmp_path: pathlib.Path) -> None:
    async def fill(host: TableHost) -> list[tuple[int, float]]:
        for n in range(200):
            await insert(host, [n], block=b"x" * 500)
        return contents(host)

    _, before = run(tmp_path, fill, max_items=20)
    paths = segment_log.segment_paths(tmp_path / "t")
    assert len(paths) <= 5
    assert paths[0][0] > 20
    assert run(tmp_path, look, max_items=20)[1] == before


@pytest.mark.parametrize("damage", ["truncate", "flip", "header", "magic"])
def test_damage_is_reported_by_name_and_the_rest_is_kept(
    tmp_path: pathlib.Path, damage: str
) -> None:
    async def fill(host: TableHost) -> list[tuple[int, float]]:
        for n in range(60):
            await insert(host, [n], block=b"x" * 300)
        return contents(host)

    _, before = run(tmp_path, fill)
    number, path = segment_log.segment_paths(tmp_path / "t")[2]
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        del data[len(data) // 2 :]
    elif damage == "magic":
        data[0] ^= 1
    else:
        at = len(data) // 2
        if damage == "header":
            at = data.index(b"x" * 300, at) - 200
        data[at] ^= 1
    path.write_bytes(data)
    progress, after = run(tmp_path, look)
    assert len(progress.damaged) == 1
    assert path.name in progress.damaged[0]
    assert set(after) < set(before)
    lost = {generation for generation, _ in before} - {generation for generation, _ in after}
    assert lost == set(range(min(lost), max(lost) + 1))
    assert 3 <= len(lost) <= 9
    assert number == 3
    assert progress.read_bytes > 0


def test_items_whose_blocks_are_lost_are_left_out_and_counted(tmp_path: pathlib.Path) -> None:
    async def fill(host: TableHost) -> None:
        writer = await host.open_writer(1, LAYOUT)
        for n in range(1, 30):
            request = insert_request(n, [n], n, b"y" * 400)
            previous = [n] if n == 1 else [n - 1, n]
            request.item_block_ids = np.array(previous, np.uint64).tobytes()
            request.item_block_counts = np.array([len(previous)], np.uint32).tobytes()
            request.released_block_ids = np.array([n - 1], np.uint64).tobytes()
            await host.insert(writer, writer.epoch, request.SerializeToString())

    run(tmp_path, fill)
    segment_log.segment_paths(tmp_path / "t")[1][1].unlink()

    async def check(host: TableHost) -> None:
        assert host.lost_items == 1
        generations = [generation for generation, _ in contents(host)]
        gaps = np.flatnonzero(np.diff(generations) > 1)
        assert len(gaps) == 1

    run(tmp_path, check)


def test_blocks_sent_again_on_a_new_stream_are_recovered(tmp_path: pathlib.Path) -> None:
    async def fill(host: TableHost) -> None:
        await insert(host, [1.0])
        writer = await host.open_writer(1, LAYOUT)
        blocks = replay_pb2.InsertRequest(
            block_ids=np.array([7], np.uint64).tobytes(),
            block_bytes=np.array([3], np.uint32).tobytes(),
            payload=b"abc",
        )
        assert await host.insert(writer, writer.epoch, blocks.SerializeToString()) == 0
        item = insert_request(2, [2.0], 8)
        item.item_block_ids = np.array([7], np.uint64).tobytes()
        await host.insert(writer, writer.epoch, item.SerializeToString())

    run(tmp_path, fill)

    async def check(host: TableHost) -> None:
        assert [priority for _, priority in contents(host)] == [1.0, 2.0]
        assert host.lost_items == 0

    run(tmp_path, check)


def test_a_full_volume_is_an_error_and_nothing_is_acknowledged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(host: TableHost) -> None:
        await insert(host, [1.0])
        original = os.writev

        def full(fd: int, parts: Any) -> int:
            original(fd, [parts[0]])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "writev", full)
        with pytest.raises(StatusError, match="No space left") as error:
            await insert(host, [2.0])
        assert error.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Its writer tries again; that must not fill the table with copies.
        items, used = host.table.items, host.table.blocks.bytes
        for _ in range(3):
            with pytest.raises(StatusError, match="No space left"):
                await insert(host, [2.0])
        assert (host.table.items, host.table.blocks.bytes) == (items, used)
        monkeypatch.setattr(os, "writev", original)
        await insert(host, [2.0])

    run(tmp_path, body)
    progress, after = run(tmp_path, look)
    assert [priority for _, priority in after] == [1.0, 2.0]
    assert not progress.damaged
