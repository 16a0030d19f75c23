"""A front end: the process that speaks gRPC with the actors and copies rows into the step store.

The learner starts one or several (`learner.front_ends`); they share the port by SO_REUSEPORT.
It imports no TensorFlow. Steps: actor -> `ActStream` -> step store -> request queue -> learner,
and back by the answer queue. Join, opening and closing streams are the learner's decisions and
travel on the control socket.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import logging
import os
import pathlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import uvloop
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.learner import control, recordings
from services.learner.act_stream import ActStream, invalid
from services.learner.control import Message, Method
from services.learner.step_store import COUNTERS, StepStore, StoreLayout
from services.shared import config, processes, rpc, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.status import StatusError
from services.shared.tls import authorize
from services.shared.varint import MalformedMessage

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
# The learner answers a Join when its network is built, which the first Join sets off.
_CONTROL_TIMEOUT_SECONDS = {
    Method.JOIN: 300.0,
    Method.OPEN: 60.0,
    Method.STATUS: 30.0,
    Method.RECORDING: 30.0,
}
_STOP_GRACE_SECONDS = 2.0
_MAX_GROUP_DIGITS = 9
_ALIVE_SECONDS = 1.0
_TAKEN_OVER = "a newer stream has taken this group over"

RpcMethod = Callable[[Any, Any], Awaitable[Any]]

_log = logging.getLogger(__name__)


class FrontEnd:
    """The servicer and its connection to the learner."""

    def __init__(
        self,
        index: int,
        end: socket.socket,
        wake_fd: int,
        answer_fd: int,
        tls: config.TlsConfig | None,
    ) -> None:
        """Connects to the learner.

        Args:
          index: Which front end this is.
          end: The control socket.
          wake_fd: Eventfd that wakes the learner's inference loop.
          answer_fd: Eventfd by which the learner wakes this process.
          tls: The learner's certificate, and who may call.
        """
        self._tls = tls
        self._index = index
        self._control = end
        self._wake_fd = wake_fd
        self._wake_is_due = False
        self._answer_fd = answer_fd
        self._store: StepStore | None = None
        self._streams: dict[int, ActStream] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._identifiers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._outbox: collections.deque[Message] = collections.deque()
        self.learner_gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        loop.add_reader(end, self._receive)
        loop.add_reader(answer_fd, self._wake_streams)

    async def join(self, request: bytes, context: Any) -> bytes:
        """Join: the learner decides."""
        try:
            authorize(context, self._tls, "actor", "Join")
        except StatusError as error:
            await context.abort(error.code, error.message)
        answer = await self._call_or_abort(Method.JOIN, request, context, self._abandon)
        if context.time_remaining() == 0:  # its end is on its way to here
            self._abandon(answer)
        return answer

    async def get_status(self, request: bytes, context: Any) -> bytes:
        """GetStatus: the learner knows."""
        return await self._call_or_abort(Method.STATUS, request, context)

    async def act(self, _: object, context: Any) -> None:
        """Act: one stream for each group."""
        try:
            authorize(context, self._tls, "actor", "Act")
            stream = await self._open(context)
        except StatusError as error:
            await context.abort(error.code, error.message)
            return
        store = self._store
        assert store is not None
        counters = store.counters[self._index]
        counters[COUNTERS.index("streams")] += 1
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                await context.write(await self._step(stream, store, counters, message))
                if stream.finished:
                    return
        except StatusError as error:
            counters[COUNTERS.index("rejected")] += error.code is grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(error.code, error.message)
        except asyncio.CancelledError:
            if stream.is_current:
                raise
            await context.abort(grpc.StatusCode.ABORTED, _TAKEN_OVER)
        finally:
            counters[COUNTERS.index("streams")] -= 1
            self._close(stream)

    async def put_recording(self, _: object, context: Any) -> bytes:
        """PutRecording: the learner names the folder, the file is written here."""
        try:
            authorize(context, self._tls, "actor", "PutRecording")
            size = await self._receive_recording(context)
        except DecodeError as error:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"not a PutRecordingRequest: {error}"
            )
            raise
        except StatusError as error:
            self._count("recording_failures")
            _log.warning("a recording is not kept: %s", error.message)
            await context.abort(error.code, error.message)
            raise
        return bytes(inference_pb2.PutRecordingResponse(bytes=size).SerializeToString())

    async def _receive_recording(self, context: Any) -> int:
        message = await context.read()
        if message is grpc.aio.EOF:
            raise invalid("a recording without any message")
        first = inference_pb2.PutRecordingRequest.FromString(message)
        if not recordings.NAME.fullmatch(first.name):
            raise invalid(f"name is {first.name!r}, allowed: {recordings.NAME.pattern}")
        question = json.dumps({"lease": first.lease_token}).encode()
        answer = await self._answer(Method.RECORDING, question)
        folder = pathlib.Path(json.loads(answer)["folder"])
        try:
            with recordings.Arrival(folder, first.name) as arrival:
                await asyncio.to_thread(arrival.write, first.data)
                while (message := await context.read()) is not grpc.aio.EOF:
                    piece = inference_pb2.PutRecordingRequest.FromString(message)
                    await asyncio.to_thread(arrival.write, piece.data)
        except OSError as error:
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{folder}: {error}") from None
        if first.name.endswith(".gif"):  # not what is drawn of several recordings
            self._count("recordings")
        return arrival.size

    def _count(self, name: str) -> None:
        if self._store is not None:
            self._store.counters[self._index, COUNTERS.index(name)] += 1

    def endable(self, method: RpcMethod) -> RpcMethod:
        """Makes a method one that `end_calls` ends."""

        async def call(request: Any, context: Any) -> Any:
            task = asyncio.current_task()
            assert task is not None, "gRPC runs each call in a task"
            self._calls.add(task)
            try:
                return await method(request, context)
            except asyncio.CancelledError:
                if not self._stopping:
                    raise
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the learner is ending")
            finally:
                self._calls.discard(task)

        return call

    def end_calls(self) -> None:
        """Ends all calls; left to the server's stop, each would log a traceback."""
        self._stopping = True
        for task in self._calls:
            task.cancel()

    async def _step(
        self,
        stream: ActStream,
        store: StepStore,
        counters: npt.NDArray[np.float64],
        message: bytes,
    ) -> bytes:
        if not stream.is_current:
            raise StatusError(grpc.StatusCode.ABORTED, _TAKEN_OVER)
        try:
            request = wire.read_act_request(message)
        except MalformedMessage as error:
            raise invalid(f"not an ActRequest: {error}") from None
        counters[1] += 1
        counters[2] += len(message)
        if not stream.accept(request):
            counters[4] += 1
            return stream.answer()
        counters[5] += request.environment_cpu_seconds
        counters[6] += request.actor_cpu_seconds
        stream.answered.clear()
        store.requests[self._index].put(stream.group, stream.epoch)
        self._wake_learner()
        await stream.answered.wait()
        return stream.answer()

    def _wake_learner(self) -> None:
        """Wakes the inference loop, once for all requests of this turn of the event loop."""
        if not self._wake_is_due:
            self._wake_is_due = True
            asyncio.get_running_loop().call_soon(self._send_wake)

    def _send_wake(self) -> None:
        self._wake_is_due = False
        os.eventfd_write(self._wake_fd, 1)

    async def _open(self, context: Any) -> ActStream:
        metadata = dict(context.invocation_metadata() or ())
        lease = metadata.get(rpc.LEASE_METADATA)
        group = str(metadata.get(rpc.GROUP_METADATA, ""))
        if not lease or not group.isdecimal() or len(group) > _MAX_GROUP_DIGITS:
            raise invalid(
                f"metadata {rpc.LEASE_METADATA!r} and {rpc.GROUP_METADATA!r} (a number) must name"
                f" the lease and the group, given: {lease!r} and {group[:32]!r}"
            )
        question = json.dumps({"lease": lease, "group": int(group)}).encode()
        reply = json.loads(await self._answer(Method.OPEN, question, self._close_unwanted))
        assert self._store is not None, "the learner sends the store before it grants a lease"
        stream = ActStream(self._store, reply["group"], reply["epoch"], reply["slots"])
        self._streams[stream.group] = stream
        return stream

    def _close_unwanted(self, payload: bytes) -> None:
        """Gives a group back that was opened for a call that had ended meanwhile."""
        reply = json.loads(payload)
        self._send_close(reply["group"], reply["epoch"])

    def _abandon(self, payload: bytes) -> None:
        """Gives slots back that were leased for a Join that had ended meanwhile."""
        self._send(Message(0, Method.ABANDON, 0, payload))

    def _close(self, stream: ActStream) -> None:
        if self._streams.get(stream.group) is stream:
            del self._streams[stream.group]
        self._send_close(stream.group, stream.epoch)

    def _send_close(self, group: int, epoch: int) -> None:
        payload = json.dumps({"group": group, "epoch": epoch}).encode()
        self._send(Message(0, Method.CLOSE, 0, payload))

    async def _call_or_abort(
        self,
        method: Method,
        payload: bytes,
        context: Any,
        unwanted: Callable[[bytes], None] | None = None,
    ) -> bytes:
        try:
            if len(payload) > control.MAX_BYTES:
                raise invalid(
                    f"{method.name} has {len(payload)} bytes, allowed: {control.MAX_BYTES}"
                )
            return await self._answer(method, payload, unwanted)
        except StatusError as error:
            await context.abort(error.code, error.message)
            raise

    async def _answer(
        self, method: Method, payload: bytes, unwanted: Callable[[bytes], None] | None = None
    ) -> bytes:
        """Asks the learner and waits for its answer.

        Args:
          method: What the question is about.
          payload: The question.
          unwanted: Called with an answer that comes after the call was given up.

        Raises:
          StatusError: The learner's, or UNAVAILABLE if it does not answer in time.
        """
        identifier = next(self._identifiers) & 0xFFFFFFFF
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[identifier] = future
        self._send(Message(identifier, method, 0, payload))
        timeout = _CONTROL_TIMEOUT_SECONDS[method]

        def late(done: asyncio.Future[bytes]) -> None:
            if not done.cancelled() and done.exception() is None and unwanted is not None:
                unwanted(done.result())

        try:
            # Shielded: an answer that comes after the call was cancelled is still heard of.
            return await asyncio.wait_for(asyncio.shield(future), timeout)
        except TimeoutError:
            future.add_done_callback(late)
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE,
                f"the learner did not answer {method.name} within {timeout:.0f} s",
            ) from None
        except asyncio.CancelledError:
            future.add_done_callback(late)
            raise

    def _send(self, message: Message) -> None:
        """Sends to the learner, in order; what its socket cannot take now goes later."""
        self._outbox.append(message)
        if len(self._outbox) == 1:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._outbox:
                control.send(self._control, self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            loop.add_writer(self._control, self._flush)
            return
        except OSError:  # the learner is gone; `_receive` notices, too
            self._outbox.clear()
        loop.remove_writer(self._control)

    def _receive(self) -> None:
        try:
            received = control.receive(self._control)
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            asyncio.get_running_loop().remove_reader(self._control)
            self.learner_gone.set()
            return
        message, fds = received
        if message.method is Method.STORE:
            layout = StoreLayout.from_json(json.loads(message.payload))
            self._store = StepStore(layout, fds[0])
        elif message.method is Method.REVOKE:
            document = json.loads(message.payload)
            stream = self._streams.get(document["group"])
            if stream is not None and stream.epoch < document["epoch"]:
                stream.task.cancel()  # its client may never send anything again
        else:
            future = self._waiting.pop(message.identifier, None)
            if future is None or future.done():
                return
            if message.status == 0:
                future.set_result(message.payload)
            else:
                future.set_exception(StatusError(_status(message.status), message.payload.decode()))

    def _wake_streams(self) -> None:
        os.eventfd_read(self._answer_fd)
        if self._store is None:
            return
        for group, epoch in self._store.answers[self._index].take():
            stream = self._streams.get(group)
            if stream is not None and stream.epoch == epoch:
                stream.answered.set()

    async def report_alive(self) -> None:
        """Lets the learner know that this process answers, each second."""
        while True:
            self._send(Message(0, Method.ALIVE, 0, b""))
            await asyncio.sleep(_ALIVE_SECONDS)

    async def report_cpu(self) -> None:
        """Adds this process's CPU time to the store's count, each half second."""
        reported = 0.0
        while True:
            if self._store is not None:
                now = time.process_time()
                self._store.counters[self._index, 7] += now - reported
                reported = now
            await asyncio.sleep(0.5)


def _status(number: int) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == number)


