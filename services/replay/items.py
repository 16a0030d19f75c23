"""Items as struct of arrays: on their way into a table, and chosen from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from services.replay.sum_tree import FloatArray, IntArray

KeyArray = npt.NDArray[np.uint64]

# A key is generation << 24 | place. Generations count the inserted items, so that no two items
# have the same one, also over restarts, and keys sort by age.
PLACE_BITS = 24
_PLACE_MASK = np.uint64((1 << PLACE_BITS) - 1)


@dataclasses.dataclass
class ItemArrays:
    """Items to insert, m of them, as struct of arrays.

    Attributes:
      rows: int64 [sum(counts)], the blocks of all items, one item after the other.
      counts: int64 [m], blocks of each item, 1 or more.
      offsets, lengths: uint32 [m], kept as they are.
      priorities: float64 [m].
      chunk: Of the message that brought them.
      generations: uint64 [m], increasing.
    """

    rows: IntArray
    counts: IntArray
    offsets: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    priorities: FloatArray
    chunk: int
    generations: KeyArray

    def __len__(self) -> int:
        return len(self.counts)

    def part(self, start: int, stop: int) -> ItemArrays:
        """The items from start to stop."""
        if stop - start == len(self):
            return self
        ends = np.cumsum(self.counts)
        first = int(ends[start] - self.counts[start])
        return ItemArrays(
            self.rows[first : int(ends[stop - 1])],
            self.counts[start:stop],
            self.offsets[start:stop],
            self.lengths[start:stop],
            self.priorities[start:stop],
            self.chunk,
            self.generations[start:stop],
        )


@dataclasses.dataclass
class ChosenItems:
    """Items that were chosen, m of them; `Table.unpin` gives their blocks back.

    Attributes:
      keys: uint64 [m].
      probabilities, priorities: float64 [m].
      times_sampled, offsets, lengths: uint32 [m].
      rows: int64 [sum(counts)].
      counts: int64 [m].
    """

    keys: KeyArray
    probabilities: FloatArray
    priorities: FloatArray
    times_sampled: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    rows: IntArray
    counts: IntArray

    @classmethod
    def joined(cls, parts: list[ChosenItems]) -> ChosenItems:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def places_of(keys: KeyArray) -> IntArray:
    """The places int64 [n] that keys [n] name."""
    return (keys & _PLACE_MASK).astype(np.int64)


def ragged(counts: IntArray) -> tuple[IntArray, IntArray]:
    """For items of counts [m] entries: item and position of each entry, [sum(counts)] both."""
    item = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return item, np.arange(len(item)) - starts[item]


def occurrence(places: IntArray) -> IntArray:
    """How often each entry of places [n] occurs before itself."""
    order = np.argsort(places, kind="stable")
    _, starts, counts = np.unique(places[order], return_index=True, return_counts=True)
    result: IntArray = np.empty(len(places), np.int64)
    result[order] = np.arange(len(places)) - np.repeat(starts, counts)
    return result
