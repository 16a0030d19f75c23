"""The writer of one slot: steps become blocks, and runs of steps become items."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

from services.shared.replay.codec import StepBuffer, Tensors, encode_context
from services.shared.replay.connection import ReplayTimeout
from services.shared.replay.inserting import ShardInserter, Unit
from services.shared.replay.layout import SequenceLayout

# How soon a writer that waits for one of several shards notices that another has room.
_LOOK_AROUND_SECONDS = 0.02


@dataclasses.dataclass(slots=True)
class _Block:
    number: int
    data: bytes
    steps: int
    # Shards that have it.
    shards: set[int]


class SlotWriter:
    """Not thread-safe; one for each slot.

    Attributes:
      rerouted_items: Items that went to another shard because their own was away or had no room.
    """

    def __init__(
        self,
        layout: SequenceLayout,
        shards: Sequence[ShardInserter],
        home: int,
        ids: itertools.count[int],
        max_length: int,
        block_length: int,
    ) -> None:
        """Begins with no step.

        Args:
          layout: Of the steps.
          shards: Where items may go.
          home: Which one this slot uses while it is there, since items share blocks only there.
          ids: Gives block ids; shared by the client's writers.
          max_length: Steps of the longest item.
          block_length: Steps after which a block is cut.
        """
        self.rerouted_items = 0
        self._layout = layout
        self._shards = shards
        self._home = home
        self._ids = ids
        self._max_length = max_length
        self._block_length = block_length
        self._buffer = StepBuffer(layout, block_length)
        self._blocks: collections.deque[_Block] = collections.deque()
        self._block_steps = 0
        self._released: dict[int, list[int]] = collections.defaultdict(list)

    @property
    def steps(self) -> int:
        """Steps that an item may still have: at most max_length and what its block has more."""
        return self._block_steps + self._buffer.steps

    def append(self, step: dict[str, Any]) -> None:
        """Adds a step: a value or array for each field; it is copied."""
        self._buffer.append(step)
        if self._buffer.steps == self._block_length:
            self.cut()

    def extend(self, steps: Tensors) -> None:
        """Adds a run of steps, an array [n, ...] for each field; they are copied.

        Blocks are cut as if the steps were appended one by one.

        Raises:
          KeyError: A field is missing; no step was added.
          ValueError: An array has a shape that does not fit; no step was added.
        """
        count = self._layout.count(steps)
        start = 0
        while start < count:
            stop = min(count, start + self._block_length - self._buffer.steps)
            self._buffer.extend(steps, start, stop)
            start = stop
            if self._buffer.steps == self._block_length:
                self.cut()

    def cut(self) -> None:
        """Ends the block here, because an item will begin here.

        An item that begins and ends with a block shares all its bytes with those it overlaps, and
        no reader decodes steps that it does not need.
        """
        count = self._buffer.steps
        if not count:
            return
        self._blocks.append(_Block(next(self._ids), self._buffer.encode(), count, set()))
        self._block_steps += count
        while self._block_steps - self._blocks[0].steps >= self._max_length:
            self._forget_oldest()

    def create_item(
        self,
        length: int,
        priority: float,
        context: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Makes an item of the last `length` steps.

        Overlapping items share their blocks where they end with a block; one that ends elsewhere
        cuts the block there.

        Args:
          length: Steps, 1 to max_length.
          priority: Finite, 0 or more.
          context: A value for each context field of the layout.
          timeout: Seconds to wait for room while the service is slow or away; None: forever.

        Raises:
          ValueError: A length or priority outside its limits.
          ReplayError: The service refuses this client.
          ReplayTimeout: There was no room in time; the item was not made. The same call may be
            made again, or the item left out.
        """
        longest = min(self._max_length, self.steps)
        if not 1 <= length <= longest:
            raise ValueError(
                f"length is {length}, allowed: 1 to {longest}, the steps there are and max_length"
            )
        if not 0 <= priority < math.inf:
            raise ValueError(f"priority is {priority}, allowed: finite, 0 or more")
        self.cut()
        used: list[_Block] = []
        missing = length
        for block in reversed(self._blocks):
            used.append(block)
            missing -= block.steps
            if missing <= 0:
                break
        used.reverse()
        item = used, -missing, length, priority
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            # If one shard's rate limiter waits for samples and another's for inserts, only inserts
            # into that other one let both go on.
            *others, last = self._usable_shards()
            left = max(0.0, deadline - time.monotonic())
            wait = min(left, _LOOK_AROUND_SECONDS) if others else left
            for shard in (*others, last):
                patience = wait if shard == last else 0.0
                try:
                    self._submit(shard, *item, context, None if patience == math.inf else patience)
                except ReplayTimeout:
                    if shard == last and time.monotonic() >= deadline:
                        raise
                else:
                    return

    def _submit(
        self,
        shard: int,
        used: list[_Block],
        offset: int,
        length: int,
        priority: float,
        context: dict[str, Any] | None,
        timeout: float | None,
    ) -> None:
        """Hands an item of the used blocks to a shard, with those that it does not have."""
        blocks = {b.number: b.data for b in used if shard not in b.shards}
        references = [b.number for b in used]
        released = self._released[shard]
        if self._layout.context:
            number = next(self._ids)
            blocks[number] = encode_context(self._layout, context or {})
            references.append(number)
            released = [*released, number]
        unit = Unit(blocks, (references, offset, length, priority), released)
        self._shards[shard].submit(unit, timeout)
        self._released[shard] = []
        self.rerouted_items += shard != self._home
        for block in used:
            block.shards.add(shard)

    def end_episode(self) -> None:
        """Forgets all steps: no later item reaches back to them. Never waits.

        Raises:
          ReplayError: The service refuses this client.
        """
        self._buffer.steps = 0
        while self._blocks:
            self._forget_oldest()
        for shard in list(self._released):
            if released := self._released.pop(shard):
                self._shards[shard].submit(Unit({}, None, released), None)

    def _forget_oldest(self) -> None:
        block = self._blocks.popleft()
        self._block_steps -= block.steps
        for shard in block.shards:
            self._released[shard].append(block.number)

    def _usable_shards(self) -> list[int]:
        """The slot's own first; it alone if none is usable."""
        count = len(self._shards)
        if count == 1:
            return [0]
        order = [(self._home + step) % count for step in range(count)]
        return [shard for shard in order if self._shards[shard].is_usable] or [self._home]
