"""Mutated messages on every RPC: each is answered or refused, and nobody else notices."""

from __future__ import annotations

import contextlib
import pathlib
import queue
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from services.learner import join
from services.shared import rpc, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay.connection import SERVICE as REPLAY
from services.shared.specs import StepType
from tests.integration.act_requests import request
from tests.integration.replay_clients import InsertCall, insert_request, sample_request
from tests.integration.replay_server import ReplayServer
from tests.integration.test_serving import Learner, Stream
from tests.mutations import mutate

LEARNER = "/seedpod.inference.v1.InferenceService/"
TIMEOUT = 20.0
# What a server of ours says of a bad message. UNKNOWN and INTERNAL would be an exception of ours.
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
}
MOST_GROWTH_BYTES = 64 << 20


def check(call: Callable[[], object], *others: grpc.StatusCode) -> bool:
    """Whether it was refused, as it may be."""
    try:
        call()
    except grpc.RpcError as error:
        refusal = error
    else:
        return False
    assert refusal.code() in REFUSALS | set(others), refusal
    assert refusal.details(), refusal
    return True


def send(
    channel: grpc.Channel, method: str, messages: list[bytes], metadata: Any = ()
) -> Callable[[], object]:
    """A call of a stream that sends these messages and reads an answer to each, then ends."""

    def call() -> None:
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        answers = channel.stream_stream(method)(
            iter(outgoing.get, None), metadata=metadata, timeout=2.0
        )
        try:
            for message in messages:
                outgoing.put(message)
                next(answers)
        except StopIteration:
            return
        finally:
            outgoing.put(None)
            answers.cancel()

    return call


@pytest.fixture(scope="module")
def learner() -> Iterator[Learner]:
    def check_join(message: inference_pb2.JoinRequest) -> None:
        join.check(message, 64, 0)

    with contextlib.closing(
        Learner(slots=64, check_join=check_join, lease_grace_seconds=0.2)
    ) as instance:
        yield instance


class Neighbour:
    """A well-behaved stream beside the bad ones, and the process that serves both."""

    def __init__(self, learner: Learner) -> None:
        self._process = psutil.Process(learner.transport._front_ends[0].process.pid)
        self._stream = Stream(learner, learner.join(), timeout=600)
        self._sequence = 0
        self.step()
        self._before = self._process.memory_info().rss

    def step(self) -> None:
        self._sequence += 1
        step_type = StepType.FIRST if self._sequence == 1 else 1
        frame = self._sequence % 100
        answer = self._stream.step(request(self._sequence, step_type, frame))
        assert np.frombuffer(answer.action, "<i4").tolist() == [frame, frame]

    def check(self) -> None:
        self.step()
        self._stream.end()
        assert self._process.is_running()
        assert self._process.memory_info().rss - self._before < MOST_GROWTH_BYTES


def test_bad_joins_and_status_requests(learner: Learner) -> None:
    choose = random.Random(1)
    neighbour = Neighbour(learner)
    good = inference_pb2.JoinRequest(
        api_version=wire.API_VERSION,
        actor_name="fuzz",
        environment=wire.environment_spec_to_proto(learner.harness.store.layout.spec),
        environments_per_group=2,
        groups=2,
        lease_token="0123",
    ).SerializeToString()
    refused = 0
    for number in range(400):
        data = mutate(good, choose)
        refused += check(lambda d=data: _unary(learner, "Join", d))  # type: ignore[misc]
        # What it is asked is nothing, so that any bytes say it.
        assert not check(lambda d=data: _unary(learner, "GetStatus", d))  # type: ignore[misc]
        if number % 50 == 0:
            neighbour.step()
    assert refused > 250
    neighbour.check()


def _unary(learner: Learner, method: str, data: bytes) -> None:
    learner.channel.unary_unary(LEARNER + method)(data, timeout=TIMEOUT, wait_for_ready=True)


def test_bad_steps(learner: Learner) -> None:
    choose = random.Random(2)
    neighbour = Neighbour(learner)
    refused = 0
    for number in range(150):
        token = learner.join()
        metadata = ((rpc.LEASE_METADATA, token), (rpc.GROUP_METADATA, "0"))
        messages = [request(1, StepType.FIRST).SerializeToString()]
        messages += [mutate(request(n).SerializeToString(), choose) for n in range(2, 6)]
        refused += check(
            send(learner.channel, LEARNER + "Act", messages, metadata),
            # All environments may be declared absent, and a repeated field is a valid request.
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
        if number % 15 == 0:
            neighbour.step()
        while learner.transport.leases.leased_slots > 48:
            time.sleep(0.05)
    assert refused > 120
    neighbour.check()


def test_bad_recordings(learner: Learner) -> None:
    choose = random.Random(4)
    neighbour = Neighbour(learner)
    good = inference_pb2.PutRecordingRequest(
        lease_token=learner.join(), name="a.gif", data=b"GIF89a" * 10
    ).SerializeToString()
    call = learner.channel.stream_unary(LEARNER + "PutRecording")
    for _ in range(150):
        messages = [mutate(good, choose) for _ in range(2)]
        check(lambda m=messages: call(iter(m), timeout=TIMEOUT))  # type: ignore[misc]
    neighbour.check()
    folder = learner.recordings
    assert all(path.parent == folder for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("lease", "group"),
    [("", "0"), ("nobody", "0"), ("x" * 3000, "0"), ("{token}", "-1"), ("{token}", "9" * 40)],
)
def test_bad_metadata(learner: Learner, lease: str, group: str) -> None:
    metadata = (
        (rpc.LEASE_METADATA, lease.format(token=learner.join())),
        (rpc.GROUP_METADATA, group),
    )
    assert check(send(learner.channel, LEARNER + "Act", [request(1).SerializeToString()], metadata))


def test_a_message_beyond_all_limits(learner: Learner) -> None:
    data = bytes(rpc.MAX_MESSAGE_BYTES + 1)
    with pytest.raises(grpc.RpcError, match=r"\(67108865 vs\. 67108864\)"):
        _unary(learner, "Join", data)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayServer]:
    folder = tmp_path_factory.mktemp("replay")
    table = {"max_bytes": 64 << 20, "max_items": 1000}
    server = ReplayServer(folder, table, sample_timeout_seconds=1.0)
    with contextlib.closing(server):
        yield server.start()


