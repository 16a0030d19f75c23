"""Sending to one shard: messages, window, acknowledgements, and again after a lost connection.

Writers submit from their threads; everything else happens in the client's event loop. A message
is kept until it is acknowledged, and blocks that later items may refer to until the writer
releases them, so that a new connection can begin where the old one ended.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc.aio
import numpy as np

from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import messages
from services.shared.replay.connection import FATAL, SERVICE, ReplayError, ReplayTimeout, describe
from services.shared.rpc import MAX_MESSAGE_BYTES, Backoff

# So many may be on their way, full ones: one is being inserted while the next comes in. One that
# is not full goes only when none is, as Nagle's algorithm has it (RFC 896): nothing waits while
# there is little to send, and what comes faster than it is acknowledged goes in few messages.
_MESSAGES_ON_THEIR_WAY = 2

# Tags and lengths of all fields, and the sequence number.
_MESSAGE_HEAD_BYTES = 80

_log = logging.getLogger(__name__)

Item = tuple[list[int], int, int, float]


@dataclasses.dataclass(slots=True)
class Unit:
    """What a writer hands over at once; it is never split over messages.

    Attributes:
      blocks: Bytes by id.
      item: Block ids, offset, length and priority; None: only blocks are released.
      released: Ids of blocks that no later item refers to.
      bytes: What it takes in a message, at most.
    """

    blocks: dict[int, bytes]
    item: Item | None
    released: list[int]
    bytes: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        # Never less than what it adds to a message, so that the limits hold for what is sent.
        size = _MESSAGE_HEAD_BYTES + 12 * len(self.blocks) + 8 * len(self.released)
        for data in self.blocks.values():
            size += len(data)
        if self.item is not None:
            size += 20 + 8 * len(self.item[0])
        self.bytes = size


@dataclasses.dataclass(slots=True)
class _Sent:
    sequence: int
    message: bytes
    blocks: dict[int, bytes]
    released: list[int]
    items: int


class ShardInserter:
    """See the module.

    Attributes:
      address: Of the shard.
      is_usable: Connected, or not known to be away.
      error: Set once the service has refused this client for good.
      submitted_items, acknowledged_items, reconnects: Counts.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        opening: replay_pb2.InsertOpen,
        message_bytes: int,
        max_pending_bytes: int,
        max_waiting_items: int | None,
    ) -> None:
        """Prepares; `run` connects.

        Args:
          channel: To the shard.
          address: For messages.
          opening: Table and layout.
          message_bytes: Where a message is cut.
          max_pending_bytes: What may wait here, acknowledgement included, before `submit` blocks.
          max_waiting_items: The same in items, while the shard is there.
        """
        self.address = address
        self.is_usable = True
        self.error: str | None = None
        self.submitted_items = self.acknowledged_items = self.reconnects = 0
        self._call = channel.stream_stream(SERVICE + "Insert")
        self._opening = replay_pb2.InsertOpen()
        self._opening.CopyFrom(opening)
        self._opening.writer_id = secrets.randbits(64)
        self._message_bytes = message_bytes
        self._max_pending_bytes = max_pending_bytes
        self._max_waiting_items = max_waiting_items
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._pending: collections.deque[Unit] = collections.deque()
        self._pending_bytes = 0
        self._sent: collections.deque[_Sent] = collections.deque()
        self._sent_bytes = 0
        self._kept: dict[int, bytes] = {}
        self._sequence = 0
        self._window = message_bytes
        self._max_item_bytes = 1 << 62
        self._wake = asyncio.Event()
        self._wake_is_due = False
        self._last_problem = "not connected yet"

    def submit(self, unit: Unit, timeout: float | None) -> None:
        """Queues a unit; called by any thread but the loop's.

        One that only releases blocks never waits: it makes room.

        Raises:
          ReplayError: The service has refused this client, or an item is larger than its table
            or than a message.
          ReplayTimeout: There was no room in time; nothing was queued.
        """
        size = unit.bytes
        if size > self._max_item_bytes:
            raise ReplayError(
                f"{size} bytes at once for {self.address}, whose table has {self._max_item_bytes}"
            )
        if size > MAX_MESSAGE_BYTES:
            raise ReplayError(
                f"{size} bytes at once for {self.address}, allowed: {MAX_MESSAGE_BYTES}, the"
                " largest message; use shorter sequences"
            )
        with self._lock:
            has_room = self._has_room(unit) or self._room.wait_for(
                lambda: self.error or self._has_room(unit), timeout
            )
            if not has_room:
                raise ReplayTimeout(
                    f"{self.address}: {self.waiting_bytes} bytes wait for {timeout} s already"
                    f" (max_pending_bytes {self._max_pending_bytes}, max_waiting_items"
                    f" {self._max_waiting_items}): {self._last_problem}"
                )
            if self.error:
                raise ReplayError(self.error)
            self._pending.append(unit)
            self._pending_bytes += size
            self.submitted_items += unit.item is not None
            wake, self._wake_is_due = not self._wake_is_due, True
        if wake:
            self._loop.call_soon_threadsafe(self._wake.set)

    def flush(self, timeout: float | None) -> None:
        """Waits until everything is acknowledged.

        Raises:
          ReplayError, ReplayTimeout: As for `submit`.
        """
        with self._lock:
            if not self._room.wait_for(lambda: self.error or not self.waiting_bytes, timeout):
                raise ReplayTimeout(
                    f"{self.address}: {self.waiting_bytes} bytes are not acknowledged after"
                    f" {timeout} s: {self._last_problem}"
                )
            if self.error:
                raise ReplayError(self.error)

    @property
    def waiting_items(self) -> int:
        """Not acknowledged yet."""
        return self.submitted_items - self.acknowledged_items

    @property
    def waiting_bytes(self) -> int:
        """Not acknowledged yet."""
        return self._pending_bytes + self._sent_bytes

    async def run(self) -> None:
        """Connects and sends until it is cancelled or refused."""
        backoff = Backoff(0.1, 5.0)
        while True:
            started = time.monotonic()
            call = self._call()
            try:
                await self._serve(call)
                problem = "the service ended the stream"
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                if not isinstance(error, grpc.aio.AioRpcError):
                    problem = f"{(await call.code()).name}: {await call.details()}"
                else:
                    problem = describe(error)
                if await call.code() in FATAL or self._is_too_large():
                    self._fail(f"{self.address}: {problem}")
                    return
            finally:
                call.cancel()
            if self.is_usable:
                _log.warning("lost %s: %s; trying again", self.address, problem)
            self.is_usable = False
            self._last_problem = problem
            self.reconnects += 1
            if time.monotonic() - started > 10:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _serve(self, call: Any) -> None:
        await call.write(replay_pb2.InsertRequest(open=self._opening).SerializeToString())
        first = await call.read()
        if first is grpc.aio.EOF:
            # Reading its status raises what went wrong.
            raise asyncio.InvalidStateError
        answer = replay_pb2.InsertResponse.FromString(first)
        self._max_item_bytes = answer.max_item_bytes
        if not self.is_usable:
            _log.info("connected to %s again", self.address)
        self.is_usable = True
        self._last_problem = "waiting for the service"
        self._acknowledge(answer)
        await self._send_again(call)
        reading = asyncio.ensure_future(self._read(call))
        reading.add_done_callback(lambda _: self._wake.set())
        try:
            while not reading.done():
                self._wake.clear()
                with self._lock:
                    self._wake_is_due = False
                while (sent := self._next_message()) is not None:
                    await call.write(sent.message)
                await self._wake.wait()
            await reading
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await reading

    async def _send_again(self, call: Any) -> None:
        """Brings a new stream to where the last one was."""
        for blocks in _portions(self._kept, self._message_bytes):
            await call.write(_message(0, blocks, [], []))
        for sent in self._sent:
            await call.write(sent.message)

    async def _read(self, call: Any) -> None:
        while (data := await call.read()) is not grpc.aio.EOF:
            self._acknowledge(replay_pb2.InsertResponse.FromString(data))
            self._wake.set()
        raise asyncio.InvalidStateError

    def _acknowledge(self, answer: replay_pb2.InsertResponse) -> None:
        with self._lock:
            self._window = answer.window_bytes
            while self._sent and self._sent[0].sequence <= answer.sequence:
                sent = self._sent.popleft()
                self._sent_bytes -= len(sent.message)
                self.acknowledged_items += sent.items
                self._kept.update(sent.blocks)
                for block in sent.released:
                    self._kept.pop(block, None)
            self._room.notify_all()

    def _next_message(self) -> _Sent | None:
        """The next message if there is something to send and the window has room."""
        units: list[Unit] = []
        size = 0
        with self._lock:
            limit = min(self._message_bytes, self._window // _MESSAGES_ON_THEIR_WAY)
            if self._sent and self._pending_bytes < limit:
                return None
            while self._pending:
                unit_bytes = self._pending[0].bytes
                if (units or self._sent) and (
                    size + unit_bytes > limit or self._sent_bytes + size + unit_bytes > self._window
                ):
                    break
                units.append(self._pending.popleft())
                size += unit_bytes
            self._pending_bytes -= size
            if not units:
                return None
            self._sequence += 1
            blocks = {key: data for unit in units for key, data in unit.blocks.items()}
            items = [unit.item for unit in units if unit.item is not None]
            released = [key for unit in units for key in unit.released]
            message = _message(self._sequence, blocks, items, released)
            sent = _Sent(self._sequence, message, blocks, released, len(items))
            self._sent.append(sent)
            self._sent_bytes += len(message)
        return sent

    def _is_too_large(self) -> bool:
        """Whether the message to send again is one that the table can never take."""
        return bool(self._sent) and len(self._sent[0].message) > self._max_item_bytes

    def _has_room(self, unit: Unit) -> bool:
        waiting = self.waiting_bytes
        if not waiting or unit.item is None:
            return True
        most = self._max_waiting_items
        if most is not None and self.is_usable and self.waiting_items >= most:
            return False
        return waiting + unit.bytes <= self._max_pending_bytes

    def _fail(self, error: str) -> None:
        with self._lock:
            self.error = error
            self.is_usable = False
            self._room.notify_all()
        _log.error("%s", error)


def _portions(blocks: dict[int, bytes], most_bytes: int) -> Iterator[dict[int, bytes]]:
    """The blocks in portions of up to so many bytes: all slots' together may exceed a message."""
    portion: dict[int, bytes] = {}
    size = 0
    for key, data in blocks.items():
        if portion and size + len(data) > most_bytes:
            yield portion
            portion, size = {}, 0
        portion[key] = data
        size += len(data)
    if portion:
        yield portion


def _message(
    sequence: int,
    blocks: dict[int, bytes],
    items: list[Item],
    released: list[int],
) -> bytes:
    parts = list(blocks.values())
    sizes = np.fromiter(map(len, parts), np.uint32, len(parts))
    head = replay_pb2.InsertRequest(
        sequence=sequence,
        block_ids=np.fromiter(blocks, np.uint64, len(blocks)).tobytes(),
        block_bytes=sizes.tobytes(),
        released_block_ids=np.array(released, np.uint64).tobytes(),
    )
    if items:
        references, offsets, lengths, priorities = zip(*items, strict=True)
        head.item_block_counts = np.array([len(r) for r in references], np.uint32).tobytes()
        flat = [block for reference in references for block in reference]
        head.item_block_ids = np.array(flat, np.uint64).tobytes()
        head.item_offsets = np.array(offsets, np.uint32).tobytes()
        head.item_lengths = np.array(lengths, np.uint32).tobytes()
        head.item_priorities = np.array(priorities, np.float64).tobytes()
    return messages.join(head, parts, int(sizes.sum()))
