"""The learner's serving path with real front-end processes and real gRPC clients."""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.learner.step_store import COUNTERS
from services.learner.transport import JoinHandler, Transport
from services.shared import rpc, wire
from services.shared.config import LearnerConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.act_requests import request
from tests.unit.learner.harness import FIRST, LAST, MID, Harness

ActRequest = inference_pb2.ActRequest
TIMEOUT = 20.0


class Learner:
    """Transport, front ends and inference loop around the counting policy of the unit tests."""

    def __init__(
        self, slots: int = 8, check_join: JoinHandler = lambda _: None, **settings: object
    ) -> None:
        config = LearnerConfig.model_validate(
            {
                "address": "127.0.0.1:0",
                "max_slots": slots,
                "unroll_length": 4,
                "unrolls_per_slot": 8,
                "inference_max_wait_seconds": 0.01,
                **settings,
            }
        )
        self.recordings = pathlib.Path(tempfile.mkdtemp()) / "videos"
        self.transport = Transport(
            config,
            check_join,
            inference_pb2.GetStatusResponse,
            lambda: self.recordings,
            print,
        )
        self.harness = Harness(
            slots=slots,
            transport=self.transport,
            config=config,
            roles=self.transport.leases.roles,
        )
        self.transport.start()
        self.transport.publish(self.harness.store)
        self.thread = threading.Thread(target=self.harness.loop.run, daemon=True)
        self.thread.start()
        self.channel = rpc.channel(self.transport.address, keepalive_seconds=1.0)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)

    def close(self) -> None:
        self.channel.close()
        self.harness.loop.stop()
        self.thread.join(timeout=5)
        self.transport.stop()
        shutil.rmtree(self.recordings.parent)

    def join(
        self,
        groups: int = 1,
        environments: int = 2,
        token: str = "",
        role: inference_pb2.ActorRole = inference_pb2.ACTOR_ROLE_UNSPECIFIED,
    ) -> str:
        request = inference_pb2.JoinRequest(
            api_version=wire.API_VERSION,
            actor_name="test",
            environment=wire.environment_spec_to_proto(self.harness.store.layout.spec),
            environments_per_group=environments,
            groups=groups,
            lease_token=token,
            role=role,
        )
        response = self.stub.Join(request, timeout=TIMEOUT, wait_for_ready=True)
        return str(response.lease_token)


class Stream:
    """One Act stream."""

    def __init__(
        self, learner: Learner, token: str, group: int | str = 0, timeout: float = TIMEOUT
    ) -> None:
        self._requests: queue.SimpleQueue[ActRequest | None] = queue.SimpleQueue()
        metadata = ((rpc.LEASE_METADATA, token), (rpc.GROUP_METADATA, str(group)))
        self._call = learner.stub.Act(
            iter(self._requests.get, None), metadata=metadata, timeout=timeout, wait_for_ready=True
        )

    def send(self, request: ActRequest) -> None:
        self._requests.put(request)

    def receive(self) -> inference_pb2.ActResponse:
        response: inference_pb2.ActResponse = next(self._call)
        return response

    def step(self, request: ActRequest) -> inference_pb2.ActResponse:
        self.send(request)
        return self.receive()

    def end(self) -> None:
        self._requests.put(None)


@pytest.fixture(scope="module")
def learner() -> Iterator[Learner]:
    with contextlib.closing(Learner(slots=256)) as instance:
        yield instance


def free_leases(learner: Learner) -> None:
    deadline = time.monotonic() + TIMEOUT
    while learner.transport.leases.leased_slots:
        assert time.monotonic() < deadline, "leases were not freed"
        time.sleep(0.05)


def test_actions_answer_the_observations_that_were_sent(learner: Learner) -> None:
    stream = Stream(learner, learner.join())
    for sequence, frame in enumerate([7, 42, 99], start=1):
        response = stream.step(request(sequence, FIRST if sequence == 1 else MID, frame))
        assert response.sequence == sequence
        assert np.frombuffer(response.action, "<i4").tolist() == [frame, frame]
    stream.end()


