"""Fills a table from its log after a restart; runs in a thread before the event loop has it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import pathlib
import struct

import numpy as np

from services.replay import ingest, segment_log, snapshot
from services.replay.ingest import HeldBlocks
from services.replay.items import PLACE_BITS, KeyArray
from services.replay.segment_log import INSERT_HEADER, DamagedSegment, Kind
from services.replay.table import Table
from services.shared.status import StatusError

# If the newest records were lost, their generations must not be given out again.
_GENERATION_GAP = 1 << 20
LAYOUT_VERSION = struct.Struct("<I")

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the blocks of a table mean, for the clients; the service compares it."""

    description: str
    version: int

    def to_bytes(self) -> bytes:
        """A LAYOUT record."""
        return LAYOUT_VERSION.pack(self.version) + self.description.encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> Layout:
        """The inverse of `to_bytes`."""
        (version,) = LAYOUT_VERSION.unpack_from(body)
        return cls(body[LAYOUT_VERSION.size :].decode(), version)


@dataclasses.dataclass
class Progress:
    """How far recovery is; written by its thread, read by everyone."""

    total_bytes: int = 0
    read_bytes: int = 0
    damaged: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Recovered:
    """What the log had besides the table's items.

    Attributes:
      layout: None if no writer ever declared one.
      sequences: The last message of each writer.
      lost_items: Items whose blocks are gone.
    """

    layout: Layout | None = None
    sequences: dict[int, int] = dataclasses.field(default_factory=dict)
    lost_items: int = 0


def recover(table: Table, directory: pathlib.Path, progress: Progress) -> Recovered:
    """Reads all segments and the snapshot into an empty table.

    A damaged segment is named in `progress`; what comes before the damage is kept, and so are
    the later segments.
    """
    segments = segment_log.segment_paths(directory)
    reader = _Reader(table, _used_up(segments))
    for number, path in segments:
        size = path.stat().st_size
        before = progress.read_bytes
        try:
            for kind, body in segment_log.read_segment(path):
                progress.read_bytes += segment_log.HEADER.size + len(body)
                reader.apply(number, kind, body)
        except DamagedSegment as damage:
            _log.error("damaged: %s; what came before it is kept", damage)
            progress.damaged.append(str(damage))
        progress.read_bytes = before + size
    reader.release_all()
    _restore(table, directory, progress)
    return reader.result


def _used_up(segments: list[tuple[int, pathlib.Path]]) -> KeyArray:
    """Generations of items that left because they were sampled often enough, sorted.

    Read first: inserting them again could push out others which are still to come.
    """
    keys = [np.zeros(0, np.uint64)]
    for _, path in segments:
        with contextlib.suppress(DamagedSegment):  # the second reading reports it
            for kind, body in segment_log.read_segment(path, frozenset({Kind.INSERT})):
                if kind is Kind.REMOVED:
                    keys.append(np.frombuffer(body, np.uint64))
    return np.unique(np.concatenate(keys) >> np.uint64(PLACE_BITS))


class _Reader:
    """Applies records to a table."""

    def __init__(self, table: Table, used_up: KeyArray) -> None:
        self.result = Recovered()
        self._table = table
        self._used_up = used_up
        self._held: dict[int, HeldBlocks] = collections.defaultdict(HeldBlocks)

    def apply(self, segment: int, kind: Kind, body: bytes) -> None:
        if kind is Kind.LAYOUT:
            self.result.layout = Layout.from_bytes(body)
        elif kind is Kind.INSERT:
            self._insert(segment, body)
        elif kind is Kind.CLOSED:
            for writer in np.frombuffer(body, np.uint64).tolist() or list(self._held):
                if writer in self._held:
                    self._held.pop(writer).release_all(self._table)

    def release_all(self) -> None:
        for blocks in self._held.values():
            blocks.release_all(self._table)

    def _insert(self, segment: int, body: bytes) -> None:
        table, result = self._table, self.result
        writer, first = INSERT_HEADER.unpack_from(body)
        blocks = self._held[writer]
        message = ingest.parse(body[INSERT_HEADER.size :])
        if message.sequence:
            result.sequences[writer] = message.sequence
        count = len(message.counts)
        generations = np.arange(first, first + count, dtype=np.uint64)
        table.next_generation = max(table.next_generation, first + count)
        has_blocks = blocks.has_blocks(message)
        keep = has_blocks & ~np.isin(generations, self._used_up)
        result.lost_items += count - int(np.count_nonzero(has_blocks))
        kept = ingest.select(message, keep)
        try:
            items = blocks.take(table, kept, generations[keep], segment)
        except StatusError as error:  # the limits are smaller than they were
            _log.warning("left out of table %s: %s", table.name, error.message)
            result.lost_items += int(np.count_nonzero(keep))
            return
        table.insert(items)
        blocks.release(table, message.released)


def _restore(table: Table, directory: pathlib.Path, progress: Progress) -> None:
    limiter = table.limiter
    try:
        saved = snapshot.read(directory)
    except (ValueError, KeyError) as error:
        _log.error("damaged: %s; items have the priorities that they were inserted with", error)
        progress.damaged.append(str(error))
        saved = None
    if saved is not None:
        counters = saved.counters
        later = max(0, table.next_generation - counters["next_generation"])
        limiter.inserted = counters["inserted"] + later
        limiter.sampled = counters["sampled"]
        table.evicted, table.used_up, table.stale = (
            counters[name] for name in ("evicted", "used_up", "stale")
        )
        table.next_generation = max(table.next_generation, counters["next_generation"])
        table.restore(saved.arrays)
    else:
        limiter.assume_balance()
        table.evicted = 0
    if table.next_generation > 1:
        table.next_generation += _GENERATION_GAP
        # The next recovery counts the generations since the snapshot, and the gap is none of them.
        try:
            snapshot.write(snapshot.take(table), directory)
        except OSError as error:
            _log.error("table %s: priorities cannot be saved: %s", table.name, error)
