"""The learner as a worker sees it: one lease, and one stream for each group.

The pilot calls `lease` and `exchange`. Both wait for as long as it takes, visibly, and end
early only when training is finished (`Finished`), the lease is lost (`LeaseLost`) or there is no
point in going on (`Refused`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from services.actor.learners import Learners
from services.actor.waiting import Waiting
from services.shared import rpc
from services.shared.config import ActorConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc

if TYPE_CHECKING:
    from services.actor.pictures.camera import Recorded

# The first Join waits for the network to be built; a learner that is away is noticed by keepalive
# long before.
_JOIN_TIMEOUT_SECONDS = 300.0
# With several learners it waits for each one's first actor, too.
_JOIN_ONE_OF_SEVERAL_SECONDS = 30.0
_RECORDING_TIMEOUT_SECONDS = 60.0
_PIECE_BYTES = 1 << 18

_log = logging.getLogger(__name__)

_FATAL = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
# Another stream of the lease would only be refused or fight for the group: a new lease is needed.
_LEASE_IS_LOST = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ABORTED}


class Finished(Exception):
    """Training is over."""


class Refused(Exception):
    """The learner will never take what this actor offers; the message is the learner's."""


class LeaseLost(Exception):
    """The groups have to begin anew under another lease."""


@dataclasses.dataclass(eq=False)
class Membership:
    """What is known about the learner; it outlives the event loop and its connection.

    Attributes:
      lease: The lease that the groups use; None before Join and after its loss.
      token: To ask for the same slots again; empty if unknown.
      address: Of the learner that the token is from; empty if unknown.
      connected: Groups whose stream has answered since it was opened.
      reconnects: Streams and leases lost so far.
      waiting: For the learner.
    """

    lease: inference_pb2.JoinResponse | None = None
    token: str = ""
    address: str = ""
    connected: set[int] = dataclasses.field(default_factory=set)
    reconnects: int = 0
    waiting: Waiting = dataclasses.field(default_factory=Waiting)


