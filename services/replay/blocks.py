"""The bytes of a table: blocks inside the messages that brought them, with reference counts.

A message is kept whole, as one chunk, until none of its blocks and items is needed. So nothing
is copied on arrival, a million tiny blocks are not a million Python objects, and since the
oldest items leave first, a chunk's blocks go at about the same time. All accounting counts
chunks, which is what the process really holds.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from services.replay.sum_tree import IntArray


@dataclasses.dataclass(eq=False, slots=True)
class Chunk:
    """One message.

    Attributes:
      payload: Its blocks.
      size: Bytes of the message.
      users: Blocks and items of it that are in use.
      segment: Of the log, where it was written; -1 without a log.
    """

    payload: memoryview
    size: int
    users: int
    segment: int


class BlockStore:
    """Blocks, named by row numbers into arrays.

    Attributes:
      bytes: Sizes of all chunks.
    """

    def __init__(self, on_free: Callable[[Chunk], None] | None = None) -> None:
        """Creates an empty store.

        Args:
          on_free: Called with each chunk that is not needed any more.
        """
        self.bytes = 0
        self._on_free = on_free
        self._chunks: dict[int, Chunk] = {}
        self._next_chunk = 0
        rows = 1024
        self._chunk: IntArray = np.zeros(rows, np.int64)
        self._start: IntArray = np.zeros(rows, np.int64)
        self._size: IntArray = np.zeros(rows, np.int64)
        self._references: npt.NDArray[np.int32] = np.zeros(rows, np.int32)
        self._free: IntArray = np.arange(rows, dtype=np.int64)
        self._free_count = rows

    @property
    def rows(self) -> int:
        """Blocks in use."""
        return len(self._chunk) - self._free_count

    @property
    def index_bytes(self) -> int:
        """What the arrays take beside the chunks."""
        return len(self._chunk) * (8 + 8 + 8 + 4 + 8)

    def add(
        self, payload: memoryview, size: int, sizes: IntArray, items: int, segment: int = -1
    ) -> tuple[int, IntArray]:
        """Takes a message; each of its blocks has one reference at first, the writer's.

        Args:
          payload: The blocks, one after the other.
          size: Bytes of the whole message.
          sizes: int64 [n], bytes of each block; their sum is len(payload).
          items: Number of items of the message.
          segment: Where the log has it.

        Returns:
          The chunk's number, and the blocks' rows int64 [n].
        """
        number = self._next_chunk
        self._next_chunk += 1
        chunk = Chunk(payload, size, len(sizes) + items, segment)
        self._chunks[number] = chunk
        self.bytes += size
        count = len(sizes)
        while self._free_count < count:
            self._grow()
        self._free_count -= count
        rows = self._free[self._free_count : self._free_count + count].copy()
        self._chunk[rows] = number
        self._size[rows] = sizes
        self._start[rows] = np.cumsum(sizes) - sizes
        self._references[rows] = 1
        if not chunk.users:
            self._drop(number)
        return number, rows

    def retain(self, rows: IntArray) -> None:
        """Adds one reference for each time that a row occurs in rows [n]."""
        np.add.at(self._references, rows, 1)

    def release(self, rows: IntArray) -> None:
        """Takes one reference for each time that a row occurs in rows [n]."""
        if not len(rows):
            return
        np.subtract.at(self._references, rows, 1)
        dead = rows[self._references[rows] == 0]
        if not len(dead):
            return
        if len(dead) > 1:
            dead = np.unique(dead)
        end = self._free_count + len(dead)
        self._free[self._free_count : end] = dead
        self._free_count = end
        self.release_users(self._chunk[dead])

    def release_users(self, chunks: IntArray) -> None:
        """Notes that a block or an item is gone, for each time a chunk occurs in chunks [n]."""
        for number, count in collections.Counter(chunks.tolist()).items():
            chunk = self._chunks[number]
            chunk.users -= count
            if not chunk.users:
                self._drop(number)

    def assign_segment(self, number: int, segment: int) -> bool:
        """Notes where the log has a chunk; False if it is not needed any more."""
        chunk = self._chunks.get(number)
        if chunk is None:
            return False
        chunk.segment = segment
        return True

    def segment_users(self) -> collections.Counter[int]:
        """How many chunks are needed of each segment."""
        return collections.Counter(chunk.segment for chunk in self._chunks.values())

    def sizes(self, rows: IntArray) -> IntArray:
        """Bytes of the blocks, int64 [n]."""
        return self._size[rows]

    def views(self, rows: IntArray) -> list[memoryview]:
        """The bytes of the blocks."""
        chunks = self._chunks
        starts = self._start[rows]
        return [
            chunks[number].payload[start:stop]
            for number, start, stop in zip(
                self._chunk[rows].tolist(),
                starts.tolist(),
                (starts + self._size[rows]).tolist(),
                strict=True,
            )
        ]

    def _drop(self, number: int) -> None:
        chunk = self._chunks.pop(number)
        self.bytes -= chunk.size
        if self._on_free is not None:
            self._on_free(chunk)

    def _grow(self) -> None:
        old = len(self._chunk)
        self._chunk = np.concatenate([self._chunk, np.zeros(old, np.int64)])
        self._start = np.concatenate([self._start, np.zeros(old, np.int64)])
        self._size = np.concatenate([self._size, np.zeros(old, np.int64)])
        self._references = np.concatenate([self._references, np.zeros(old, np.int32)])
        free = np.zeros(2 * old, np.int64)
        free[: self._free_count] = self._free[: self._free_count]
        free[self._free_count : self._free_count + old] = np.arange(old, 2 * old)
        self._free = free
        self._free_count += old
