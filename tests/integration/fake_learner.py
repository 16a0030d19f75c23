"""A learner without a network: real gRPC, random actions, and a memory of every request."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from services.shared import rpc, specs, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc

FIRST, MID, LAST, ABSENT = (int(step_type) for step_type in specs.StepType)


@dataclasses.dataclass
class Record:
    """One request, decoded: arrays [k, ...]."""

    stream: int
    sequence: int
    incarnation: npt.NDArray[np.uint32]
    step_type: npt.NDArray[np.uint8]
    reward: npt.NDArray[np.float32]
    discount: npt.NDArray[np.float32]
    observation: tuple[npt.NDArray[np.generic], ...]
    environment_cpu_seconds: float
    actor_cpu_seconds: float


@dataclasses.dataclass
class FakeLease:
    request: inference_pb2.JoinRequest
    spec: specs.EnvironmentSpec
    k: int


class FakeLearner(inference_pb2_grpc.InferenceServiceServicer):
    """Serves at `address`; `stop` and `start` again keep the leases unless they are cleared."""

    def __init__(self, pace_seconds: float = 0.002) -> None:
        self.records: dict[tuple[str, int], list[Record]] = collections.defaultdict(list)
        self.leases: dict[str, FakeLease] = {}
        self.joins: list[inference_pb2.JoinRequest] = []
        self.refuse_join: tuple[grpc.StatusCode, str] | None = None
        self.refuse_act: tuple[grpc.StatusCode, str] | None = None
        self.is_finished = False
        self.is_silent = threading.Event()
        self._pace_seconds = pace_seconds
        self._open: list[tuple[str, int]] = []
        self._streams = itertools.count()
        self._slots = itertools.count()
        self._tokens = itertools.count(1)
        self._port = 0
        self._server: Any = None
        self._random = np.random.default_rng(0)

    @property
    def address(self) -> str:
        return f"localhost:{self._port}"

    def start(self) -> None:
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(64), options=rpc.server_options(5.0, False)
        )
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port(f"localhost:{self._port}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()

    def wait_for(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"nothing after {seconds} s: {self.summary()}"
            time.sleep(0.02)

    def wait_for_records(self, count: int, token: str = "") -> None:
        """Waits until each group (of one lease) has sent so many further records."""

        def lengths() -> dict[tuple[str, int], int]:
            items = list(self.records.items())
            return {key: len(records) for key, records in items if token in ("", key[0])}

        before = lengths()
        self.wait_for(
            lambda: (
                # A group that has sent nothing yet is not among them.
                len(lengths()) >= max((join.groups for join in self.joins), default=1)
                and all(n >= before.get(key, 0) + count for key, n in lengths().items())
            )
        )

    def summary(self) -> str:
        lengths = {key: len(records) for key, records in list(self.records.items())}
        return f"joins {len(self.joins)}, records {lengths}"

    @property
    def live_slots(self) -> int:
        """Of the leases that have a stream."""
        tokens = {token for token, group in list(self._open)}
        return sum(self.leases[t].k * self.leases[t].request.groups for t in tokens)

    def GetStatus(  # noqa: N802
        self, request: inference_pb2.GetStatusRequest, context: Any
    ) -> inference_pb2.GetStatusResponse:
        live = self.live_slots
        return inference_pb2.GetStatusResponse(live_slots=live, leased_slots=live)

    def Join(self, request: inference_pb2.JoinRequest, context: Any) -> inference_pb2.JoinResponse:  # noqa: N802
        self.joins.append(request)
        if self.refuse_join is not None:
            context.abort(*self.refuse_join)
        if self.is_finished:
            return inference_pb2.JoinResponse(finished=True)
        if request.lease_token and request.lease_token not in self.leases:
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown lease")
        spec = wire.environment_spec_from_proto(request.environment)
        k = request.environments_per_group * spec.agents
        token = request.lease_token or f"lease {next(self._tokens)}"
        self.leases[token] = FakeLease(request, spec, k)
        for group in range(request.groups):
            self.records.pop((token, group), None)
        return inference_pb2.JoinResponse(
            lease_token=token,
            slots=[next(self._slots) for _ in range(request.groups * k)],
            observation_bytes=wire.ObservationLayout(spec.observation, k).total_bytes,
            action_bytes=k * spec.action.size * 4,
            lease_grace_seconds=30.0,
        )

    def Act(  # noqa: N802
        self, requests: Iterator[inference_pb2.ActRequest], context: Any
    ) -> Iterator[inference_pb2.ActResponse]:
        metadata = dict(context.invocation_metadata())
        token, group = metadata[rpc.LEASE_METADATA], int(metadata[rpc.GROUP_METADATA])
        stream = next(self._streams)
        self._open.append((token, group))
        context.add_callback(lambda: self._open.remove((token, group)))
        for request in requests:
            lease = self.leases.get(token)
            if lease is None:
                context.abort(grpc.StatusCode.NOT_FOUND, "unknown lease")
                return
            if self.refuse_act is not None:
                (code, text), self.refuse_act = self.refuse_act, None
                context.abort(code, text)
            self.records[token, group].append(_decode(stream, request, lease))
            while self.is_silent.is_set() and context.is_active():
                time.sleep(0.01)
            time.sleep(self._pace_seconds)
            yield inference_pb2.ActResponse(
                sequence=request.sequence, action=self._act(lease), finished=self.is_finished
            )

    def _act(self, lease: FakeLease) -> bytes:
        action = lease.spec.action
        if isinstance(action, specs.DiscreteActionSpec):
            choices = self._random.random((lease.k, action.size)) * action.num_values
            return choices.astype(np.int32).tobytes()
        return self._random.uniform(-1, 1, (lease.k, action.size)).astype(np.float32).tobytes()


def _decode(stream: int, request: inference_pb2.ActRequest, lease: FakeLease) -> Record:
    layout = wire.ObservationLayout(lease.spec.observation, lease.k)
    assert len(request.observation) == layout.total_bytes
    return Record(
        stream,
        request.sequence,
        np.frombuffer(request.incarnation, np.uint32),
        np.frombuffer(request.step_type, np.uint8),
        np.frombuffer(request.reward, np.float32),
        np.frombuffer(request.discount, np.float32),
        layout.views(request.observation),
        request.environment_cpu_seconds,
        request.actor_cpu_seconds,
    )


def check_rows(records: list[Record]) -> None:
    """What must hold for every group's records, whatever happened to its environments."""
    assert [r.sequence for r in records] == list(range(1, len(records) + 1))
    for row in range(len(records[0].step_type)):
        before, incarnation = ABSENT, 0
        for record in records:
            now = int(record.step_type[row])
            if now == ABSENT:
                before = now
                continue
            if record.incarnation[row] != incarnation:
                assert record.incarnation[row] > incarnation
                assert now == FIRST
            else:
                assert now in ({FIRST} if before == LAST else {MID, LAST}), (row, record)
                assert before != ABSENT
            if now == FIRST:
                assert record.reward[row] == 0
            assert record.discount[row] == 1 or now == LAST
            assert all(np.isfinite(block[row]).all() for block in record.observation)
            before, incarnation = now, int(record.incarnation[row])


if __name__ == "__main__":  # in a process of its own, which can be stopped
    _learner = FakeLearner()
    _learner.start()
    print(_learner.address, flush=True)
    threading.Event().wait()
