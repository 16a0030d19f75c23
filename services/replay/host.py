"""One table in the event loop: who waits for the rate limiter, what is logged, who holds blocks.

The servicer calls it for every stream and call. It adds to `Table` what takes time.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import pathlib

import grpc
import numpy as np

from services.replay import ingest, snapshot
from services.replay.blocks import Chunk
from services.replay.items import ChosenItems, KeyArray
from services.replay.recovery import Layout, Recovered
from services.replay.segment_log import INSERT_HEADER, Kind, LogFailed, SegmentLog
from services.replay.table import Table
from services.replay.waits import Waits, Writer
from services.shared.config import PersistenceConfig, TableConfig
from services.shared.status import StatusError

# Writers that may still send their last message again; a run has far fewer.
_REMEMBERED_WRITERS = 10_000
_MAX_PENDING_LOG_BYTES = 64 << 20
_NAMED_CHARACTERS = 300
# All windows together may have this share of a table's bytes.
_WINDOWS_SHARE = 16
# A message on its way is in memory twice while gRPC hands it over.
_COPIES = 2


class TableHost:
    """See the module.

    Attributes:
      table: The core.
      layout: None before the first writer.
      log: None without persistence, and before the first writer.
      writers, readers: Their waits.
      lost_items: See `Recovered`.
    """

    def __init__(
        self,
        name: str,
        config: TableConfig,
        persistence: PersistenceConfig,
        seed: int | None,
        max_window_bytes: int,
    ) -> None:
        """Creates the host of an empty table; `recovered` makes it ready.

        Args:
          name: Of the table.
          config: Of the table.
          persistence: Where its log is.
          seed: Of the draws.
          max_window_bytes: See `window_bytes`.
        """
        self.table = Table(name, config, seed, self._chunk_freed, self._used_up)
        self.layout: Layout | None = None
        self.log: SegmentLog | None = None
        self.lost_items = 0
        self.writers = Waits()
        self.readers = Waits()
        self._persistence = persistence
        self._max_window_bytes = max_window_bytes
        self._streams = 0
        self._known: collections.OrderedDict[int, Writer] = collections.OrderedDict()
        self._snapshot_lock = asyncio.Lock()
        self._has_removals = False

    @property
    def directory(self) -> pathlib.Path | None:
        """Where the table is persisted."""
        base = self._persistence.directory
        return None if base is None else pathlib.Path(base) / self.table.name

    def recovered(self, recovered: Recovered) -> None:
        """Takes what the log had; the table has its items already."""
        self.lost_items = recovered.lost_items
        for number, sequence in recovered.sequences.items():
            self._known[number] = Writer(number, sequence, sequence)
        if recovered.layout is not None:
            self._start(recovered.layout)

    def check_layout(self, layout: Layout, who: str) -> None:
        """Compares a client's layout with the table's.

        Raises:
          StatusError: FAILED_PRECONDITION, with both.
        """
        if self.layout is None or layout == self.layout:
            return
        raise StatusError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"table {self.table.name!r} has layout {_named(self.layout)}, the {who} has"
            f" {_named(layout)}",
        )

    @property
    def max_item_bytes(self) -> int:
        """A larger item might find no room."""
        return self.table.config.max_bytes - self._windows_bytes * _COPIES

    @property
    def window_bytes(self) -> int:
        """What each writer may send without acknowledgement; the more there are, the less."""
        return min(self._max_window_bytes, self._windows_bytes // max(1, self._streams))

    def count_streams(self, change: int) -> None:
        """Notes that Insert streams came (or went): what they may send counts as used."""
        self._streams += change
        self.table.in_flight_bytes = _COPIES * self._streams * self.window_bytes

    @property
    def _windows_bytes(self) -> int:
        return self.table.config.max_bytes // _WINDOWS_SHARE

    async def open_writer(self, number: int, layout: Layout) -> Writer:
        """Gives a stream to a writer; an older stream of it has lost it.

        Raises:
          StatusError: FAILED_PRECONDITION for another layout.
        """
        self.check_layout(layout, "writer")
        if self.layout is None:
            self._start(layout)
        writer = self._known.setdefault(number, Writer(number))
        self._known.move_to_end(number)
        writer.epoch += 1
        # What it sent over its last stream may be still waiting for the limiter.
        async with writer.busy:
            self._release(writer)
        await self.written(self.log_failures)
        writer.is_new_stream = True
        while len(self._known) > _REMEMBERED_WRITERS:
            self._known.popitem(last=False)
        return writer

    def close_writer(self, writer: Writer, epoch: int) -> None:
        """Notes that a stream ended; nothing happens if a newer one has the writer."""
        writer.closed_epoch = max(writer.closed_epoch, epoch)
        if writer.epoch == epoch and not writer.busy.locked():
            self._release(writer)

    async def insert(self, writer: Writer, epoch: int, message: bytes) -> int:
        """Inserts a message, as soon as the rate limiter allows it.

        Returns:
          Its sequence number.

        Raises:
          StatusError: As the proto says.
        """
        insertion = ingest.parse(message)
        async with writer.busy:
            self._check_sequence(writer, epoch, insertion.sequence)
            if insertion.sequence and insertion.sequence <= writer.received:
                return insertion.sequence
            wait = self.writers.begin() if self.writers.blocked else None
            try:
                async with self.writers.turn:
                    await self._insert(writer, insertion, message)
            finally:
                if wait is not None:
                    self.writers.end(wait)
            if writer.closed_epoch == epoch:  # it was waiting, nobody else will release them
                self._release(writer)
        return insertion.sequence

    async def choose(self, count: int) -> ChosenItems:
        """Chooses items as the rate limiter allows; the caller unpins them.

        May be cancelled: then what was chosen is not counted.
        """
        parts: list[ChosenItems] = []
        missing = count
        wait = self.readers.begin() if self.readers.blocked else None
        try:
            async with self.readers.turn:
                while missing:
                    allowed = self.table.limiter.samplable(missing, self.table.items)
                    if allowed:
                        part = self.table.choose(allowed)
                        parts.append(part)
                        missing -= len(part.keys)
                        self.writers.changed.set()
                    else:
                        await self._wait(self.readers)
            await self._removals_written()
        except BaseException:
            for part in parts:
                self.table.unpin(part)
                self.table.limiter.sampled -= len(part.keys)
            raise
        finally:
            if wait is not None:
                self.readers.end(wait)
        return ChosenItems.joined(parts)

    @property
    def log_failures(self) -> int:
        """For `written`."""
        return 0 if self.log is None else self.log.failures

    async def written(self, failures: int) -> None:
        """Waits until what was inserted so far may be acknowledged.

        Args:
          failures: What `log_failures` was before the oldest of it was inserted.

        Raises:
          StatusError: RESOURCE_EXHAUSTED if the volume does not take it.
        """
        if self.log is None:
            return
        try:
            await self.log.written(failures)
        except LogFailed as error:
            # They will be sent again, and are better twice in the table than not in the log.
            for writer in self._known.values():
                writer.received = min(writer.received, writer.acknowledged)
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None

    async def checkpoint(self) -> int:
        """Syncs the log and writes a snapshot.

        Returns:
          The number of items in the snapshot.

        Raises:
          OSError: The volume does not take it.
        """
        if self.log is None or self.directory is None:
            return 0
        async with self._snapshot_lock:
            await self.log.sync()
            state = snapshot.take(self.table)
            await asyncio.to_thread(snapshot.write, state, self.directory)
        self.log.retire()
        return len(state.arrays["keys"])

    def close(self) -> None:
        """Ends the log, with everything written."""
        if self.log is not None:
            self.log.close()

    async def _insert(self, writer: Writer, x: ingest.Insertion, message: bytes) -> None:
        table, limiter = self.table, self.table.limiter
        first = table.next_generation
        generations = np.arange(first, first + len(x.counts), dtype=np.uint64)
        items = writer.held.take(table, x, generations)
        if self.log is not None:
            failures = self.log.failures
            header = INSERT_HEADER.pack(writer.number, first)
            segment = self.log.append(Kind.INSERT, header, message)
            if table.blocks.assign_segment(items.chunk, segment):
                self.log.use(segment)
            if self.log.refused_bytes:
                # Its writer tries again and again, and the table would fill up with copies.
                try:
                    await self.written(failures)
                except StatusError:
                    writer.held.withdraw(table, x, items)
                    raise
        if x.sequence:
            writer.received = x.sequence
            writer.is_new_stream = False
        done = 0
        while done < len(items):
            allowed = limiter.insertable(len(items) - done, table.items)
            if allowed:
                table.insert(items.part(done, done + allowed))
                done += allowed
                self.readers.changed.set()
            else:
                await self._wait(self.writers)
        writer.held.release(table, x.released)
        if self.log is not None and self.log.pending_bytes > _MAX_PENDING_LOG_BYTES:
            await self.written(self.log_failures)

    async def _wait(self, side: Waits) -> None:
        started = side.begin()
        side.blocked = True
        side.changed.clear()
        try:
            await side.changed.wait()
        finally:
            side.blocked = False
            side.end(started)

    def _check_sequence(self, writer: Writer, epoch: int, sequence: int) -> None:
        if writer.epoch != epoch:
            raise StatusError(
                grpc.StatusCode.ABORTED, "a newer stream of this writer has taken its place"
            )
        # A new stream may begin anywhere: what the service lost the client has no more.
        if sequence > writer.received + 1 and not writer.is_new_stream:
            raise ingest.invalid(
                f"message {sequence} came after message {writer.received}, expected"
                f" {writer.received + 1}"
            )

    def _release(self, writer: Writer) -> None:
        writer.held.release_all(self.table)
        if self.log is not None:
            self.log.append(Kind.CLOSED, np.uint64(writer.number).tobytes())

    def _start(self, layout: Layout) -> None:
        self.layout = layout
        if self.directory is None:
            return
        self.log = SegmentLog(
            self.directory,
            self._persistence,
            layout.to_bytes(),
            self.table.blocks.segment_users(),
        )
        self.log.append(Kind.CLOSED)
        self.log.retire()

    def _chunk_freed(self, chunk: Chunk) -> None:
        if self.log is not None and chunk.segment >= 0:
            self.log.use(chunk.segment, -1)

    def _used_up(self, keys: KeyArray) -> None:
        if self.log is not None:
            self.log.append(Kind.REMOVED, keys.tobytes())
            self._has_removals = True

    async def _removals_written(self) -> None:
        """Nobody gets an item for the last time before the log says that it was the last time."""
        if self.log is None or not self._has_removals:
            return
        self._has_removals = False
        # If the volume takes nothing, which the log has said, a restart brings them back.
        with contextlib.suppress(LogFailed):
            await self.log.written(self.log.failures)


def _named(layout: Layout) -> str:
    text = layout.description
    if len(text) > _NAMED_CHARACTERS:
        text = f"{text[:_NAMED_CHARACTERS]}... ({len(text)} characters)"
    return f"version {layout.version} {text!r}"