async def _serve(arguments: argparse.Namespace) -> None:
    end = socket.socket(fileno=arguments.control_fd)
    tls = config.TlsConfig.model_validate_json(arguments.tls) if arguments.tls else None
    front_end = FrontEnd(arguments.index, end, arguments.wake_fd, arguments.answer_fd, tls)
    server = grpc.aio.server(
        options=rpc.server_options(arguments.keepalive_seconds, reuse_port=True)
    )
    handlers = {
        "Join": grpc.unary_unary_rpc_method_handler(front_end.endable(front_end.join)),
        "GetStatus": grpc.unary_unary_rpc_method_handler(front_end.endable(front_end.get_status)),
        "PutRecording": grpc.stream_unary_rpc_method_handler(
            front_end.endable(front_end.put_recording)
        ),
        "Act": grpc.stream_stream_rpc_method_handler(front_end.endable(front_end.act)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    for name in ("", SERVICE, rpc.LIVENESS):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(
        (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    rpc.add_port(server, arguments.address, tls)
    await server.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tasks = [loop.create_task(task()) for task in (front_end.report_cpu, front_end.report_alive)]
    ends = [loop.create_task(e.wait()) for e in (stop, front_end.learner_gone)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await health_servicer.enter_graceful_shutdown()
    front_end.end_calls()
    await server.stop(_STOP_GRACE_SECONDS)
    for task in (*tasks, *ends):
        task.cancel()


def main() -> None:
    """Runs a front end until SIGTERM or until the learner is gone."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--keepalive-seconds", type=float, required=True)
    parser.add_argument("--tls", default="", help="a TlsConfig as JSON; empty: no encryption")
    for name in ("control", "wake", "answer"):
        parser.add_argument(f"--{name}-fd", type=int, required=True)
    arguments = parser.parse_args()
    processes.die_with_parent()
    logging.basicConfig(
        level=logging.INFO, format=f"front end {arguments.index}: %(levelname)s %(message)s"
    )
    uvloop.run(_serve(arguments))


if __name__ == "__main__":
    main()
