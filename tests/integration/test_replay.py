"""The replay service as a process, with raw calls and with its client."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.shared import rpc
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import (
    Field,
    ReplayClient,
    ReplayError,
    ReplayTimeout,
    SequenceLayout,
    SlotWriter,
)
from tests.integration.replay_clients import (
    LAYOUT,
    SMALL,
    TIMEOUT,
    InsertCall,
    check_batch,
    insert_request,
    sample_request,
    step,
)
from tests.integration.replay_server import ReplayServer

Code = grpc.StatusCode
Make = Callable[..., ReplayServer]


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Iterator[Make]:
    servers: list[ReplayServer] = []

    def start(settings: dict[str, Any] | None = None, **table: Any) -> ReplayServer:
        folder = tmp_path / str(len(servers))
        servers.append(ReplayServer(folder, table, **(settings or {})))
        return servers[-1].start()

    yield start
    for server in servers:
        server.close()


def fails(code: grpc.StatusCode, call: Callable[[], Any]) -> str:
    with pytest.raises(grpc.RpcError) as error:
        call()
    assert error.value.code() is code, error.value.details()
    return str(error.value.details())


def test_insert_sample_update_and_status(make: Make) -> None:
    server = make(max_items=4, samples_per_insert=8.0, error_buffer=64.0)
    stub = server.stub()
    stream = InsertCall(server)
    first = stream.receive()
    assert (first.sequence, first.window_bytes, first.max_item_bytes) == (0, 4 << 20, 7 << 29)
    assert stream.insert(1, [1, 2, 3, 4], block=b"abcdefgh") == 1
    response = stub.Sample(sample_request(64), timeout=TIMEOUT)
    header = response.header
    priorities = np.frombuffer(header.priorities)
    probabilities = np.frombuffer(header.probabilities)
    weights = np.frombuffer(header.weights)
    expected_p = np.array([0.11067, 0.20651, 0.29746, 0.38536])
    expected_w = np.array([1, 0.68777, 0.55253, 0.47303])
    index = priorities.astype(int) - 1
    assert set(index.tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(probabilities, expected_p[index], atol=5e-6)
    np.testing.assert_allclose(weights, expected_w[index], atol=5e-6)
    assert response.payload == b"abcdefgh" * 4  # shared blocks travel once
    keys = np.frombuffer(header.keys, np.uint64)
    by_priority = dict(zip(priorities.tolist(), keys.tolist(), strict=True))
    stream.insert(2, [9.0])
    request = replay_pb2.UpdatePrioritiesRequest(
        table="sequences",
        keys=np.array([by_priority[p] for p in (1.0, 2.0, 2.0)], np.uint64).tobytes(),
        priorities=np.array([50.0, 60, 0]).tobytes(),
    )
    assert stub.UpdatePriorities(request, timeout=TIMEOUT).stale == 1
    status = server.status()
    assert status.total_priority == pytest.approx(3**0.9 + 4**0.9 + 9**0.9)
    assert (status.items, status.inserted_items, status.sampled_items) == (4, 5, 64)
    assert (status.evicted_items, status.stale_updates) == (1, 1)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_a_wrong_priority_is_refused_and_the_table_unchanged(make: Make, wrong: float) -> None:
    server = make()
    stream = InsertCall(server)
    stream.receive()
    stream.insert(1, [1, 2])
    before = server.status()
    keys = np.frombuffer(
        server.stub().Sample(sample_request(1), timeout=TIMEOUT).header.keys, np.uint64
    )
    values = np.array([5.0, wrong])
    request = replay_pb2.UpdatePrioritiesRequest(
        table="sequences", keys=np.repeat(keys, 2).tobytes(), priorities=values.tobytes()
    )
    text = fails(Code.INVALID_ARGUMENT, lambda: server.stub().UpdatePriorities(request, timeout=9))
    assert "priority 1 is" in text
    stream.send(insert_request(2, [1, wrong], first_block=50))
    fails(Code.INVALID_ARGUMENT, stream.receive)
    after = server.status()
    assert (after.items, after.total_priority) == (before.items, before.total_priority)


def test_another_layout_is_refused_with_both_named(make: Make) -> None:
    server = make()
    InsertCall(server).receive()
    other = replay_pb2.Layout(description="nine bytes", version=2)
    for call in (
        InsertCall(server, 2, other).receive,
        lambda: server.stub().Sample(sample_request(1, other), timeout=TIMEOUT),
    ):
        text = fails(Code.FAILED_PRECONDITION, call)
        assert "version 1 'eight bytes'" in text
        assert "version 2 'nine bytes'" in text
    with ReplayClient([server.address], SMALL) as client:
        with pytest.raises(ReplayError, match="eight bytes"):
            client.sampler(4, 8).next(TIMEOUT)
        writer = client.writer(0, 8)
        writer.append(step(0, 0))
        writer.create_item(1, 1.0, {"state": [0, 0]}, timeout=TIMEOUT)
        with pytest.raises(ReplayError, match="eight bytes"):
            client.flush(TIMEOUT)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"block_bytes": b"\0\0\0"}, "block_bytes has 3 bytes"),
        ({"payload": b"12345678"}, "block_bytes sum to 16, payload has 8"),
        ({"item_priorities": b""}, "0 item_priorities"),
        ({"item_block_ids": np.array([7, 8], np.uint64).tobytes()}, "refer to block 7"),
        ({"block_ids": np.array([1, 1], np.uint64).tobytes()}, "an id twice"),
        ({"item_block_counts": np.array([2, 0], np.uint32).tobytes()}, "item 1 has no blocks"),
        ({"sequence": 5}, "message 5 came after message 1, expected 2"),
    ],
)
def test_malformed_messages_are_refused(make: Make, fields: dict[str, Any], text: str) -> None:
    server = make()
    stream = InsertCall(server)
    stream.receive()
    stream.insert(1, [1.0])
    stream.send(insert_request(**{"sequence": 2, "priorities": [1, 2], **fields}))
    assert text in fails(Code.INVALID_ARGUMENT, stream.receive)
    assert server.status().items == 1


def test_unknown_tables_and_batch_sizes_are_refused(make: Make) -> None:
    server = make()
    request = sample_request(0)
    text = fails(Code.INVALID_ARGUMENT, lambda: server.stub().Sample(request, timeout=TIMEOUT))
    assert "batch_size is 0, allowed: 1 to 4096" in text
    request.table = "other"
    text = fails(Code.NOT_FOUND, lambda: server.stub().Sample(request, timeout=TIMEOUT))
    assert "there are ['sequences']" in text
    text = fails(
        Code.FAILED_PRECONDITION,
        lambda: server.stub().Checkpoint(replay_pb2.CheckpointRequest(), timeout=TIMEOUT),
    )
    assert "persistence.directory" in text


def test_sampling_an_empty_table_waits_with_a_deadline(make: Make) -> None:
    server = make(min_size_to_sample=2)
    started = time.monotonic()
    text = fails(
        Code.DEADLINE_EXCEEDED, lambda: server.stub().Sample(sample_request(3), timeout=1.0)
    )
    assert 0.7 < time.monotonic() - started < 2.0
    assert "0 items, min_size_to_sample 2" in text
    with ReplayClient([server.address], SMALL) as client:
        sampler = client.sampler(4, 8)
        with pytest.raises(ReplayTimeout, match="0 items, min_size_to_sample 2"):
            sampler.next(0.5)
        future = server.stub().Sample.future(sample_request(3), timeout=TIMEOUT)
        time.sleep(0.2)
        assert server.status().waiting_readers == 1
        stream = InsertCall(server)
        stream.receive()
        stream.insert(1, [1, 1])
        assert len(future.result().header.keys) == 24


def test_the_limiter_counts_at_choice_and_holds_both_sides(make: Make) -> None:
    server = make(samples_per_insert=2.0, error_buffer=10.0, min_size_to_sample=5)
    stream = InsertCall(server)
    stream.receive()
    stream.send(insert_request(1, np.ones(30)))
    deadline = time.monotonic() + TIMEOUT
    while server.status().waiting_writers != 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    status = server.status()
    # 2 * inserted - sampled <= 2 * 5 + 10
    assert (status.inserted_items, status.can_insert) == (10, False)
    # Two readers with much credit, which never read: what is chosen is bounded all the same.
    calls = []
    for _ in range(2):
        opening = replay_pb2.StreamSamplesOpen(table="sequences", layout=LAYOUT)
        requests = [replay_pb2.StreamSamplesRequest(open=opening, credit=50, batch_size=8)]

        def hold(
            requests: list[replay_pb2.StreamSamplesRequest] = requests,
        ) -> Iterator[replay_pb2.StreamSamplesRequest]:
            yield from requests
            time.sleep(3)

        calls.append(server.stub().StreamSamples(hold(), timeout=TIMEOUT))
    assert stream.receive().sequence == 1
    time.sleep(0.3)
    status = server.status()
    assert status.inserted_items == 30
    assert status.sampled_items == 60  # 2 * 30 - sampled >= 0
    assert not status.can_sample
    assert status.insert_wait_seconds > 0
    assert status.waiting_readers >= 1
    for call in calls:
        call.cancel()
    deadline = time.monotonic() + TIMEOUT
    while server.status().waiting_readers:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # What was chosen for a batch that was never complete is not counted.
    assert server.status().sampled_items % 8 == 0


def test_items_that_cannot_fit_are_refused(make: Make) -> None:
    server = make(max_bytes=10_000)
    stream = InsertCall(server)
    stream.receive()
    stream.insert(1, [1.0])
    stream.send(insert_request(2, [1.0], first_block=90, block=b"x" * 20_000))
    text = fails(Code.RESOURCE_EXHAUSTED, stream.receive)
    assert "max_bytes 10000" in text
    with ReplayClient([server.address], SMALL) as client:
        assert client.status()[0].tables[0].max_bytes == 10_000


def test_a_repeated_message_is_inserted_once(make: Make) -> None:
    server = make()
    one = InsertCall(server, writer_id=7)
    one.receive()
    one.insert(1, [1, 1])
    one.insert(2, [1])
    two = InsertCall(server, writer_id=7)
    assert two.receive().sequence == 2
    assert two.insert(2, [1]) == 2
    assert two.insert(3, [1]) == 3
    assert server.status().items == 4
    one.send(insert_request(4, [1]))
    assert "newer stream" in fails(Code.ABORTED, one.receive)


def test_overlapping_sequences_share_blocks_and_come_back_whole(make: Make) -> None:
    server = make({"reply_bytes": 2000})  # every batch in many messages
    with ReplayClient([server.address], SMALL) as client:
        writers = [client.writer(slot, 24, block_length=8) for slot in range(6)]
        for n in range(48):
            for slot, writer in enumerate(writers):
                writer.append(step(slot, n))
                if n >= 23 and n % 8 == 7:
                    writer.create_item(24, 1.0 + slot, {"state": [slot, n - 23]})
        client.flush(TIMEOUT)
        raw = 48 * 6 * 408
        assert server.status().items == 24
        assert server.status().bytes < raw  # 72 steps of each item would be 1.5 times as much
        sampler = client.sampler(16, 24)
        for _ in range(20):
            batch = sampler.next(TIMEOUT)
            check_batch(batch, 24)
            sampler.update_priorities(batch, np.full(16, 2.0))
        assert client.acknowledged_items == 24
    deadline = time.monotonic() + TIMEOUT
    # The writers' own references have gone with their streams.
    while server.status().waiting_writers:
        assert time.monotonic() < deadline


def test_items_that_end_anywhere_and_have_any_length(make: Make) -> None:
    server = make()
    rng = np.random.default_rng(0)
    with ReplayClient([server.address], SMALL) as client:
        writer = client.writer(3, 20, block_length=7)
        lengths = []
        n = 0
        for _ in range(60):
            for _ in range(int(rng.integers(1, 12))):
                writer.append(step(3, n))
                n += 1
            length = int(rng.integers(1, min(20, writer.steps) + 1))
            writer.create_item(length, 1.0, {"state": [3, n - length]})
            lengths.append(length)
            if rng.random() < 0.1:
                writer.end_episode()
        writer.append(step(3, n))
        with pytest.raises(ValueError, match="length is 21"):
            writer.create_item(21, 1.0)
        with pytest.raises(ValueError, match="priority is nan"):
            writer.create_item(1, float("nan"))
        client.flush(TIMEOUT)
        sampler = client.sampler(32, 25)
        seen = set()
        for _ in range(30):
            batch = sampler.next(TIMEOUT)
            for row, length in enumerate(batch.lengths.tolist()):
                numbers = batch.steps["n"][row]
                start = int(batch.context["state"][row, 1])
                assert numbers[:length].tolist() == list(range(start, start + length))
                assert not numbers[length:].any()
                assert not batch.steps["frame"][row, length:].any()
                assert (batch.steps["frame"][row, :length, 5, 5] == numbers[:length] % 251).all()
                seen.add(int(batch.keys[row]))
        assert len(seen) == len(lengths)


def test_returned_priorities_count_for_the_next_batch(make: Make) -> None:
    server = make()
    with ReplayClient([server.address], SMALL) as client:
        for slot in range(4):
            writer = client.writer(slot, 4)
            for n in range(4):
                writer.append(step(slot, n))
            writer.create_item(4, 1.0, {"state": [slot, 0]})
        client.flush(TIMEOUT)
        sampler = client.sampler(64, 4)
        for turn in range(6):
            batch = sampler.next(TIMEOUT)
            slots = batch.steps["slot"][:, 0]
            if turn >= 3:  # the two that were chosen before the update came are over
                assert set(slots.tolist()) == {2}
            sampler.update_priorities(batch, (slots == 2).astype(float))
        with pytest.raises(ValueError, match="finite, 0 or more"):
            sampler.update_priorities(batch, np.full(64, np.nan))


def test_metrics_health_and_reflection(make: Make) -> None:
    server = make(samples_per_insert=4.0, error_buffer=100.0)
    stream = InsertCall(server)
    stream.receive()
    stream.insert(1, [1, 2, 3])
    server.stub().Sample(sample_request(6), timeout=TIMEOUT)
    url = f"http://127.0.0.1:{server.metrics_port()}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT) as page:
        text = page.read().decode()
    for line in (
        'seedpod_replay_items{table="sequences"} 3.0',
        'seedpod_replay_samples_per_insert{table="sequences"} 2.0',
        'seedpod_replay_priority{quantile="0.5",table="sequences"} 2.0',
        'seedpod_replay_stale_updates_total{table="sequences"} 0.0',
        "seedpod_replay_ready 1.0",
    ):
        assert line in text, text
    for name in ("bytes", "sample_wait_seconds_total", "evicted_items_total", "waiting_writers"):
        assert f"seedpod_replay_{name}{{" in text
    with rpc.channel(server.address) as channel:
        info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=TIMEOUT
        )
        names = {service.name for service in next(info).list_services_response.service}
    assert "seedpod.replay.v1.ReplayService" in names


def test_sigterm_ends_streams_and_the_process(make: Make) -> None:
    server = make(min_size_to_sample=100)
    stream = InsertCall(server)
    stream.receive()
    future = server.stub().Sample.future(sample_request(1), timeout=TIMEOUT)
    time.sleep(0.2)
    status, seconds = server.terminate()
    assert (status, seconds < 5) == (0, True)
    fails(Code.UNAVAILABLE, future.result)
    fails(Code.UNAVAILABLE, stream.receive)
    assert "Traceback" not in server.log()


def test_a_second_server_on_the_port_or_directory_fails(make: Make, tmp_path: pathlib.Path) -> None:
    directory = str(tmp_path / "shared")
    server = make({"persistence": {"directory": directory}})
    for override in ("replay.metrics_port=null", "replay.address=127.0.0.1:0"):
        result = subprocess.run(
            [sys.executable, "-m", "services.replay", "--experiment", tmp_path / "0/replay.yaml",
             "--set", override, "--set", f"replay.persistence.directory={directory}"
             if "address" in override else "replay.persistence.directory=null"],
            capture_output=True, timeout=TIMEOUT, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 2, result.stderr
        assert ("another replay service" in result.stderr) == ("address" in override)
    assert server.status().name == "sequences"


def test_the_process_has_no_tensorflow(make: Make) -> None:
    server = make()
    assert server.process is not None
    maps = pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "grpc" in maps
    assert "tensorflow" not in maps


def test_the_client_gives_up_on_an_item_that_no_table_of_this_size_can_take(make: Make) -> None:
    server = make(max_bytes=3_000)
    layout = SequenceLayout((Field("noise", "uint8", (5000,)),))
    with ReplayClient([server.address], layout) as client:
        writer = client.writer(0, 1)
        writer.append({"noise": np.random.default_rng(0).integers(0, 255, 5000)})
        with pytest.raises(ReplayError, match="3000"):
            create_and_flush(client, writer)


def create_and_flush(client: ReplayClient, writer: SlotWriter) -> None:
    writer.create_item(1, 1.0, timeout=TIMEOUT)
    client.flush(TIMEOUT)
