"""The learner's face to actors that hold the policy: takes unrolls, hands out parameters.

A gRPC server in a thread of the learner's process: unrolls come rarely and are large, so nothing
is gained by processes of their own as for `Act`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
import uvloop
from google.protobuf.message import DecodeError, Message

from services.learner import trajectories
from services.learner.statistics import Statistics
from services.learner.unroll_queue import Desk
from services.learner.unrolls import RecordBatch
from services.shared import rpc, wire
from services.shared.config import LearnerConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.generated.seedpod.trajectory.v1 import trajectory_pb2
from services.shared.status import StatusError
from services.shared.tls import authorize

SERVICE = trajectory_pb2.DESCRIPTOR.services_by_name["TrajectoryService"].full_name
_STOP_GRACE_SECONDS = 2.0
_START_SECONDS = 30.0
# How often a message that finds no room looks whether the learner is ending.
_ROOM_SECONDS = 0.5
_MAX_VERSION_CHARACTERS = 256
_Message = TypeVar("_Message", bound=Message)
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _Actor:
    """A registered actor; it outlives its streams."""

    name: str
    slots: int
    sequence: int = 0
    stream: asyncio.Task[Any] | None = None


class TrajectoryServer:
    """The servicer and its server.

    Attributes:
      environment_cpu_seconds: That actors told of.
      actor_cpu_seconds: The same.
      received_bytes: Of messages with unrolls.
      parameter_bytes: Sent.
      rejected: Messages that break the contract.
    """

    def __init__(
        self,
        config: LearnerConfig,
        check: Callable[[inference_pb2.JoinRequest], Desk],
        statistics: Statistics,
    ) -> None:
        """Prepares; `start` claims the port.

        Args:
          config: The learner's settings.
          check: Called with what an actor's environments look like; raises StatusError to refuse
            them. It may take long (the first one makes the learner build its network).
          statistics: Counts episodes.
        """
        self._config = config
        self._check = check
        self._statistics = statistics
        self._desk: Desk | None = None
        self._actors: dict[int, _Actor] = {}
        self._finished = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._room = asyncio.Event()
        self._started = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="trajectories", daemon=True)
        self.environment_cpu_seconds = 0.0
        self.actor_cpu_seconds = 0.0
        self.received_bytes = 0
        self.parameter_bytes = 0
        self.rejected = 0

    def start(self) -> None:
        """Serves.

        Raises:
          OSError: The port is taken.
        """
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise OSError(f"the trajectory server did not start within {_START_SECONDS:.0f} s")
        if self._error is not None:
            raise OSError(f"learner.trajectory_address: {self._error}")

    def finish(self) -> None:
        """Tells all actors, with their next answer, that training is over."""
        self._finished = True

    def stop(self) -> None:
        """Ends all calls and the thread."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout=_STOP_GRACE_SECONDS + 5)

    @property
    def live_actors(self) -> int:
        """Actors that have a stream open; any thread may ask."""
        return sum(actor.stream is not None for actor in list(self._actors.values()))

    @property
    def live_slots(self) -> int:
        """Their slots."""
        return sum(a.slots for a in list(self._actors.values()) if a.stream is not None)

    async def register(self, data: bytes, context: Any) -> bytes:
        """Register, see the proto."""
        try:
            authorize(context, self._config.tls, "actor", "Register")
            response = await self._register(_parse(trajectory_pb2.RegisterRequest, data))
            return bytes(response.SerializeToString())
        except StatusError as error:
            await context.abort(error.code, error.message)
            raise

    async def get_parameters(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """GetParameters, see the proto."""
        try:
            authorize(context, self._config.tls, "actor", "GetParameters")
            request = _parse(trajectory_pb2.GetParametersRequest, data)
            if self._desk is None:
                raise StatusError(grpc.StatusCode.NOT_FOUND, "nobody has registered yet")
        except StatusError as error:
            await context.abort(error.code, error.message)
            raise
        version, parameters = self._desk.board.newest
        if request.version == version:
            yield trajectory_pb2.GetParametersResponse(version=version).SerializeToString()
            return
        for at in range(0, len(parameters), trajectories.PIECE_BYTES):
            piece = parameters[at : at + trajectories.PIECE_BYTES]
            self.parameter_bytes += len(piece)
            response = trajectory_pb2.GetParametersResponse(version=version, data=piece)
            yield response.SerializeToString()

    async def put_unrolls(self, _: object, context: Any) -> None:
        """PutUnrolls, see the proto."""
        actor: _Actor | None = None
        task = asyncio.current_task()
        try:
            authorize(context, self._config.tls, "actor", "PutUnrolls")
            while (data := await context.read()) is not grpc.aio.EOF:
                message = _parse(trajectory_pb2.PutUnrollsRequest, data)
                self.received_bytes += len(data)
                if actor is None:
                    actor = self._find(message.actor_id)
                    if actor.stream is not None:
                        actor.stream.cancel()
                    actor.stream = task
                answer = await self._take(actor, message)
                await context.write(answer.SerializeToString())
        except StatusError as error:
            self.rejected += error.code is grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(error.code, error.message)
        except asyncio.CancelledError:
            if actor is None or actor.stream is task:
                raise
            await context.abort(
                grpc.StatusCode.ABORTED, "a newer stream of this actor has taken over"
            )
        finally:
            if actor is not None and actor.stream is task:
                actor.stream = None

    async def _register(self, request: Any) -> trajectory_pb2.RegisterResponse:
        if self._finished:
            return trajectory_pb2.RegisterResponse(finished=True)
        if request.api_version != trajectories.API_VERSION:
            raise _unfit(
                f"the actor speaks {request.api_version[:_MAX_VERSION_CHARACTERS]!r}, this learner"
                f" {trajectories.API_VERSION!r}"
            )
        if request.slots < 1:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT, f"slots is {request.slots}, allowed: 1 or more"
            )
        join = inference_pb2.JoinRequest(
            api_version=wire.API_VERSION,
            actor_name=request.actor_name,
            environment=request.environment,
            environment_name=request.environment_name,
            environments_per_group=max(1, request.slots // max(1, request.environment.agents)),
            groups=1,
        )
        self._desk = await asyncio.to_thread(self._check, join)
        self._desk.queue.on_room = self._signal_room
        length = self._desk.layout.unroll_length
        if request.unroll_length != length:
            raise _unfit(
                f"the actor's unrolls have {request.unroll_length} transitions, this learner's"
                f" {length} (learner.unroll_length)"
            )
        theirs, ours = list(request.parameters), self._desk.board.specs
        if theirs != ours:
            wrong = next((p for p in zip(theirs, ours, strict=False) if p[0] != p[1]), None)
            raise _unfit(
                f"the actor's network has {len(theirs)} arrays, this learner's {len(ours)}"
                if wrong is None
                else f"the actor's network has {_describe(wrong[0])} where this learner's has"
                f" {_describe(wrong[1])}"
            )
        for actor_id, actor in list(self._actors.items()):  # its predecessors
            if actor.name == request.actor_name and actor.stream is None:
                del self._actors[actor_id]
        self._actors[request.actor_id] = _Actor(request.actor_name, request.slots)
        _log.info("%s sends unrolls of %d slots", request.actor_name, request.slots)
        return trajectory_pb2.RegisterResponse()

    def _find(self, actor_id: int) -> _Actor:
        actor = self._actors.get(actor_id)
        if actor is None:
            raise StatusError(
                grpc.StatusCode.NOT_FOUND,
                f"no actor {actor_id} is registered with this learner; register first",
            )
        return actor

    async def _take(self, actor: _Actor, message: Any) -> trajectory_pb2.PutUnrollsResponse:
        assert self._desk is not None, "an actor has registered"
        queue, board = self._desk.queue, self._desk.board
        if message.sequence != actor.sequence:
            if message.sequence != actor.sequence + 1:
                raise StatusError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"sequence is {message.sequence}, allowed: {actor.sequence} or"
                    f" {actor.sequence + 1}",
                )
            _check_account(message)
            batch = trajectories.decode(self._desk.layout, message)
            began = time.monotonic()
            while not (queue.has_room or self._finished):
                self._room.clear()
                if not queue.has_room:
                    await _wait(self._room, _ROOM_SECONDS)
            self._statistics.observe_busy("backlog", time.monotonic() - began)
            # Another stream of the actor may have taken it meanwhile: that this one was cancelled
            # gets lost if there is room in the same moment (asyncio.wait_for of Python 3.11).
            if message.sequence == actor.sequence + 1:
                self._keep(actor, message, batch)
        return trajectory_pb2.PutUnrollsResponse(
            sequence=actor.sequence, version=board.newest[0], finished=self._finished
        )

    def _keep(self, actor: _Actor, message: Any, batch: RecordBatch) -> None:
        """Without a pause: another stream of the actor must not see half of it."""
        assert self._desk is not None, "an actor has registered"
        actor.sequence = message.sequence
        self._desk.queue.put(batch)
        self.environment_cpu_seconds += message.environment_cpu_seconds
        self.actor_cpu_seconds += message.actor_cpu_seconds
        for episode in message.episodes:
            self._statistics.add_episode(episode.episode_return, episode.length)

    def _signal_room(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._room.set)

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except Exception as error:  # `start` tells of it, if it is still waiting
            self._error = error
            if self._started.is_set():
                _log.exception("the trajectory server failed")
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server(
            options=rpc.server_options(self._config.keepalive_seconds, reuse_port=False)
        )
        # Without gRPC's own decoding, which answers what is no message with INTERNAL.
        handlers = {
            "Register": grpc.unary_unary_rpc_method_handler(self.register),
            "GetParameters": grpc.unary_stream_rpc_method_handler(self.get_parameters),
            "PutUnrolls": grpc.stream_stream_rpc_method_handler(self.put_unrolls),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        rpc.add_port(server, self._config.trajectory_address, self._config.tls)
        await server.start()
        self._started.set()
        _log.info("taking unrolls on %s", self._config.trajectory_address)
        await self._stopping.wait()
        await server.stop(_STOP_GRACE_SECONDS)


def _parse(kind: type[_Message], data: bytes) -> _Message:
    message: _Message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT, f"not a {kind.__name__}: {error}"
        ) from None
    return message


def _check_account(message: trajectory_pb2.PutUnrollsRequest) -> None:
    seconds = (message.environment_cpu_seconds, message.actor_cpu_seconds)
    if not all(0 <= value < math.inf for value in seconds):
        raise StatusError(
            grpc.StatusCode.INVALID_ARGUMENT, f"CPU seconds are {seconds}, allowed: 0 or more"
        )
    for episode in message.episodes:
        if not math.isfinite(episode.episode_return) or episode.length < 0:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"an episode has return {episode.episode_return} and length {episode.length},"
                " allowed: finite ones, and lengths of 0 or more",
            )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _describe(spec: Any) -> str:
    return f"{spec.name!r} {list(spec.shape)}"


def _unfit(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.FAILED_PRECONDITION, message)
