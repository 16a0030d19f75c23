"""Thousands of streams of light clients on one learner."""

from __future__ import annotations

import asyncio
import pathlib
import queue
import threading
import time

import grpc
import numpy as np
import psutil

from services.shared import rpc, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.chaos.environment import SPEC
from tests.chaos.outcome import Outcome
from tests.chaos.system import ChaosError, System

_STREAMS_PER_CONNECTION = 10
_STEPS = 5
_CONNECT_SECONDS = 60.0


def many(folder: pathlib.Path, streams: int) -> Outcome:
    """So many streams: connected within a minute, all served; one more is refused."""
    spare = 64  # some of it for the actor that starts the learner's training, and ends before
    system = System(folder, grace_seconds=120.0, max_slots=streams + spare)
    try:
        system.start(actors=1)
        system.scale(0)
        front_end = system.find("front_end")
        before = front_end.memory_info().rss
        clients = _Clients(system.address, streams, spare)
        connected, served = asyncio.run(clients.run(front_end))
        grown = (clients.rss - before) / streams
        if connected > _CONNECT_SECONDS:
            raise ChaosError(f"{streams} streams took {connected:.0f} s to connect")
        if clients.answers != streams * _STEPS:
            raise ChaosError(f"{clients.answers} answers, expected {streams * _STEPS}")
        note = (
            f"connected in {connected:.1f} s, {_STEPS} steps of each in {served:.1f} s,"
            f" {grown / 1024:.1f} KiB of the front end each, {clients.retries} starts repeated;"
            f" refused: {clients.refusal}"
        )
        return Outcome(f"{streams} streams", 1, 1, note=note)
    finally:
        system.kill()


class Probe:
    """One evaluation slot that asks for action after action.

    Attributes:
      seconds: How long each answer took.
    """

    def __init__(self, address: str) -> None:
        """Prepares; entering it joins, leaving it ends the stream."""
        self.seconds: list[float] = []
        self._channel = rpc.channel(address)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._requests: queue.SimpleQueue[inference_pb2.ActRequest | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ended = threading.Event()

    def __enter__(self) -> Probe:
        join = _join(1, inference_pb2.ACTOR_ROLE_EVALUATION)
        lease = self._stub.Join(join, timeout=60, wait_for_ready=True)
        self._requests.put(_request(1))
        metadata = ((rpc.LEASE_METADATA, lease.lease_token), (rpc.GROUP_METADATA, "0"))
        self._answers = self._stub.Act(iter(self._requests.get, None), metadata=metadata)
        next(self._answers)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        self._channel.close()

    def _run(self) -> None:
        sequence = 1
        while not self._ended.wait(0.005):
            sequence += 1
            asked = time.monotonic()
            self._requests.put(_request(sequence))
            next(self._answers)
            self.seconds.append(time.monotonic() - asked)
        self._requests.put(None)


class _Clients:
    """Light clients: ten groups of one environment each."""

    def __init__(self, address: str, streams: int, spare: int) -> None:
        self.answers = self.retries = 0
        self.refusal = ""
        self.rss = 0
        self._address = address
        self._streams = streams
        self._spare = spare
        self._all_connected = asyncio.Event()
        self._connected = 0

    async def run(self, front_end: psutil.Process) -> tuple[float, float]:
        """Seconds until all streams had their first answer, and until all had the last."""
        began = time.monotonic()
        count = self._streams // _STREAMS_PER_CONNECTION
        clients = [asyncio.ensure_future(self._client(i)) for i in range(count)]
        await asyncio.wait_for(self._all_connected.wait(), 4 * _CONNECT_SECONDS)
        connected = time.monotonic() - began
        await asyncio.gather(*clients)
        served = time.monotonic() - began - connected
        self.rss = front_end.memory_info().rss
        await self._refused()
        return connected, served

    async def _refused(self) -> None:
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            try:
                await stub.Join(_join(self._spare + 1), timeout=30)
            except grpc.aio.AioRpcError as error:
                self.refusal = f"{error.code().name}: {error.details()}"
        if not self.refusal.startswith("RESOURCE_EXHAUSTED"):
            raise ChaosError(f"one too many: {self.refusal or 'not refused'}")

    async def _client(self, number: int) -> None:
        async with rpc.aio_channel(self._address, 30.0) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            lease = await stub.Join(_join(_STREAMS_PER_CONNECTION), timeout=60, wait_for_ready=True)
            groups = range(_STREAMS_PER_CONNECTION)
            await asyncio.gather(*(self._group(stub, lease.lease_token, g) for g in groups))
            await self._all_connected.wait()

    async def _group(
        self, stub: inference_pb2_grpc.InferenceServiceStub, token: str, group: int
    ) -> None:
        metadata = ((rpc.LEASE_METADATA, token), (rpc.GROUP_METADATA, str(group)))
        while True:
            call = stub.Act(metadata=metadata)
            try:
                await self._exchange(call, 1)
                break
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, ChaosError):
                if await call.code() is grpc.StatusCode.NOT_FOUND:
                    raise
                self.retries += 1
                await asyncio.sleep(0.2)
        self._connected += 1
        if self._connected == self._streams:
            self._all_connected.set()
        await self._all_connected.wait()
        for sequence in range(2, _STEPS + 1):
            await self._exchange(call, sequence)

    async def _exchange(self, call: grpc.aio.StreamStreamCall, sequence: int) -> None:
        await call.write(_request(sequence))
        answer = await call.read()
        if answer is grpc.aio.EOF or answer.sequence != sequence:
            raise ChaosError(f"no answer to {sequence}: {answer}")
        self.answers += 1


def _request(sequence: int) -> inference_pb2.ActRequest:
    """Of a group of one environment whose episode never ends."""
    return inference_pb2.ActRequest(
        sequence=sequence,
        incarnation=np.uint32(1).tobytes(),
        step_type=bytes([0 if sequence == 1 else 1]),
        reward=np.float32(1).tobytes(),
        discount=np.float32(1).tobytes(),
        observation=np.zeros(2, np.float32).tobytes(),
    )


def _join(
    groups: int, role: inference_pb2.ActorRole = inference_pb2.ACTOR_ROLE_TRAINING
) -> inference_pb2.JoinRequest:
    return inference_pb2.JoinRequest(
        api_version=wire.API_VERSION,
        actor_name="light",
        environment=wire.environment_spec_to_proto(SPEC),
        environments_per_group=1,
        groups=groups,
        role=role,
    )
