"""The replay service is killed, restarted, stopped and damaged under its clients."""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from services.shared import rpc
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import (
    Field,
    ReplayClient,
    ReplayError,
    ReplayTimeout,
    Sampler,
    SequenceLayout,
    SlotWriter,
    inserting,
)
from services.shared.replay.connection import to_proto
from tests.integration.replay_clients import (
    SMALL,
    TIMEOUT,
    InsertCall,
    check_batch,
    insert_request,
    sample_request,
    step,
)
from tests.integration.replay_server import ReplayServer

Make = Callable[..., ReplayServer]


@pytest.fixture
def make(tmp_path: pathlib.Path) -> Iterator[Make]:
    servers: list[ReplayServer] = []

    def create(name: str = "a", persist: bool = True, **table: Any) -> ReplayServer:
        settings: dict[str, Any] = {}
        if persist:
            directory = str(tmp_path / name / "data")
            settings["persistence"] = {"directory": directory, "segment_bytes": 1 << 16}
        servers.append(ReplayServer(tmp_path / name, table, **settings))
        return servers[-1].start()

    yield create
    for server in servers:
        server.close()


def seen_priorities(server: ReplayServer) -> set[float]:
    seen: set[float] = set()
    for _ in range(8):
        header = server.stub().Sample(sample_request(4096), timeout=TIMEOUT).header
        seen |= set(np.frombuffer(header.priorities).tolist())
    return seen


def test_what_was_acknowledged_survives_sigkill(make: Make) -> None:
    server = make(selector="uniform", max_items=100_000)
    stream = InsertCall(server, writer_id=5)
    assert stream.receive().sequence == 0
    acknowledged = 0

    def receive() -> None:
        nonlocal acknowledged
        try:
            while True:
                acknowledged = stream.receive().sequence
        except grpc.RpcError:
            return

    receiver = threading.Thread(target=receive)
    receiver.start()
    for sequence in range(1, 3000):
        stream.send(insert_request(sequence, [sequence], sequence, b"z" * 200))
        if acknowledged > 300:
            break
        time.sleep(0.0005)
    server.kill()
    receiver.join()
    assert acknowledged > 300
    server.start()
    seen = seen_priorities(server)
    assert seen >= set(np.arange(1.0, acknowledged + 1).tolist())
    assert server.full_status().recovered_bytes == server.full_status().recoverable_bytes > 0
    again = InsertCall(server, writer_id=5)
    known = again.receive().sequence
    assert known >= acknowledged
    assert known == max(seen)
    again.insert(known + 1, [1e6])
    server.kill()
    server.start()
    assert 1e6 in seen_priorities(server)


def test_priorities_survive_a_checkpoint_and_a_sigterm(make: Make) -> None:
    server = make()
    stream = InsertCall(server)
    stream.receive()
    stream.insert(1, np.ones(50))

    def set_priorities(value: float) -> None:
        header = server.stub().Sample(sample_request(2000), timeout=TIMEOUT).header
        values = np.full(2000, value).tobytes()
        server.stub().UpdatePriorities(
            replay_pb2.UpdatePrioritiesRequest(
                table="sequences", keys=header.keys, priorities=values
            ),
            timeout=TIMEOUT,
        )

    set_priorities(3.0)
    response = server.stub().Checkpoint(replay_pb2.CheckpointRequest(), timeout=TIMEOUT)
    assert response.items == 50
    server.kill()
    server.start()
    assert seen_priorities(server) == {3.0}
    set_priorities(4.0)
    status, seconds = server.terminate()
    assert (status, seconds < 8) == (0, True)
    server.start()
    assert seen_priorities(server) == {4.0}
    assert server.status().sampled_items >= 4000


def test_what_was_given_out_for_the_last_time_stays_away_after_a_kill(make: Make) -> None:
    server = make(selector="fifo", max_times_sampled=1)
    stream = InsertCall(server)
    stream.receive()
    stream.insert(1, np.ones(10))
    server.stub().Sample(sample_request(4), timeout=TIMEOUT)
    server.kill()
    server.start()
    assert server.status().items == 6


