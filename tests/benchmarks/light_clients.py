"""Light clients of `bench_inference` and `bench_scale`: many streams, idle environments.

A request is the same bytes each time but for its sequence number.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio
import numpy as np

from services.shared import processes, rpc, varint, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from services.shared.specs import EnvironmentSpec, StepType

_ACT = "/seedpod.inference.v1.InferenceService/Act"
_SEQUENCE_TAG = b"\x08"
_STREAMS_PER_CONNECTION = 10
_JOIN_SECONDS = 120.0
_ANSWER_SECONDS = 60.0
_RETRY_SECONDS = 0.2
# Latencies that are kept of each process, the newest.
KEPT = 1 << 16


class Clients:
    """The streams of one process."""

    def __init__(
        self,
        address: str,
        spec: EnvironmentSpec,
        streams: int,
        k: int,
        answers: Any,
        served: Any,
        latencies: Any = None,
    ) -> None:
        """Prepares.

        Args:
          address: The learner's.
          spec: What the environments look like.
          streams: How many; each is a group with one request under way.
          k: Environments of a group.
          answers: Shared int64, counts answers.
          served: Shared int64, counts streams that have had an answer.
          latencies: Shared float64 [KEPT], a ring of the seconds that answers took.
        """
        self._address = address
        self._spec = spec
        self._streams = streams
        self._k = k
        self._answers = answers
        self._served = served
        self._latencies = np.zeros(KEPT) if latencies is None else np.frombuffer(latencies)
        self._first, self._next = (self._rest(t) for t in (StepType.FIRST, StepType.MID))

    async def run(self) -> None:
        """Asks for actions without end."""
        sizes = [
            min(_STREAMS_PER_CONNECTION, self._streams - at)
            for at in range(0, self._streams, _STREAMS_PER_CONNECTION)
        ]
        await asyncio.gather(*(self._connection(size) for size in sizes))

    async def _connection(self, groups: int) -> None:
        async with rpc.aio_channel(self._address, 30.0) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            request = inference_pb2.JoinRequest(
                api_version=wire.API_VERSION,
                actor_name="light",
                environment=wire.environment_spec_to_proto(self._spec),
                environments_per_group=self._k,
                groups=groups,
            )
            lease = await stub.Join(request, timeout=_JOIN_SECONDS, wait_for_ready=True)
            await asyncio.gather(
                *(self._stream(channel, lease.lease_token, group) for group in range(groups))
            )

    async def _stream(self, channel: Any, token: str, group: int) -> None:
        # Bytes in, bytes out: what generated code costs is the actors' affair.
        act = channel.stream_stream(_ACT)
        metadata = ((rpc.LEASE_METADATA, token), (rpc.GROUP_METADATA, str(group)))
        call = act(metadata=metadata)
        while not await self._ask(call, 1, self._first):
            # Of hundreds that start at once some fail; an actor starts those again, too.
            if await call.code() is grpc.StatusCode.NOT_FOUND:
                raise RuntimeError(f"group {group} has lost its lease: {await call.details()}")
            await asyncio.sleep(_RETRY_SECONDS)
            call = act(metadata=metadata)
        self._served.value += 1
        sequence = 2
        while await self._ask(call, sequence, self._next):
            sequence += 1
        raise RuntimeError(f"stream of group {group} ended: {await call.details()}")

    async def _ask(self, call: Any, sequence: int, rest: bytes) -> bool:
        """Sends a request and waits for its answer; False if the stream has ended."""
        began = time.perf_counter()
        try:
            await call.write(_SEQUENCE_TAG + varint.write(sequence) + rest)
            answer = await asyncio.wait_for(call.read(), _ANSWER_SECONDS)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False
        if answer is grpc.aio.EOF:
            return False
        self._latencies[self._answers.value % KEPT] = time.perf_counter() - began
        self._answers.value += 1
        return True

    def _rest(self, step_type: StepType) -> bytes:
        """A request without its sequence number."""
        k = self._k
        request = inference_pb2.ActRequest(
            incarnation=np.ones(k, np.uint32).tobytes(),
            step_type=np.full(k, int(step_type), np.uint8).tobytes(),
            reward=np.zeros(k, np.float32).tobytes(),
            discount=np.ones(k, np.float32).tobytes(),
            observation=bytes(wire.ObservationLayout(self._spec.observation, k).total_bytes),
        )
        return bytes(request.SerializeToString())


def run(*arguments: Any) -> None:
    """The body of a process; see `Clients`."""
    processes.die_with_parent()
    asyncio.run(Clients(*arguments).run())
