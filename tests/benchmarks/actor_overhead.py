"""What the actor itself costs: CPU microseconds per environment step with an idle environment.

Run it by hand: `python -m tests.benchmarks.actor_overhead [k ...]`. A worker steps environments
that do nothing, against a server in this process that answers at once.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import psutil

from services.shared import rpc, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc

_SECONDS = 6.0


class _Echo(inference_pb2_grpc.InferenceServiceServicer):
    """Answers every request with action 0."""

    def __init__(self) -> None:
        self.messages = 0
        self._action = b""

    async def Join(  # noqa: N802
        self, request: inference_pb2.JoinRequest, context: Any
    ) -> inference_pb2.JoinResponse:
        spec = wire.environment_spec_from_proto(request.environment)
        k = request.environments_per_group * spec.agents
        self._action = bytes(4 * k * spec.action.size)
        return inference_pb2.JoinResponse(
            lease_token="lease",
            slots=range(request.groups * k),
            observation_bytes=wire.ObservationLayout(spec.observation, k).total_bytes,
            action_bytes=len(self._action),
        )

    async def Act(  # noqa: N802
        self, requests: AsyncIterator[inference_pb2.ActRequest], context: Any
    ) -> AsyncIterator[inference_pb2.ActResponse]:
        async for request in requests:
            self.messages += 1
            yield inference_pb2.ActResponse(sequence=request.sequence, action=self._action)


def _cpu_seconds(worker: psutil.Process) -> float:
    times = worker.cpu_times()
    return float(times.user + times.system)


async def _measure(k: int, environment: str) -> None:
    server = grpc.aio.server(options=rpc.server_options(5.0, False))
    echo = _Echo()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(echo, server)
    port = server.add_insecure_port("localhost:0")
    await server.start()
    with tempfile.TemporaryDirectory() as folder:
        experiment = pathlib.Path(folder) / "experiment.yaml"
        actor = {
            "environment": environment,
            "learner_address": f"localhost:{port}",
            "workers": 1,
            "groups": 2,
            "environments_per_group": k,
        }
        experiment.write_text(json.dumps({"actor": actor}))
        command = [sys.executable, "-m", "services.actor", "--experiment", str(experiment)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while echo.messages < 200:
            await asyncio.sleep(0.1)
        (worker,) = psutil.Process(process.pid).children()
        messages, cpu = echo.messages, _cpu_seconds(worker)
        await asyncio.sleep(_SECONDS)
        messages, cpu = echo.messages - messages, _cpu_seconds(worker) - cpu
        process.terminate()
        process.wait()
    await server.stop(None)
    per_message = cpu / messages * 1e6
    print(
        f"k={k:4d}: {per_message:6.1f} us per message, {per_message / k:6.2f} us per step,"
        f" {k * messages / _SECONDS:9.0f} steps/s, {k * messages / cpu:9.0f} steps per CPU-second"
    )


def main() -> None:
    """Measures the group sizes on the command line; a name changes the environment."""
    names = [a for a in sys.argv[1:] if not a.isdigit()]
    environment = names[0] if names else "tests.integration.actor_environments:noop"
    for k in [int(a) for a in sys.argv[1:] if a.isdigit()] or [8, 32, 128]:
        asyncio.run(_measure(k, environment))


if __name__ == "__main__":
    main()
