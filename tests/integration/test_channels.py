"""Channels to servers that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import grpc
import pytest

from services.local import launcher
from services.shared import rpc
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.integration.fake_learner import FakeLearner

# HTTP/2 frames: 24 bits of length, type, flags, 32 bits of stream, payload.
_SETTINGS = bytes.fromhex("000000 04 00 00000000")
# Last stream 2^31 - 1, no error: the server is ending and takes nothing more.
_GOAWAY = bytes.fromhex("000008 07 00 00000000 7fffffff 00000000")


@pytest.fixture
def ending_server() -> Iterator[str]:
    """Says that it is ending in the same breath in which it greets, to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = contextlib.ExitStack()

        def serve() -> None:
            with connections:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    connection.sendall(_SETTINGS + _GOAWAY)
                    connections.enter_context(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_call_to_a_server_that_is_ending_fails_and_is_not_tried_again(
    ending_server: str,
) -> None:
    request = inference_pb2.GetStatusRequest()

    async def call_from_loop() -> grpc.StatusCode:
        async with rpc.aio_channel(ending_server) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as error:
                await stub.GetStatus(request, timeout=0.5)
            return error.value.code()

    with rpc.channel(ending_server) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        # The second call aborted the process.
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as error:
                stub.GetStatus(request, timeout=0.5)
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert asyncio.run(call_from_loop()) is grpc.StatusCode.UNAVAILABLE


def test_a_learner_that_has_come_is_seen_at_once() -> None:
    learner = FakeLearner()
    learner.start()
    learner.stop()
    for _ in range(3):
        assert launcher.learner_status(learner.address, None) is None
    learner.start()
    try:
        assert launcher.learner_status(learner.address, None) is not None
    finally:
        learner.stop()