def test_bad_calls_of_replay(replay: ReplayServer, tmp_path: pathlib.Path) -> None:
    choose = random.Random(3)
    neighbour = InsertCall(replay, writer_id=1)
    neighbour.receive()
    neighbour.insert(1, np.ones(50))
    neighbour.end()
    assert replay.process is not None
    process = psutil.Process(replay.process.pid)
    before = process.memory_info().rss
    layout = sample_request(1).layout
    opening = replay_pb2.InsertRequest(
        open=replay_pb2.InsertOpen(table="sequences", layout=layout, writer_id=7)
    )
    reading = replay_pb2.StreamSamplesRequest(
        open=replay_pb2.StreamSamplesOpen(
            table="sequences", layout=layout, importance_exponent=0.6
        ),
        credit=1,
        batch_size=4,
    )
    keys = replay.stub().Sample(sample_request(4), timeout=TIMEOUT).header.keys
    updating = replay_pb2.UpdatePrioritiesRequest(
        table="sequences", keys=keys, priorities=np.ones(4).tobytes()
    )
    # Nothing may be sampled in time if a size was changed.
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    refused = 0
    with rpc.channel(replay.address) as channel:
        for number in range(120):
            insert = insert_request(1, [1.0, 2.0], 100).SerializeToString()
            first = opening.SerializeToString()
            damaged_first = mutate(first, choose) if number % 5 == 0 else first
            messages = [damaged_first, mutate(insert, choose)]
            refused += check(send(channel, REPLAY + "Insert", messages), late)
            data = mutate(reading.SerializeToString(), choose)
            refused += check(send(channel, REPLAY + "StreamSamples", [data]), late)
            for method, good in (
                ("Sample", sample_request(4)),
                ("UpdatePriorities", updating),
                ("Checkpoint", replay_pb2.CheckpointRequest()),
            ):
                data = mutate(good.SerializeToString(), choose)
                call = channel.unary_unary(REPLAY + method)
                refused += check(lambda c=call, d=data: c(d, timeout=3.0), late)  # type: ignore[misc]
            channel.unary_unary(REPLAY + "GetStatus")(data, timeout=TIMEOUT)
    assert refused > 300
    neighbour = InsertCall(replay, writer_id=1)
    assert neighbour.receive().sequence == 1
    neighbour.insert(2, [3.0])
    header = replay.stub().Sample(sample_request(8), timeout=TIMEOUT).header
    assert np.isfinite(np.frombuffer(header.weights)).all()
    assert replay.process.poll() is None
    assert process.memory_info().rss - before < MOST_GROWTH_BYTES
    assert "Traceback" not in replay.log(), replay.log()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"credit": 1 << 31}, r"credit for 2147483648 batches .* allowed: 1024 \(max_credit\)"),
        ({"exponent": float("nan")}, "importance_exponent is nan, allowed: finite, 0 or more"),
        ({"exponent": -1.0}, r"importance_exponent is -1\.0"),
    ],
)
def test_what_a_reader_may_not_ask_for(
    replay: ReplayServer, change: dict[str, Any], message: str
) -> None:
    layout = sample_request(1).layout
    opening = replay_pb2.StreamSamplesOpen(
        table="sequences", layout=layout, importance_exponent=change.get("exponent", 0.6)
    )
    asked = replay_pb2.StreamSamplesRequest(
        open=opening, credit=change.get("credit", 1), batch_size=1
    )
    with pytest.raises(grpc.RpcError, match=message) as error:
        next(replay.stub().StreamSamples(iter([asked]), timeout=TIMEOUT))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_item_of_too_many_blocks(replay: ReplayServer) -> None:
    stream = InsertCall(replay, writer_id=99)
    stream.receive()
    # max_bytes / 4 of an index of 1000 items, 4 bytes each.
    most = (64 << 20) // 4 // 4000
    message = insert_request(1, [1.0], 5000)
    message.item_block_counts = np.uint32(most + 1).tobytes()
    message.item_block_ids = np.full(most + 1, 5000, np.uint64).tobytes()
    stream.send(message)
    with pytest.raises(grpc.RpcError, match=f"an item of {most + 1} blocks, allowed: {most} with"):
        stream.receive()


def test_a_reader_that_never_reads_holds_nobody_up(replay: ReplayServer) -> None:
    layout = sample_request(1).layout
    opening = replay_pb2.StreamSamplesOpen(table="sequences", layout=layout)
    asked = replay_pb2.StreamSamplesRequest(open=opening, credit=1000, batch_size=512)
    with rpc.channel(replay.address) as channel:
        call = channel.stream_stream(REPLAY + "StreamSamples")(
            iter([asked.SerializeToString()]), timeout=TIMEOUT
        )
        for _ in range(20):
            replay.stub().Sample(sample_request(8), timeout=TIMEOUT)
        call.cancel()