def test_a_repeated_request_gets_the_same_answer_and_is_not_counted_twice(
    learner: Learner,
) -> None:
    token = learner.join()
    stream = Stream(learner, token)
    stream.step(request(1, FIRST, frame=1))
    stream.step(request(2, MID, frame=2))
    stream.end()
    stream = Stream(learner, token)
    written = learner.harness.store.written.sum()
    again = stream.step(request(2, MID, frame=77))
    assert np.frombuffer(again.action, "<i4").tolist() == [2, 2]
    assert learner.harness.store.written.sum() == written
    assert stream.step(request(3, MID, frame=3)).sequence == 3
    stream.end()


def test_a_newer_stream_takes_the_group_over(learner: Learner) -> None:
    token = learner.join()
    old = Stream(learner, token)
    old.step(request(1, FIRST))
    new = Stream(learner, token)
    new.step(request(2, MID))
    with pytest.raises(grpc.RpcError) as error:
        old.step(request(3, MID))
    assert error.value.code() is grpc.StatusCode.ABORTED
    assert new.step(request(3, MID)).sequence == 3
    new.end()


def test_a_stream_that_lost_its_group_ends_by_itself(learner: Learner) -> None:
    token = learner.join()
    old = Stream(learner, token)
    old.step(request(1, FIRST))
    new = Stream(learner, token)
    new.step(request(2, MID))
    with pytest.raises(grpc.RpcError, match="a newer stream has taken this group over"):
        old.receive()  # nothing was sent
    new.end()


def test_a_join_that_is_given_up_leases_nothing() -> None:
    with contextlib.closing(Learner(slots=2, lease_grace_seconds=3600)) as learner:
        learner.stub.GetStatus(inference_pb2.GetStatusRequest(), wait_for_ready=True)
        with learner.transport.lock:  # no lease can be granted
            join = inference_pb2.JoinRequest(environments_per_group=2, groups=1)
            with pytest.raises(grpc.RpcError) as error:
                learner.stub.Join(join, timeout=0.5)
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            time.sleep(0.5)  # until the other side has heard of it, too
        deadline = time.monotonic() + TIMEOUT
        while True:  # it may be granted only now, and is given back then
            try:
                assert learner.join()
                return
            except grpc.RpcError:
                assert time.monotonic() < deadline, "the slots stay leased"
                time.sleep(0.05)


def test_a_token_gives_the_slots_again_and_the_groups_begin_anew(learner: Learner) -> None:
    token = learner.join()
    stream = Stream(learner, token)
    stream.step(request(1, FIRST))
    stream.end()
    assert learner.join(token=token) == token
    stream = Stream(learner, token)
    assert stream.step(request(1, FIRST, incarnation=2)).sequence == 1
    stream.end()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequence": 5}, "sequence is 5, allowed: 0 or 1"),
        ({"observation": b"x"}, "observation has 1 bytes, must have 2 for 2 slots"),
        ({"reward": b"1234"}, "reward has 4 bytes, must have 8 for 2 slots"),
        ({"reward": np.array([0, np.nan], "<f4").tobytes()}, "reward is not finite"),
        ({"discount": np.array([0, 1.5], "<f4").tobytes()}, "discount is outside of 0 to 1"),
        ({"step_type": b"\x00\x09"}, "step_type is 9, allowed: 0 to 3"),
        ({"step_type": b"\x00\x01"}, "environment 1 of the group sent MID.* must come FIRST"),
        ({"incarnation": bytes(8)}, "incarnation is 0, allowed: 1 or more"),
    ],
)
def test_bad_requests_are_refused_with_what_is_allowed(
    learner: Learner, change: dict[str, object], message: str
) -> None:
    stream = Stream(learner, learner.join())
    bad = request(1, FIRST)
    for name, value in change.items():
        setattr(bad, name, value)
    with pytest.raises(grpc.RpcError, match=message) as error:
        stream.step(bad)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_first_within_an_episode_is_refused(learner: Learner) -> None:
    stream = Stream(learner, learner.join())
    stream.step(request(1, FIRST))
    stream.step(request(2, LAST))
    stream.step(request(3, FIRST))
    with pytest.raises(grpc.RpcError, match=r"sent FIRST, after FIRST .* must come MID or LAST"):
        stream.step(request(4, FIRST))


def test_unknown_leases_and_groups_are_refused(learner: Learner) -> None:
    with pytest.raises(grpc.RpcError, match="join again") as error:
        Stream(learner, "nobody").step(request(1))
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError, match="group 1 of 'test', allowed: 0 to 0"):
        Stream(learner, learner.join(), group=1).step(request(1))
    with pytest.raises(grpc.RpcError, match="given: 'x' and 'one'"):
        Stream(learner, "x", group="one").step(request(1))


