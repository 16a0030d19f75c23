"""The replay service as a process of its own, for tests and benchmarks."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.local.ports import free_port
from services.shared import rpc
from services.shared.config import TlsConfig
from services.shared.generated.seedpod.replay.v1 import replay_pb2, replay_pb2_grpc


class ReplayServer:
    """Starts `python -m services.replay`; `kill` and `start` again keep port and directory.

    With `client`, a client's certificate, all calls are made as that client.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        table: dict[str, Any],
        client: TlsConfig | None = None,
        **settings: Any,
    ) -> None:
        self._client = client
        folder.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.directory = folder / "data"
        self.log_path = folder / "log"
        self._config = folder / "replay.yaml"
        document = {
            "address": self.address,
            "tables": {"sequences": table},
            "metrics_port": 0,
            "metrics_host": "127.0.0.1",
            "keepalive_seconds": 1.0,
            "seed": 0,
            **settings,
        }
        self._config.write_text(json.dumps({"replay": document}))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> ReplayServer:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.replay", "--child", "--experiment", self._config],
                stderr=log,
                stdout=log,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while self.health() != health_pb2.HealthCheckResponse.SERVING:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def wait_listening(self, seconds: float = 20.0) -> None:
        """Sooner than a channel, which waits between its attempts, would notice."""
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.005)

    def health(self, service: str = "") -> int | None:
        with rpc.channel(self.address, tls=self._client) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                request = health_pb2.HealthCheckRequest(service=service)
                return int(stub.Check(request, timeout=2, wait_for_ready=True).status)
            except grpc.RpcError:
                return None

    def stub(self) -> replay_pb2_grpc.ReplayServiceStub:
        return replay_pb2_grpc.ReplayServiceStub(rpc.channel(self.address, tls=self._client))

    def status(self) -> replay_pb2.TableStatus:
        status: replay_pb2.TableStatus = self.full_status().tables[0]
        return status

    def full_status(self) -> replay_pb2.GetStatusResponse:
        with rpc.channel(self.address, tls=self._client) as channel:
            stub = replay_pb2_grpc.ReplayServiceStub(channel)
            response: replay_pb2.GetStatusResponse = stub.GetStatus(
                replay_pb2.GetStatusRequest(), timeout=10, wait_for_ready=True
            )
            return response

    def metrics_port(self) -> int:
        return int(re.findall(r"metrics on port (\d+)", self.log())[-1])

    def log(self) -> str:
        return self.log_path.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; returns status and seconds."""
        assert self.process is not None
        started = time.monotonic()
        self.process.terminate()
        status = self.process.wait(15)
        return status, time.monotonic() - started

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