def test_an_item_that_no_message_can_carry_ends_its_writer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inserting, "MAX_MESSAGE_BYTES", 1000)
    with ReplayClient([make().address], SMALL) as client:
        writer = client.writer(0, 8)
        for n in range(8):
            writer.append({**step(0, n), "frame": noise(n)})
        with pytest.raises(ReplayError, match=r"bytes at once .* allowed: 1000, the largest"):
            writer.create_item(8, 1.0, {"state": [0, 0]}, timeout=TIMEOUT)


def noise(n: int) -> Any:
    """What does not compress."""
    return np.random.default_rng(n).integers(0, 256, (20, 20), np.uint8)


def test_a_damaged_segment_is_named_and_the_service_starts(make: Make) -> None:
    server = make()
    stream = InsertCall(server)
    stream.receive()
    for sequence in range(1, 40):
        stream.insert(sequence, [1.0], block=b"q" * 10_000)
    server.kill()
    path = sorted((server.directory / "sequences").glob("segment-*"))[1]
    path.write_bytes(path.read_bytes()[:30_000])
    server.start()
    (damage,) = server.full_status().damaged_segments
    assert path.name in damage
    assert "cut off at byte" in damage
    assert path.name in server.log()
    assert 30 <= server.status().items < 39


def test_recovery_reports_progress_and_calls_are_told_to_wait(
    make: Make, tmp_path: pathlib.Path
) -> None:
    server = make(max_items=300_000)
    stream = InsertCall(server)
    stream.receive()
    for sequence in range(1, 300):
        stream.send(insert_request(sequence, np.ones(1000), sequence * 1000))
    while stream.receive().sequence < 299:
        pass
    server.kill()
    server.start(wait=False)
    server.wait_listening()
    told = False
    refusals: list[tuple[grpc.StatusCode, str]] = []
    while (health := server.health()) != health_pb2.HealthCheckResponse.SERVING:
        if health != health_pb2.HealthCheckResponse.NOT_SERVING:
            continue
        # It is not ready, but nothing that a restart would help.
        assert server.health("liveness") == health_pb2.HealthCheckResponse.SERVING
        status = server.full_status()
        told |= status.recovering
        try:
            server.stub().Sample(sample_request(1), timeout=TIMEOUT)
        except grpc.RpcError as error:
            refusals.append((error.code(), error.details()))
    assert told
    for code, details in refusals:
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "is recovering: " in details
    assert server.status().items == 299_000
    for service in ("seedpod.replay.v1.ReplayService", "liveness"):
        assert server.health(service) == health_pb2.HealthCheckResponse.SERVING


class Feeder:
    """Writers that go on inserting in a thread, like a learner's inference loop."""

    def __init__(self, client: ReplayClient, slots: int) -> None:
        self.inserted = 0
        self.error: BaseException | None = None
        self._client = client
        self._slots = slots
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        writers = [self._client.writer(slot, 8, block_length=4) for slot in range(self._slots)]
        n = 0
        try:
            while not self._stop.is_set():
                for slot, writer in enumerate(writers):
                    writer.append(step(slot, n))
                    if n >= 7 and n % 4 == 3:
                        context = {"state": [slot, n - 7]}
                        writer.create_item(8, 1.0, context, timeout=TIMEOUT)
                        self.inserted += 1
                n += 1
                time.sleep(0.002)
        except BaseException as error:
            self.error = error


def take(sampler: Sampler, batches: int) -> None:
    for _ in range(batches):
        sampler.next(0.3)


def write(writer: SlotWriter, numbers: range) -> None:
    for n in numbers:
        writer.append(step(0, n))
        writer.create_item(8, 1.0, {"state": [0, n - 7]}, timeout=0.2)