def test_too_few_slots(learner: Learner) -> None:
    with pytest.raises(grpc.RpcError, match=r"257 env slots asked for .* of 256 are free") as error:
        learner.join(environments=257)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_malformed_join_is_refused(learner: Learner) -> None:
    call = learner.channel.unary_unary("/seedpod.inference.v1.InferenceService/Join")
    with pytest.raises(grpc.RpcError, match="not a JoinRequest") as error:
        call(b"\xff\xff", timeout=TIMEOUT, wait_for_ready=True)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_streams_cancelled_while_they_open_leave_no_live_group() -> None:
    with contextlib.closing(Learner(slots=64)) as learner:
        token = learner.join(groups=32, environments=2)
        metadata = [((rpc.LEASE_METADATA, token), (rpc.GROUP_METADATA, str(i))) for i in range(32)]
        for attempt in range(5):
            # While the learner's lock is held, no stream can be opened.
            with learner.transport.lock:
                calls = [learner.stub.Act(iter([]), metadata=m) for m in metadata]
                time.sleep(0.02 * attempt)
                for call in calls:
                    call.cancel()
        deadline = time.monotonic() + TIMEOUT
        while learner.transport.leases.live_groups:
            assert time.monotonic() < deadline, "a cancelled stream's group stays live"
            time.sleep(0.05)
        time.sleep(0.5)
        assert learner.transport.leases.live_groups == 0


