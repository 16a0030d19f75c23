"""The append-only log of one table: segments with checksums, written by a thread.

The event loop appends records and waits for the write before it acknowledges. A written record
is the kernel's and survives the end of the process, however it ends; a second thread makes the
disk take it each `sync_bytes` or `sync_seconds`, which is what a crash of the machine may cost.
`recovery` reads the segments; those that hold nothing needed any more are deleted, oldest first.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import errno
import logging
import os
import pathlib
import struct
import threading
import time
import zlib
from collections.abc import Iterator

from services.shared.config import PersistenceConfig

MAGIC = b"seedpod replay log 1\n"
HEADER = struct.Struct("<IIB")  # crc32 of what follows it, size of the body, kind
_log = logging.getLogger(__name__)


class Kind(enum.IntEnum):
    """What a record says."""

    LAYOUT = 1  # uint32 version, then the description; the first record of each segment
    INSERT = 2  # INSERT_HEADER, then the InsertRequest as it came
    REMOVED = 3  # uint64 [n]: keys of items that were sampled as often as allowed
    CLOSED = 4  # uint64 [n]: writers whose streams ended; none named: all


INSERT_HEADER = struct.Struct("<QQ")  # writer_id, generation of the first item


# Records that nobody waits for are written together; a thread that wakes up for each of them
# costs more than writing it.
_WAKE_BYTES = 4 << 20


class LogFailed(OSError):
    """The volume does not take the records."""


class DamagedSegment(Exception):
    """A segment that cannot be read to its end; the message has its name, place and reason."""


def segment_paths(directory: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """The segments of a table with their numbers, oldest first."""
    paths = directory.glob("segment-*.log")
    return sorted((int(path.stem.removeprefix("segment-")), path) for path in paths)


def read_segment(
    path: pathlib.Path, skipped: frozenset[Kind] = frozenset()
) -> Iterator[tuple[Kind, bytes]]:
    """The records of a segment, without the skipped kinds, whose bytes are not even read.

    Raises:
      DamagedSegment: After the last good record, if it does not end the file.
    """
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            raise DamagedSegment(f"{path}: does not begin like a segment")
        while (at := file.tell()) < end:
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                raise DamagedSegment(f"{path}: cut off at byte {at} in a record's header")
            checksum, size, kind = HEADER.unpack(header)
            if at + HEADER.size + size > end:
                raise DamagedSegment(f"{path}: cut off at byte {at} in a record of {size} bytes")
            if kind in skipped:
                file.seek(size, os.SEEK_CUR)
                continue
            body = file.read(size)
            if zlib.crc32(body, zlib.crc32(header[4:])) != checksum or kind not in set(Kind):
                raise DamagedSegment(f"{path}: wrong checksum at byte {at}")
            yield Kind(kind), body


class SegmentLog:
    """Appends records to one table's segments.

    Attributes:
      written_bytes, pending_bytes: Of records, in all and still queued.
      failures: How often the volume did not take what it was given.
      refused_bytes: Of the largest record that it did not take; 0 once it has taken such a one.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        config: PersistenceConfig,
        layout: bytes,
        users: collections.Counter[int],
    ) -> None:
        """Starts a new segment, after those that are there, and the threads.

        Args:
          directory: Of the table; exists.
          config: Sizes and times.
          layout: Body of the record that begins each segment.
          users: How many chunks each segment that is there is needed for.
        """
        self._directory = directory
        self._config = config
        self._layout = layout
        paths = segment_paths(directory)
        # Segments on disk, and how many chunks each is still needed for.
        self._users = {number: users[number] for number, _ in paths}
        self._segment = max(self._users, default=0) + 1
        self._users[self._segment] = 0
        self._segment_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._condition = threading.Condition()
        self._queue: collections.deque[tuple[int, Kind, tuple[bytes, ...]]] = collections.deque()
        self._waiters: list[asyncio.Future[None]] = []
        self._closing = False
        self._fd = -1
        self._open_segment = 0
        self._unsynced = 0
        self._synced = threading.Event()
        self.written_bytes = 0
        self.pending_bytes = 0
        self.failures = 0
        self.refused_bytes = 0
        self._threads = [
            threading.Thread(target=target, name=f"replay-log-{directory.name}", daemon=True)
            for target in (self._write_forever, self._sync_forever)
        ]
        for thread in self._threads:
            thread.start()

    def append(self, kind: Kind, *body: bytes) -> int:
        """Queues a record and returns the segment that will have it; see `written`."""
        size = HEADER.size + sum(len(part) for part in body)
        if self._segment_bytes and self._segment_bytes + size > self._config.segment_bytes:
            self._segment += 1
            self._segment_bytes = 0
            self._users[self._segment] = 0
            self.retire()
        self._segment_bytes += size
        with self._condition:
            self.pending_bytes += size
            self._queue.append((self._segment, kind, body))
            if self.pending_bytes >= _WAKE_BYTES:
                self._condition.notify()
        return self._segment

    async def written(self, failures: int) -> None:
        """Waits until all records that were appended are the kernel's.

        Args:
          failures: What `failures` was before the oldest of them was appended.

        Raises:
          LogFailed: They are not.
        """
        future = self._loop.create_future()
        with self._condition:
            self._waiters.append(future)
            self._condition.notify()
        await future
        if self.failures != failures:
            raise LogFailed(errno.EIO, f"{self._directory}: a record was lost")

    async def sync(self) -> None:
        """Waits until all records that were appended are the disk's.

        Raises:
          LogFailed: They are not.
        """
        await self.written(self.failures)
        try:
            await asyncio.to_thread(self._sync)
        except OSError as error:
            raise LogFailed(error.errno, f"{self._directory}: {error.strerror}") from None

    def use(self, segment: int, change: int = 1) -> None:
        """Notes that chunks of a segment came (or went)."""
        if segment in self._users:
            self._users[segment] += change

    def retire(self) -> None:
        """Deletes the oldest segments as far as they are not needed."""
        for number in sorted(self._users):
            # Only from the front: a later segment may say that an earlier one's items are gone.
            if self._users[number] or number == self._segment:
                return
            del self._users[number]
            path = self._path(number)
            with self._condition:
                self._queue.append((-1, Kind.CLOSED, (os.fsencode(path),)))

    def close(self) -> None:
        """Writes and syncs what is left, then ends the threads."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._threads[0].join()
        self._synced.set()
        self._threads[1].join()
        if self._fd >= 0:
            os.close(self._fd)

    def _path(self, number: int) -> pathlib.Path:
        return self._directory / f"segment-{number:08d}.log"

    def _write_forever(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(self._is_write_due, self._config.sync_seconds)
                records, self._queue = list(self._queue), collections.deque()
                waiters, self._waiters = self._waiters, []
                if self._closing and not records and not waiters:
                    break
            failure = None
            try:
                self._write(records)
            except OSError as error:
                self.failures += 1
                failure = LogFailed(error.errno, f"{self._directory}: {error.strerror}")
                _log.error("the log of %s takes no more: %s", self._directory.name, error)
            with self._condition:
                self.pending_bytes -= sum(
                    HEADER.size + sum(len(part) for part in body)
                    for segment, _, body in records
                    if segment >= 0
                )
            if waiters:
                self._loop.call_soon_threadsafe(_settle, waiters, failure)

    def _is_write_due(self) -> bool:
        return bool(self._waiters) or self._closing or self.pending_bytes >= _WAKE_BYTES

    def _write(self, records: list[tuple[int, Kind, tuple[bytes, ...]]]) -> None:
        for segment, kind, body in records:
            if segment < 0:
                pathlib.Path(os.fsdecode(body[0])).unlink(missing_ok=True)
                continue
            size = sum(len(part) for part in body)
            try:
                if segment != self._open_segment or self._fd < 0:
                    self._open(segment)
                self._write_record(kind, body)
            except OSError:
                self.refused_bytes = max(self.refused_bytes, size)
                raise
            if size >= self.refused_bytes:
                self.refused_bytes = 0

    def _open(self, segment: int) -> None:
        if self._fd >= 0:
            os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1
        fd = os.open(self._path(segment), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._fd, self._open_segment = fd, segment
        try:
            if not os.fstat(fd).st_size:
                os.write(fd, MAGIC)
                self._write_record(Kind.LAYOUT, (self._layout,))
        except OSError:
            os.ftruncate(fd, 0)
            os.close(fd)
            self._fd = -1
            raise

    def _write_record(self, kind: Kind, body: tuple[bytes, ...]) -> None:
        header = HEADER.pack(0, sum(len(part) for part in body), kind)
        checksum = zlib.crc32(header[4:])
        for part in body:
            checksum = zlib.crc32(part, checksum)
        header = HEADER.pack(checksum, sum(len(part) for part in body), kind)
        size = len(header) + sum(len(part) for part in body)
        before = os.fstat(self._fd).st_size
        try:
            written = os.writev(self._fd, (header, *body))
            if written < size:
                rest = b"".join((header, *body))[written:]
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
        except OSError:
            # What was written of it would hide every later record.
            os.ftruncate(self._fd, before)
            raise
        self.written_bytes += size
        self._unsynced += size
        if self._unsynced >= self._config.sync_bytes:
            self._synced.set()

    def _sync(self) -> None:
        self._unsynced = 0
        fd = self._fd
        if fd >= 0:
            # A copy: the writer may close its own for the next segment.
            copy = os.dup(fd)
            try:
                os.fdatasync(copy)
            finally:
                os.close(copy)

    def _sync_forever(self) -> None:
        while not (self._closing and not self._threads[0].is_alive()):
            self._synced.wait(self._config.sync_seconds)
            self._synced.clear()
            started = time.monotonic()
            if self._unsynced:
                try:
                    self._sync()
                except OSError as error:
                    self.failures += 1
                    _log.error("the log of %s cannot be synced: %s", self._directory.name, error)
            if time.monotonic() - started > 5:
                _log.warning("the volume took %.1f s to sync", time.monotonic() - started)
        if self._unsynced:
            self._sync()


def _settle(waiters: list[asyncio.Future[None]], failure: LogFailed | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if failure is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(failure)