def test_writers_and_readers_reconnect_and_nothing_is_lost(make: Make) -> None:
    server = make()
    with ReplayClient([server.address], SMALL, keepalive_seconds=1.0) as client:
        sampler = client.sampler(8, 8)
        with Feeder(client, 5) as feeder:
            for _ in range(2):
                for _ in range(30):
                    check_batch(sampler.next(TIMEOUT), 8)
                server.kill()
                with pytest.raises(ReplayTimeout, match=server.address):
                    take(sampler, 5)
                server.start()
            for _ in range(30):
                check_batch(sampler.next(TIMEOUT), 8)
        client.flush(TIMEOUT)
        # Neither lost nor twice: the service knows what it has of each writer.
        assert server.status().items == feeder.inserted
        statistics = client.statistics()
        assert client.acknowledged_items == feeder.inserted
        assert statistics["insert_reconnects"] >= 2


def test_a_lost_service_costs_no_more_than_the_stated_bound(make: Make) -> None:
    server = make()
    with ReplayClient([server.address], SMALL, max_pending_bytes=20_000) as client:
        writer = client.writer(0, 8)
        for n in range(8):
            writer.append(step(0, n))
        writer.create_item(8, 1.0, {"state": [0, 0]})
        client.flush(TIMEOUT)
        server.kill()
        with pytest.raises(ReplayTimeout, match="max_pending_bytes 20000"):
            write(writer, range(8, 10_000))
        assert 10_000 < client.statistics()["waiting_bytes"] <= 20_000
        assert client.shards_away == 1
        writer.end_episode()  # does not wait
        server.start()
        client.flush(TIMEOUT)
        assert client.shards_away == 0
        assert server.status().items > 10


def test_all_slots_blocks_together_may_exceed_a_message(make: Make) -> None:
    """A new connection needs them all again; random bytes do not shrink."""
    server = make(persist=False)
    mebibyte = 1 << 20
    layout = SequenceLayout((Field("frame", "uint8", (mebibyte,)),))
    frame = np.random.default_rng(0).integers(0, 256, mebibyte, np.uint8)
    slots = rpc.MAX_MESSAGE_BYTES // mebibyte + 1
    with ReplayClient([server.address], layout, keepalive_seconds=1.0) as client:
        writers = [client.writer(slot, 2, 1) for slot in range(slots)]
        for expected in (slots, 1):
            for writer in writers[:expected]:
                writer.append({"frame": frame})
                writer.create_item(1, 1.0, timeout=TIMEOUT)
            client.flush(TIMEOUT)
            assert server.status().items == expected
            server.kill()
            server.start()


def test_an_item_that_timed_out_is_made_by_trying_again(make: Make) -> None:
    server = make(samples_per_insert=1.0, error_buffer=8.0)
    timeouts = 0

    def insist(call: Callable[[], None]) -> None:
        """Calls until it does not time out, and samples where the limiter wants it."""
        nonlocal timeouts
        while True:
            try:
                return call()
            except ReplayTimeout:
                timeouts += 1
                assert client.shards_away == 0
                if not server.status().can_insert:
                    server.stub().Sample(sample_request(5, to_proto(SMALL)), timeout=TIMEOUT)

    with ReplayClient([server.address], SMALL, max_pending_bytes=2_000) as client:
        writer = client.writer(0, 8)
        for n in range(60):
            writer.append(step(0, n))
            if n >= 7:
                make_item = functools.partial(
                    writer.create_item, 8, 1.0, {"state": [0, n - 7]}, timeout=0.05
                )
                insist(make_item)
        insist(lambda: client.flush(0.05))
        assert timeouts > 0
        assert server.status().inserted_items == 53
        sampler = client.sampler(8, 8)
        check_batch(sampler.next(TIMEOUT), 8)


