"""Who may call what by the name in the certificate, and certificates that are renewed."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import trustme

from services.shared import config, rpc, tls, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from services.shared.generated.seedpod.replay.v1 import replay_pb2, replay_pb2_grpc
from services.shared.replay import Field, ReplayClient, ReplayError, SequenceLayout
from tests.certificates import write_certificate
from tests.integration.replay_server import ReplayServer
from tests.integration.test_serving import Learner

CLIENTS: dict[config.ClientRole, tuple[str, ...]] = {
    "actor": ("*.actor.ns.svc",),
    "learner": ("learner.ns.svc",),
}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def certificates(tmp_path: pathlib.Path, authority: trustme.CA) -> dict[str, config.TlsConfig]:
    return {
        name: write_certificate(tmp_path / name, authority, alternative)
        for name, alternative in (
            ("actor", "a.actor.ns.svc"),
            ("learner", "learner.ns.svc"),
            ("stranger", "learner.other.svc"),
        )
    }


def refusal(call: Any, request: Any) -> str:
    with pytest.raises(grpc.RpcError) as error:
        call(request, timeout=10)
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
    return str(error.value.details())


def test_only_actors_join_and_act(certificates: dict[str, config.TlsConfig]) -> None:
    server = certificates["learner"].model_copy(update={"clients": CLIENTS})
    with contextlib.closing(Learner(tls=server.model_dump())) as learner:
        join = inference_pb2.JoinRequest(
            api_version=wire.API_VERSION, environments_per_group=2, groups=1
        )
        for name, client in certificates.items():
            with rpc.channel(learner.transport.address, tls=client) as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                stub.GetStatus(inference_pb2.GetStatusRequest(), timeout=10, wait_for_ready=True)
                if name == "actor":
                    assert stub.Join(join, timeout=10).slots == [0, 1]
                    continue
                assert refusal(stub.Join, join).startswith(
                    "Join is for actors, whose certificates have one of the names"
                    " ['*.actor.ns.svc'] (tls.clients); this client's has ['127.0.0.1', 'learner."
                )
                with pytest.raises(grpc.RpcError, match="Act is for actors"):
                    next(stub.Act(iter([]), timeout=10))


def test_only_learners_call_replay(
    certificates: dict[str, config.TlsConfig], tmp_path: pathlib.Path
) -> None:
    served = certificates["learner"].model_copy(update={"clients": CLIENTS})
    server = ReplayServer(
        tmp_path / "replay", {}, client=certificates["learner"], tls=served.model_dump()
    )
    with contextlib.closing(server):
        server.start()
        assert server.status().items == 0
        for name in ("actor", "stranger"):
            with rpc.channel(server.address, tls=certificates[name]) as channel:
                stub = replay_pb2_grpc.ReplayServiceStub(channel)
                for method in ("Sample", "UpdatePriorities", "GetStatus", "Checkpoint"):
                    request = getattr(replay_pb2, f"{method}Request")()
                    assert f"{method} is for learners" in refusal(getattr(stub, method), request)
                for method in ("Insert", "StreamSamples"):
                    with pytest.raises(grpc.RpcError, match=f"{method} is for learners"):
                        next(getattr(stub, method)(iter([]), timeout=10))


def test_a_client_that_is_not_allowed_gives_up(
    certificates: dict[str, config.TlsConfig], tmp_path: pathlib.Path
) -> None:
    served = certificates["learner"].model_copy(update={"clients": CLIENTS})
    server = ReplayServer(
        tmp_path / "replay", {}, client=certificates["learner"], tls=served.model_dump()
    )
    layout = SequenceLayout((Field("x", "float32"),))
    with (
        contextlib.closing(server.start()),
        ReplayClient([server.address], layout, tls=certificates["actor"]) as client,
    ):
        writer = client.writer(0, 1)
        writer.append({"x": 0.0})

        def insert() -> None:
            writer.create_item(1, 1.0, timeout=20.0)
            client.flush(20.0)

        with pytest.raises(ReplayError, match="Insert is for learners"):
            insert()


class Echo:
    """A service of two methods over TLS, whose port outlives a restart."""

    def __init__(self, certificate: config.TlsConfig) -> None:
        self._certificate = certificate
        self._port = 0
        self._server: Any = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        async def unary(request: bytes, _: Any) -> bytes:
            return request

        async def stream(_: Any, context: Any) -> AsyncIterator[bytes]:
            while (message := await context.read()) is not grpc.aio.EOF:
                yield message

        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(unary),
            "Stream": grpc.stream_stream_rpc_method_handler(stream),
        }
        self._server = grpc.aio.server(options=rpc.server_options(5.0, reuse_port=False))
        handler = grpc.method_handlers_generic_handler("test.Echo", handlers)
        self._server.add_generic_rpc_handlers((handler,))
        self._port = rpc.add_port(self._server, self.address, self._certificate)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)


def test_a_client_takes_up_a_renewed_certificate(tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        authority = trustme.CA()
        service = write_certificate(tmp_path / "service", authority)
        client = write_certificate(tmp_path / "client", authority)
        echo = Echo(service)
        await echo.start()
        channel = rpc.aio_channel(echo.address, tls=client)
        unary = channel.unary_unary("/test.Echo/Unary")
        assert await unary(b"1", timeout=10) == b"1"
        stream = channel.stream_stream("/test.Echo/Stream")()
        await stream.write(b"2")
        assert await stream.read() == b"2"

        renewed = trustme.CA()
        for folder in ("service", "client"):
            write_certificate(tmp_path / folder, renewed)
        assert await unary(b"3", timeout=10) == b"3"
        # What was under way goes on over the old connection.
        await stream.write(b"4")
        assert await stream.read() == b"4"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF

        await echo.stop()
        await echo.start()
        assert await unary(b"5", timeout=10, wait_for_ready=True) == b"5"
        # Files that are away for a moment change nothing.
        (tmp_path / "client" / "tls.key").unlink()
        assert await unary(b"6", timeout=10) == b"6"
        await channel.close()
        await echo.stop()

    asyncio.run(run())


def test_files_that_are_missing_at_the_start_are_named(tmp_path: pathlib.Path) -> None:
    missing = write_certificate(tmp_path, trustme.CA())
    pathlib.Path(missing.key).unlink()
    for make in (tls.server_credentials, lambda t: rpc.channel("127.0.0.1:1", tls=t)):
        with pytest.raises(OSError, match=r"tls\.key"):
            make(missing)
