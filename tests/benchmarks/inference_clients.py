"""Light clients for `bench_inference`: groups whose environments cost nothing.

Each request is the same bytes but for its sequence number, so that what is measured is gRPC, and
the learner.
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
# Latencies that are kept of each process, the newest.
KEPT = 1 << 16


def run(
    address: str, spec: EnvironmentSpec, groups: int, k: int, answers: Any, latencies: Any
) -> None:
    """Runs groups of k environments until it is killed; the body of a process.

    Args:
      address: The learner's.
      spec: What the environments look like.
      groups: Each has one request under way.
      k: Environments of a group.
      answers: Shared int64, counts answers.
      latencies: Shared float64 [KEPT], a ring of the seconds that they took.
    """
    processes.die_with_parent()
    asyncio.run(_run(address, spec, groups, k, answers, np.frombuffer(latencies)))


async def _run(
    address: str, spec: EnvironmentSpec, groups: int, k: int, answers: Any, latencies: Any
) -> None:
    async with rpc.aio_channel(address, 30.0) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        lease = await stub.Join(
            inference_pb2.JoinRequest(
                api_version=wire.API_VERSION,
                actor_name="light",
                environment=wire.environment_spec_to_proto(spec),
                environments_per_group=k,
                groups=groups,
            ),
            timeout=120,
            wait_for_ready=True,
        )
        await asyncio.gather(
            *(
                _group(channel, lease.lease_token, group, spec, k, answers, latencies)
                for group in range(groups)
            )
        )


async def _group(
    channel: Any,
    token: str,
    group: int,
    spec: EnvironmentSpec,
    k: int,
    answers: Any,
    latencies: Any,
) -> None:
    # Bytes in, bytes out: generated code's share is the actor's affair.
    act = channel.stream_stream(_ACT)
    call = act(metadata=((rpc.LEASE_METADATA, token), (rpc.GROUP_METADATA, str(group))))
    rest = _rest(spec, k, StepType.FIRST)
    sequence = 0
    while True:
        sequence += 1
        began = time.perf_counter()
        await call.write(_SEQUENCE_TAG + varint.write(sequence) + rest)
        if await call.read() is grpc.aio.EOF:
            raise RuntimeError(f"the stream ended: {await call.details()}")
        latencies[answers.value % KEPT] = time.perf_counter() - began
        answers.value += 1
        if sequence == 1:
            rest = _rest(spec, k, StepType.MID)


def _rest(spec: EnvironmentSpec, k: int, step_type: StepType) -> bytes:
    """A request without its sequence number."""
    random = np.random.default_rng(0)
    size = wire.ObservationLayout(spec.observation, k).total_bytes
    # Small floats or arbitrary bits.
    request = inference_pb2.ActRequest(
        incarnation=np.ones(k, np.uint32).tobytes(),
        step_type=np.full(k, int(step_type), np.uint8).tobytes(),
        reward=np.zeros(k, np.float32).tobytes(),
        discount=np.ones(k, np.float32).tobytes(),
        observation=(random.integers(0, 2, size // 4).astype(np.float32).tobytes()),
    )
    return bytes(request.SerializeToString())