@pytest.mark.parametrize("service", ["", "seedpod.inference.v1.InferenceService", "liveness"])
def test_health(learner: Learner, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(learner.channel)
    request = health_pb2.HealthCheckRequest(service=service)
    response = stub.Check(request, timeout=TIMEOUT, wait_for_ready=True)
    assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_a_second_learner_on_the_port_is_refused(learner: Learner) -> None:
    config = LearnerConfig(address=learner.transport.address)
    with pytest.raises(OSError, match="is a learner running"):
        Transport(config, lambda _: None, inference_pb2.GetStatusResponse, pathlib.Path, print)


def test_a_killed_front_end_is_replaced_and_actors_go_on() -> None:
    with contextlib.closing(Learner()) as learner:
        token = learner.join()
        stream = Stream(learner, token)
        stream.step(request(1, FIRST))
        os.kill(learner.transport._front_ends[0].process.pid, signal.SIGKILL)
        with pytest.raises(grpc.RpcError):
            stream.receive()
        # The connection may not be known to be dead yet: as actors do, it is tried again.
        deadline = time.monotonic() + TIMEOUT
        answer = None
        while answer is None and time.monotonic() < deadline:
            stream = Stream(learner, token)
            with contextlib.suppress(grpc.RpcError):
                answer = stream.step(request(2, MID, frame=5))
        assert answer is not None
        assert answer.sequence == 2
        stream.end()


def test_a_stopped_front_end_is_replaced() -> None:
    with contextlib.closing(Learner(keepalive_seconds=0.5)) as learner:
        token = learner.join()
        stream = Stream(learner, token)
        stream.step(request(1, FIRST))
        stopped = learner.transport._front_ends[0].process
        stopped.send_signal(signal.SIGSTOP)
        assert stopped.wait(TIMEOUT) == -signal.SIGKILL
        with pytest.raises(grpc.RpcError):
            stream.receive()
        again = Stream(learner, token)
        assert again.step(request(2, MID, frame=5)).sequence == 2
        again.end()


def test_a_stopped_actor_is_noticed() -> None:
    # A client in a process of its own that stops: its lease is freed after keepalive and grace.
    with contextlib.closing(Learner(keepalive_seconds=0.5, lease_grace_seconds=5.0)) as learner:
        token = learner.join()
        command = [sys.executable, "-m", "tests.integration.silent_actor"]
        actor = subprocess.Popen(
            [*command, learner.transport.address, token], stdout=subprocess.PIPE, text=True
        )
        try:
            assert actor.stdout is not None
            assert actor.stdout.readline() == "answered\n"
            actor.send_signal(signal.SIGSTOP)
            free_leases(learner)
        finally:
            actor.kill()
            actor.communicate()


def test_the_end_of_training_reaches_streams_and_joins() -> None:
    with contextlib.closing(Learner()) as learner:
        token = learner.join()
        stream = Stream(learner, token)
        assert not stream.step(request(1, FIRST)).finished
        learner.transport.finish()
        assert stream.step(request(2, MID)).finished
        response = learner.stub.Join(inference_pb2.JoinRequest(), timeout=TIMEOUT)
        assert response.finished


def test_evaluation_is_answered_with_what_the_policy_thinks_and_counted_on_its_own() -> None:
    with contextlib.closing(Learner()) as learner:
        token = learner.join(role=inference_pb2.ACTOR_ROLE_EVALUATION)
        stream = Stream(learner, token)
        first = request(1, FIRST, frame=3)
        first.wants_policy = True
        answer = stream.step(first)
        # The counting policy: logits 0.5 and 0.5, its state as the value.
        np.testing.assert_allclose(np.frombuffer(answer.policy, "<f4"), [0.5] * 4)
        assert np.frombuffer(answer.value, "<f4").tolist() == [0, 0]
        assert answer.policy_kind == inference_pb2.POLICY_KIND_PROBABILITIES
        plain = stream.step(request(2, MID))
        assert (plain.value, plain.policy) == (b"", b"")
        last = request(3, LAST)
        last.episodes.add(level="a", values={"goal_difference": -1.0})
        last.episodes.add(level="b")
        stream.step(last)
        episodes = learner.harness.statistics.evaluation_episodes
        # Evaluation leases from the top: slots 6 and 7 of 8.
        assert [(e.environment, e.length, e.level, dict(e.values)) for e in episodes] == [
            (6, 2, "a", {"goal_difference": -1.0}),
            (7, 2, "b", {}),
        ]
        assert learner.harness.statistics.episodes == 0


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([{}], "episodes has 1 elements, allowed: 2, one for each LAST"),
        ([{"level": "x" * 600}, {}], "an EpisodeInfo has 603 bytes, allowed: 512"),
        ([{"values": {"a": np.nan}}, {}], "an EpisodeInfo has values that are not finite"),
    ],
)
def test_wrong_episodes_are_refused(
    learner: Learner, episodes: list[dict[str, Any]], message: str
) -> None:
    stream = Stream(learner, learner.join(role=inference_pb2.ACTOR_ROLE_EVALUATION))
    stream.step(request(1, FIRST))
    last = request(2, LAST)
    last.episodes.extend(inference_pb2.EpisodeInfo(**e) for e in episodes)
    with pytest.raises(grpc.RpcError, match=re.escape(message)) as error:
        stream.step(last)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def _put(learner: Learner, name: str, token: str, *pieces: bytes) -> int:
    messages = [inference_pb2.PutRecordingRequest(data=piece) for piece in pieces]
    messages[0].name, messages[0].lease_token = name, token
    response = learner.stub.PutRecording(iter(messages), timeout=TIMEOUT)
    return int(response.bytes)


def test_a_recording_is_kept_whole(learner: Learner) -> None:
    token = learner.join()
    assert _put(learner, "a-1.gif", token, b"GIF8", b"9a", b"") == 6
    assert (learner.recordings / "a-1.gif").read_bytes() == b"GIF89a"
    assert _put(learner, "a-1.gif", token, b"new") == 3
    assert [path.name for path in learner.recordings.iterdir()] == ["a-1.gif"]


def test_wrong_recordings_are_refused_and_counted(learner: Learner) -> None:
    token = learner.join()
    column = COUNTERS.index("recording_failures")
    before = learner.harness.store.counters[:, column].sum()
    for name in ("../a.gif", ".a.gif", "a.exe", ""):
        with pytest.raises(grpc.RpcError, match="name is ") as error:
            _put(learner, name, token, b"x")
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError, match="no lease") as error:
        _put(learner, "a.gif", "no-such-token", b"x")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    (file := learner.recordings).parent.mkdir(exist_ok=True)
    shutil.rmtree(file, ignore_errors=True)
    file.write_text("in the folder's place")
    with pytest.raises(grpc.RpcError, match="File exists") as error:
        _put(learner, "a.gif", token, b"x")
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    file.unlink()
    assert learner.harness.store.counters[:, column].sum() - before == 6