class LearnerClient:
    """One connection to one learner at a time; lives in one event loop.

    grpc.aio because it was measured: a message costs the worker 180 to 220 microseconds of
    CPU time, with the synchronous API 230 to 520, whose threads also hold up each other's sends.
    """

    def __init__(
        self,
        config: ActorConfig,
        worker: int,
        keepalive_seconds: float,
        request: inference_pb2.JoinRequest,
        joined: Callable[[inference_pb2.JoinResponse], None],
        membership: Membership,
    ) -> None:
        """Prepares; `lease` connects.

        Args:
          config: The actor's settings.
          worker: The worker's number in it.
          keepalive_seconds: A silent learner is given up after twice this time.
          request: For Join; the token is filled in.
          joined: Called with each new lease, before it is used; raises ValueError if it does
            not fit.
          membership: Read and kept up to date.
        """
        self._keepalive_seconds = keepalive_seconds
        self._tls = config.tls
        addresses = [address.strip() for address in config.learner_address.split(",")]
        self._learners = Learners(
            addresses, keepalive_seconds, config.tls, worker, config.rebalance_seconds
        )
        self._moving: asyncio.Task[None] | None = None
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._request = request
        self._joined = joined
        self._membership = membership
        self._joining = asyncio.Lock()
        self._streams: dict[int, Any] = {}
        self._backoff: dict[int, rpc.Backoff] = {}
        self._closing = False
        if membership.lease is not None:  # from an event loop before this one
            self._open(membership.address)

    async def close(self) -> None:
        """Ends all streams."""
        self._closing = True
        if self._moving is not None:
            self._moving.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def lease(self) -> inference_pb2.JoinResponse:
        """The current lease; joins if there is none.

        Raises:
          Finished: Training is over.
          Refused: The learner does not take these environments.
        """
        if self._membership.lease is None:
            async with self._joining:
                if self._membership.lease is None:
                    self._membership.lease = await self._join()
        return self._membership.lease

    async def _join(self) -> inference_pb2.JoinResponse:
        member = self._membership
        backoff = rpc.Backoff()
        several = self._learners.are_several
        timeout = _JOIN_ONE_OF_SEVERAL_SECONDS if several else _JOIN_TIMEOUT_SECONDS
        while True:
            if self._learners.is_due():  # its learner has been away for long
                member.token = ""
            knows = member.token and member.address
            await self._connect(member.address if knows else await self._learners.choose())
            self._request.lease_token = member.token
            try:
                lease: inference_pb2.JoinResponse = await self._stub.Join(
                    self._request, timeout=timeout
                )
            except grpc.aio.AioRpcError as error:
                if error.code() in _FATAL:
                    raise Refused(f"the learner refuses this actor: {error.details()}") from None
                if error.code() is grpc.StatusCode.NOT_FOUND and member.token:
                    member.token = ""
                    continue
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._learners.shuffle()
                member.waiting.still(
                    f"cannot join the learner at {self._address}: {_describe(error)}"
                )
            else:
                break
            await asyncio.sleep(backoff.next())
        if lease.finished:
            raise Finished
        member.token, member.address = lease.lease_token, self._address
        try:
            self._joined(lease)
        except ValueError as error:
            raise Refused(str(error)) from None
        member.waiting.over("joined the learner")
        _log.info("the learner at %s leased %d slots", self._address, len(lease.slots))
        return lease

    async def _connect(self, address: str) -> None:
        if address == self._address:
            return
        if self._channel is not None:
            await self._channel.close()
        self._open(address)

    def _open(self, address: str) -> None:
        self._address = address
        self._channel = rpc.aio_channel(address, self._keepalive_seconds, self._tls)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)

    async def _move(self, lease: inference_pb2.JoinResponse) -> None:
        """Gives the lease up if this learner has more than its share of environments."""
        leaves = await self._learners.shall_leave(self._address, len(lease.slots))
        if leaves and self._membership.lease is lease:
            _log.info("leaving the learner at %s: others have fewer environments", self._address)
            self._drop()

    async def exchange(
        self, lease: inference_pb2.JoinResponse, group: int, request: inference_pb2.ActRequest
    ) -> inference_pb2.ActResponse:
        """Sends a group's request, again and again if need be, and waits for the answer.

        Raises:
          Finished: Training is over.
          LeaseLost: The lease is not `lease` any more.
          Refused: The learner does not take the request.
        """
        if self._learners.is_due():
            self._moving = asyncio.create_task(self._move(lease))
        while True:
            if self._membership.lease is not lease:
                raise LeaseLost
            try:
                response = await self._try(lease, group, request)
            except grpc.aio.AioRpcError as error:
                await self._broken(lease, group, error.code(), _describe(error))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # The call was cancelled, not we: by `_drop` or by the other side.
                await self._broken(lease, group, grpc.StatusCode.CANCELLED, "cancelled")
            else:
                if response.finished:
                    raise Finished
                return response

    async def _try(
        self, lease: inference_pb2.JoinResponse, group: int, request: inference_pb2.ActRequest
    ) -> inference_pb2.ActResponse:
        stream = self._streams.get(group)
        is_new = stream is None
        if stream is None:
            metadata = (
                (rpc.LEASE_METADATA, lease.lease_token),
                (rpc.GROUP_METADATA, str(group)),
            )
            stream = self._streams[group] = self._stub.Act(metadata=metadata)
        if is_new:
            await _write_first(stream, request)
        else:
            with contextlib.suppress(asyncio.InvalidStateError):  # it ended; read says why
                await stream.write(request)
        response = await stream.read()
        if response is grpc.aio.EOF:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                "the learner ended the stream",
            )
        if is_new:
            self._connected(group)
        return response  # type: ignore[no-any-return]

    def _connected(self, group: int) -> None:
        member = self._membership
        member.connected.add(group)
        if group in self._backoff:
            self._backoff[group].reset()
            member.waiting.over("connected to the learner again")

    async def _broken(
        self,
        lease: inference_pb2.JoinResponse,
        group: int,
        code: grpc.StatusCode,
        description: str,
    ) -> None:
        """Ends a broken stream and waits until it is time to open another one."""
        member = self._membership
        stream = self._streams.pop(group, None)
        if stream is not None:
            stream.cancel()
        member.connected.discard(group)
        if self._closing:  # one group was told that training is over, and ended the others
            raise asyncio.CancelledError
        if member.lease is not lease:
            raise LeaseLost
        member.reconnects += 1
        if code in _FATAL:
            raise Refused(f"the learner refuses group {group}: {description}")
        member.waiting.still(f"lost the learner at {self._address}: {description}")
        # Or the learner has been away for long: another one may be there.
        if code in _LEASE_IS_LOST or self._learners.is_due():
            self._drop()
            raise LeaseLost
        await asyncio.sleep(self._backoff.setdefault(group, rpc.Backoff()).next())

    async def put_recording(self, lease: inference_pb2.JoinResponse, recorded: Recorded) -> None:
        """Hands a recording to the learner.

        Raises:
          grpc.aio.AioRpcError: It was not taken.
        """

        async def messages() -> AsyncIterator[inference_pb2.PutRecordingRequest]:
            name, token = recorded.name, lease.lease_token
            while piece := recorded.file.read(_PIECE_BYTES):
                yield inference_pb2.PutRecordingRequest(name=name, lease_token=token, data=piece)
                name = token = ""

        await self._stub.PutRecording(messages(), timeout=_RECORDING_TIMEOUT_SECONDS)

    def _drop(self) -> None:
        """Forgets the lease; the other groups find out because their streams are cancelled."""
        self._membership.lease = None
        self._membership.token = ""
        for stream in self._streams.values():
            stream.cancel()


async def _write_first(stream: Any, request: inference_pb2.ActRequest) -> None:
    """Writes to a stream that was just opened; if it ends meanwhile, read says why.

    gRPC's `write` waits until the stream is open, for ever if the stream is cancelled before.
    """
    writing = asyncio.ensure_future(stream.write(request))
    stream.add_done_callback(lambda _: writing.cancel())
    try:
        await asyncio.wait({writing})
    finally:
        writing.cancel()
    if not writing.cancelled():
        with contextlib.suppress(asyncio.InvalidStateError):
            writing.result()


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"
