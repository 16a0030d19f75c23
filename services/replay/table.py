"""A table: its items, their order, priorities and bytes. Knows no gRPC, no log and no waiting.

`TableHost` calls it from the event loop, recovery from a thread before the loop has it. Each
message goes through `add_message` (its bytes), then `insert` (its items, as many at a time as
the rate limiter allows); `choose` and `update` are the readers' side.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import grpc
import numpy as np
import numpy.typing as npt

from services.replay import selectors
from services.replay.age_queue import AgeQueue
from services.replay.blocks import BlockStore, Chunk
from services.replay.items import (
    PLACE_BITS,
    ChosenItems,
    ItemArrays,
    KeyArray,
    occurrence,
    places_of,
    ragged,
)
from services.replay.rate_limiter import RateLimiter
from services.replay.sum_tree import FloatArray, IntArray
from services.shared.config import TableConfig
from services.shared.status import StatusError

# Removing a little at a time never removes much more than needed.
_EVICTION_SHARE = 0.5
# Of max_bytes, what one item of many blocks may add to the index; items of fewer blocks than that
# are never refused.
_INDEX_SHARE = 4
_MIN_BLOCKS = 256
_WARN_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Table:
    """See the module.

    Attributes:
      blocks: The bytes.
      limiter: Consulted by the caller; `insert` and `choose` only count.
      in_flight_bytes: Part of max_bytes that is kept free for messages on their way.
      evicted, used_up, stale: Items that left for room, items that left because they were
        sampled often enough, updates that came too late.
      next_generation: Of the next item.
    """

    def __init__(
        self,
        name: str,
        config: TableConfig,
        seed: int | None = None,
        on_free: Callable[[Chunk], None] | None = None,
        on_used_up: Callable[[KeyArray], None] | None = None,
    ) -> None:
        """Creates an empty table.

        Args:
          name: For messages.
          config: Its limits.
          seed: Of the draws.
          on_free: Called with each chunk whose memory is freed.
          on_used_up: Called with the keys of items that left by `max_times_sampled`.
        """
        self.name = name
        self.config = config
        self.blocks = BlockStore(on_free)
        self.limiter = RateLimiter(
            config.samples_per_insert, config.error_buffer, config.min_size_to_sample
        )
        self.in_flight_bytes = 0
        self.evicted = self.used_up = self.stale = 0
        self.next_generation = 1
        self._on_used_up = on_used_up
        capacity = config.max_items
        # The index has a place for each block of the item that has most, in each item's row.
        share = config.max_bytes // _INDEX_SHARE // (capacity * np.dtype(np.int32).itemsize)
        self._max_blocks = max(_MIN_BLOCKS, share)
        self._next_warning = 0.0
        self._selector = selectors.make(
            config.selector, capacity, config.priority_exponent, np.random.default_rng(seed)
        )
        self._key: KeyArray = np.zeros(capacity, np.uint64)
        self._priority: FloatArray = np.zeros(capacity, np.float64)
        self._times: npt.NDArray[np.uint32] = np.zeros(capacity, np.uint32)
        self._offset: npt.NDArray[np.uint32] = np.zeros(capacity, np.uint32)
        self._length: npt.NDArray[np.uint32] = np.zeros(capacity, np.uint32)
        self._chunk: IntArray = np.zeros(capacity, np.int64)
        self._count: IntArray = np.zeros(capacity, np.int64)
        self._rows: npt.NDArray[np.int32] = np.zeros((capacity, 1), np.int32)
        self._free: npt.NDArray[np.int32] = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self._ages = AgeQueue(capacity, self._is_present)
        self.items = 0

    @property
    def total_priority(self) -> float:
        """The sum of priority^alpha (of ones for the other selectors)."""
        return self._selector.total

    @property
    def index_bytes(self) -> int:
        """Memory beside the chunks; grows with max_items, not with what is stored."""
        arrays = (self._key, self._priority, self._times, self._offset, self._length,
                  self._chunk, self._count, self._rows, self._free)  # fmt: skip
        return sum(array.nbytes for array in arrays) + self.blocks.index_bytes

    def places(self) -> IntArray:
        """All places with an item, int64 [items]."""
        return np.flatnonzero(self._key)

    def add_message(
        self, payload: memoryview, size: int, sizes: IntArray, items: int, segment: int = -1
    ) -> tuple[int, IntArray]:
        """Makes room for a message and takes its blocks; see `BlockStore.add`.

        Raises:
          StatusError: RESOURCE_EXHAUSTED if there is no room even without any item.
        """
        limit = self.config.max_bytes - self.in_flight_bytes
        while self.blocks.bytes + size > limit and self.items:
            share = (self.blocks.bytes + size - limit) / max(1, self.blocks.bytes)
            self._evict(max(1, int(self.items * share * _EVICTION_SHARE)))
            self._warn_if_too_small()
        if self.blocks.bytes + size > limit:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"table {self.name!r}: no room for {size} bytes; of max_bytes"
                f" {self.config.max_bytes} {self.in_flight_bytes} are kept free for messages on"
                f" their way, {self.blocks.bytes} are blocks that writers or readers hold, no item"
                " is left",
            )
        return self.blocks.add(payload, size, sizes, items, segment)

    def check_priorities(self, priorities: FloatArray) -> None:
        """Refuses what a sum tree cannot hold.

        Raises:
          StatusError: INVALID_ARGUMENT, with the first wrong value and its index.
        """
        valid = (priorities >= 0) & (priorities <= self._selector.max_priority)
        if not valid.all():
            i = int(np.argmin(valid))
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"table {self.name!r}: priority {i} is {priorities[i]}, allowed: finite,"
                f" 0 or more, and at most {self._selector.max_priority:g}",
            )

    def check_sizes(self, items: ItemArrays) -> None:
        """Refuses items that are larger than the table, or of more blocks than its index takes.

        Raises:
          StatusError: RESOURCE_EXHAUSTED.
        """
        if not len(items):
            return
        if items.counts.max() > self._max_blocks:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"table {self.name!r}: an item of {items.counts.max()} blocks, allowed:"
                f" {self._max_blocks} with max_items {self.config.max_items} and max_bytes"
                f" {self.config.max_bytes}",
            )
        starts = np.cumsum(items.counts) - items.counts
        sizes = np.add.reduceat(self.blocks.sizes(items.rows), starts)
        if sizes.max() > self.config.max_bytes:
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"table {self.name!r}: an item of {sizes.max()} bytes, the whole table may"
                f" have {self.config.max_bytes} (max_bytes)",
            )

    def insert(self, items: ItemArrays) -> None:
        """Inserts checked items; the oldest leave if there are too many."""
        capacity = self.config.max_items
        for start in range(0, len(items), capacity):
            self._insert(items.part(start, min(start + capacity, len(items))))

    def choose(self, count: int) -> ChosenItems:
        """Chooses up to `count` items, fewer only if the table runs empty; pins their blocks.

        Items are counted as sampled here.
        """
        parts: list[ChosenItems] = []
        missing = count
        while missing and self.items:
            part = self._choose(missing)
            parts.append(part)
            missing -= len(part.keys)
        chosen = ChosenItems.joined(parts) if parts else self._take(np.zeros(0, np.int64), None)
        self.limiter.sampled += len(chosen.keys)
        return chosen

    def unpin(self, chosen: ChosenItems) -> None:
        """Lets the blocks of chosen items go."""
        self.blocks.release(chosen.rows)

    def update(self, keys: KeyArray, priorities: FloatArray) -> int:
        """Changes priorities [n] of the items with these keys [n]; of equal keys the last wins.

        Returns:
          How many keys had no item any more.

        Raises:
          StatusError: INVALID_ARGUMENT, see `check_priorities`; then nothing was changed.
        """
        self.check_priorities(priorities)
        present = self._is_present(keys)
        stale = len(keys) - int(np.count_nonzero(present))
        self.stale += stale
        keys, priorities = keys[present], priorities[present]
        # `unique` finds the first of equal keys, so in reversed order the last.
        keys, index = np.unique(keys[::-1], return_index=True)
        if len(keys):
            self._set_priorities(places_of(keys), priorities[::-1][index])
        return stale

    def remove(self, keys: KeyArray) -> None:
        """Removes the items with these keys [n], if they are there."""
        present = keys[self._is_present(keys)]
        if len(present):
            self._remove(places_of(np.unique(present)))

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """What changes after insertion: keys, priorities and times sampled, [items] each."""
        places = self.places()
        return {
            "keys": self._key[places],
            "priorities": self._priority[places],
            "times_sampled": self._times[places],
        }

    def current_keys(self, keys: KeyArray) -> KeyArray:
        """The keys that items have now which had these keys [n] before a restart.

        Places differ after a restart, generations do not. 0 where the item is not there.
        """
        here = np.sort(self._key[self.places()])
        if not len(here):
            return np.zeros(len(keys), np.uint64)
        shift = np.uint64(PLACE_BITS)
        at = np.searchsorted(here >> shift, keys >> shift)
        found = here[np.minimum(at, len(here) - 1)]
        return np.where(found >> shift == keys >> shift, found, np.uint64(0))

    def restore(self, state: dict[str, npt.NDArray[np.generic]]) -> int:
        """Gives items that are still there their saved state.

        Returns:
          How many there were.
        """
        keys = self.current_keys(state["keys"].astype(np.uint64))
        found = keys != 0
        places = places_of(keys[found])
        if len(places):
            self._times[places] = state["times_sampled"][found]
            self._set_priorities(places, state["priorities"][found].astype(np.float64))
        return len(places)

    def priority_sample(self, count: int, random: np.random.Generator) -> FloatArray:
        """Priorities of up to `count` items, float64 [n], for metrics."""
        places = self.places()
        if len(places) > count:
            places = random.choice(places, count, replace=False)
        return self._priority[places]

    def _set_priorities(self, places: IntArray, priorities: FloatArray) -> None:
        self._priority[places] = priorities
        self._selector.set(places, self._selector.weight(priorities))

    def _is_present(self, keys: KeyArray) -> npt.NDArray[np.bool_]:
        places = places_of(keys)
        inside = places < self.config.max_items
        found = self._key[np.where(inside, places, 0)] == keys
        present: npt.NDArray[np.bool_] = inside & found & (keys != 0)
        return present

    def _insert(self, items: ItemArrays) -> None:
        count = len(items)
        if (excess := self.items + count - self.config.max_items) > 0:
            self._evict(excess)
        free = self.config.max_items - self.items
        places = self._free[free - count : free].astype(np.int64)
        keys = (items.generations << np.uint64(PLACE_BITS)) | places.astype(np.uint64)
        self._key[places] = keys
        self._times[places] = 0
        self._offset[places] = items.offsets
        self._length[places] = items.lengths
        self._chunk[places] = items.chunk
        self._count[places] = items.counts
        self._store_rows(places, items)
        self.blocks.retain(items.rows)
        self._set_priorities(places, items.priorities)
        self._ages.append(keys)
        self.items += count
        self.limiter.inserted += count
        self.next_generation = max(self.next_generation, int(items.generations[-1]) + 1)

    def _store_rows(self, places: IntArray, items: ItemArrays) -> None:
        width = int(items.counts.max())
        if width > self._rows.shape[1]:
            wider = np.zeros((self.config.max_items, width), np.int32)
            wider[:, : self._rows.shape[1]] = self._rows
            self._rows = wider
        item, column = ragged(items.counts)
        self._rows[places[item], column] = items.rows

    def _rows_of(self, places: IntArray) -> tuple[IntArray, IntArray]:
        counts = self._count[places]
        item, column = ragged(counts)
        return self._rows[places[item], column].astype(np.int64), counts

    def _choose(self, count: int) -> ChosenItems:
        limit = self.config.max_times_sampled
        if self.config.selector == "fifo":
            places = places_of(self._ages.oldest(count if limit else 1))
            uses = limit - self._times[places].astype(np.int64) if limit else count
            places = np.repeat(places, uses)[:count]
            return self._take(places, np.ones(len(places)))
        present = self.places() if self._selector.total <= 0 else np.zeros(0, np.int64)
        places, probabilities = self._selector.choose(count, present)
        if limit:
            # A draw of an item that an earlier draw of this round used up is drawn again.
            fits = self._times[places] + occurrence(places) < limit
            places, probabilities = places[fits], probabilities[fits]
        return self._take(places, probabilities)

    def _take(self, places: IntArray, probabilities: FloatArray | None) -> ChosenItems:
        np.add.at(self._times, places, 1)
        rows, counts = self._rows_of(places)
        chosen = ChosenItems(
            keys=self._key[places],
            probabilities=np.zeros(0) if probabilities is None else probabilities,
            priorities=self._priority[places],
            times_sampled=self._times[places],
            offsets=self._offset[places],
            lengths=self._length[places],
            rows=rows,
            counts=counts,
        )
        self.blocks.retain(rows)
        limit = self.config.max_times_sampled
        if limit and len(places):
            spent = np.unique(places[self._times[places] >= limit])
            if len(spent):
                self.used_up += len(spent)
                keys = self._key[spent]
                self._remove(spent)
                if self._on_used_up is not None:
                    self._on_used_up(keys)
        return chosen

    def _warn_if_too_small(self) -> None:
        """Says why nothing is sampled, when that cannot change by itself."""
        minimum = self.config.min_size_to_sample
        if self.items >= minimum or time.monotonic() < self._next_warning:
            return
        self._next_warning = time.monotonic() + _WARN_SECONDS
        _log.warning(
            "table %r: max_bytes %d holds %d items of this size, min_size_to_sample is %d: nothing"
            " can be sampled",
            self.name, self.config.max_bytes, self.items, minimum,
        )  # fmt: skip

    def _evict(self, count: int) -> None:
        keys = self._ages.oldest(count)
        self.evicted += len(keys)
        self._remove(places_of(keys))

    def _remove(self, places: IntArray) -> None:
        count = len(places)
        rows, _ = self._rows_of(places)
        self._key[places] = 0
        self._selector.clear(places)
        free = self.config.max_items - self.items
        self._free[free : free + count] = places
        self.items -= count
        self.blocks.release(rows)
        self.blocks.release_users(self._chunk[places])