def test_rate_limiters_of_unequal_shards_do_not_wait_for_each_other(make: Make) -> None:
    """Slots feed both shards alike, but three samples of four come from one."""
    limits = {"samples_per_insert": 2.0, "error_buffer": 16.0, "min_size_to_sample": 4}
    servers = [make(name, persist=False, priority_exponent=1.0, **limits) for name in "ab"]
    addresses = [server.address for server in servers]
    with ReplayClient(addresses, SMALL, max_waiting_items=4) as client:
        sampler = client.sampler(8, 1)
        stop = threading.Event()

        def feed() -> None:
            writers = [client.writer(slot, 1, 1) for slot in range(2)]
            for n in itertools.count():
                writers[n % 2].append(step(n % 2, n))
                made = False
                while not made and not stop.is_set():
                    with contextlib.suppress(ReplayTimeout):
                        priority = 1.0 if n % 2 else 3.0
                        writers[n % 2].create_item(1, priority, {"state": [n % 2, n]}, 0.2)
                        made = True
                if stop.is_set():
                    return

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            for _ in range(100):  # many times the error buffers
                sampler.next(TIMEOUT)
        finally:
            stop.set()
            feeder.join(TIMEOUT)
        for server in servers:
            status = server.status()
            difference = 2 * status.inserted_items - status.sampled_items
            assert 8 - 16 <= difference <= 8 + 16 + 2


def test_shards_are_sampled_by_their_priority_and_one_may_fail(make: Make) -> None:
    servers = [
        make(name, persist=name == "b", priority_exponent=1.0, max_items=1000) for name in "ab"
    ]
    addresses = [server.address for server in servers]
    with ReplayClient(addresses, SMALL, keepalive_seconds=1.0) as client:
        for slot in range(40):
            writer = client.writer(slot, 8)
            for n in range(8):
                writer.append(step(slot, n))
            writer.create_item(8, 1.0 + 2 * (slot % 2), {"state": [slot, 0]})
        client.flush(TIMEOUT)
        assert [server.status().items for server in servers] == [20, 20]
        sampler = client.sampler(64, 8, seed=0)
        from_b = 0
        for _ in range(50):
            batch = sampler.next(TIMEOUT)
            check_batch(batch, 8)
            odd = batch.steps["slot"][:, 0] % 2
            assert (batch.shards == odd).all()
            np.testing.assert_allclose(batch.probabilities, np.where(odd, 3, 1) / 80)
            np.testing.assert_allclose(batch.weights, np.where(odd, 3**-0.6, 1), rtol=1e-9)
            from_b += int(odd.sum())
        expected, deviation = 3200 * 0.75, (3200 * 0.75 * 0.25) ** 0.5
        assert abs(from_b - expected) < 4 * deviation
        assert client.statistics()["incomplete_batches"] == 0
        servers[1].kill()
        batches = [sampler.next(TIMEOUT) for _ in range(6)]
        batch = batches[-1]
        check_batch(batch, 8)
        assert (batch.shards == 0).all()
        np.testing.assert_allclose(batch.probabilities, 1 / 20)
        statistics = client.statistics()
        assert statistics["sample_shards_missing"] == 1
        assert statistics["incomplete_batches"] > 0
        # Writers of the lost shard go to the other one, and back.
        writer = client.writer(1, 8)
        for n in range(8):
            writer.append(step(1, n))
        writer.create_item(8, 1.0, {"state": [1, 0]}, timeout=TIMEOUT)
        deadline = time.monotonic() + TIMEOUT
        while not writer.rerouted_items:
            assert time.monotonic() < deadline
            writer.create_item(8, 1.0, {"state": [1, 0]}, timeout=TIMEOUT)
            time.sleep(0.1)
        servers[1].start()
        deadline = time.monotonic() + TIMEOUT
        while client.statistics()["sample_shards_missing"] or not (batch.shards == 1).any():
            assert time.monotonic() < deadline
            batch = sampler.next(TIMEOUT)
            time.sleep(0.02)
        check_batch(batch, 8)
        rerouted = writer.rerouted_items
        while client.shards_away:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        writer.create_item(8, 1.0, {"state": [1, 0]}, timeout=TIMEOUT)
        assert writer.rerouted_items == rerouted
        client.flush(TIMEOUT)
