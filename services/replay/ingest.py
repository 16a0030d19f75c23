"""From an InsertRequest to items of a table: the same for a live stream and for recovery."""

from __future__ import annotations

import dataclasses

import grpc
import numpy as np
import numpy.typing as npt

from services.replay.items import ItemArrays, KeyArray
from services.replay.sum_tree import FloatArray, IntArray
from services.replay.table import Table
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import messages
from services.shared.status import StatusError
from services.shared.varint import MalformedMessage


@dataclasses.dataclass
class Insertion:
    """An InsertRequest as arrays; see the proto for the fields."""

    sequence: int
    block_ids: KeyArray
    sizes: IntArray
    released: KeyArray
    counts: IntArray
    item_block_ids: KeyArray
    offsets: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    priorities: FloatArray
    payload: memoryview
    message_bytes: int


def invalid(message: str) -> StatusError:
    """An error about what a client sent."""
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)


def parse(message: bytes) -> Insertion:
    """Reads a message and checks that its arrays fit together.

    Raises:
      StatusError: INVALID_ARGUMENT, with the field and the numbers that do not fit.
    """
    try:
        head, payload = messages.split(message, replay_pb2.InsertRequest)
        insertion = Insertion(
            sequence=head.sequence,
            block_ids=messages.array(head.block_ids, np.uint64, "block_ids"),
            sizes=messages.array(head.block_bytes, np.uint32, "block_bytes").astype(np.int64),
            released=messages.array(head.released_block_ids, np.uint64, "released_block_ids"),
            counts=messages.array(head.item_block_counts, np.uint32, "item_block_counts").astype(
                np.int64
            ),
            item_block_ids=messages.array(head.item_block_ids, np.uint64, "item_block_ids"),
            offsets=messages.array(head.item_offsets, np.uint32, "item_offsets"),
            lengths=messages.array(head.item_lengths, np.uint32, "item_lengths"),
            priorities=messages.array(head.item_priorities, np.float64, "item_priorities"),
            payload=payload,
            message_bytes=len(message),
        )
    except MalformedMessage as error:
        raise invalid(f"not an InsertRequest: {error}") from None
    _check_lengths(insertion)
    return insertion


def _check_lengths(x: Insertion) -> None:
    if len(x.block_ids) != len(x.sizes):
        raise invalid(f"{len(x.block_ids)} block_ids and {len(x.sizes)} block_bytes")
    if int(x.sizes.sum()) != len(x.payload):
        raise invalid(f"block_bytes sum to {x.sizes.sum()}, payload has {len(x.payload)}")
    items = {len(x.counts), len(x.offsets), len(x.lengths), len(x.priorities)}
    if len(items) > 1:
        raise invalid(
            f"{len(x.counts)} item_block_counts, {len(x.offsets)} item_offsets,"
            f" {len(x.lengths)} item_lengths and {len(x.priorities)} item_priorities"
        )
    if len(x.counts) and x.counts.min() < 1:
        raise invalid(f"item {int(x.counts.argmin())} has no blocks, allowed: 1 or more")
    if int(x.counts.sum()) != len(x.item_block_ids):
        raise invalid(
            f"item_block_counts sum to {x.counts.sum()}, there are {len(x.item_block_ids)}"
            " item_block_ids"
        )


class HeldBlocks:
    """The blocks that a writer's stream may still refer to: rows by the writer's ids."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def take(
        self, table: Table, x: Insertion, generations: KeyArray, segment: int = -1
    ) -> ItemArrays:
        """Adds a message's blocks to the table.

        Args:
          table: Evicts its oldest items if it needs room.
          x: The message.
          generations: uint64 [m], of its items.
          segment: Where the log has it.

        Returns:
          Its items, checked and ready for `Table.insert`; then call `release` with x.released.

        Raises:
          StatusError: As the proto says; the blocks and items of the table are as before.
        """
        table.check_priorities(x.priorities)
        ids, new = x.item_block_ids.tolist(), set(x.block_ids.tolist())
        if len(new) < len(x.block_ids) or not self._rows.keys().isdisjoint(new):
            raise invalid("block_ids has an id twice, or one that the stream has not released")
        if unknown := set(ids).difference(new, self._rows):
            raise invalid(
                f"items refer to block {min(unknown)}, which this stream has not sent or has"
                " released"
            )
        chunk, rows = table.add_message(x.payload, x.message_bytes, x.sizes, len(x.counts), segment)
        self._rows.update(zip(x.block_ids.tolist(), rows.tolist(), strict=True))
        lookup = self._rows
        items = ItemArrays(
            rows=np.array([lookup[i] for i in ids], np.int64),
            counts=x.counts,
            offsets=x.offsets,
            lengths=x.lengths,
            priorities=x.priorities,
            chunk=chunk,
            generations=generations,
        )
        try:
            table.check_sizes(items)
        except StatusError:
            self.withdraw(table, x, items)
            raise
        return items

    def withdraw(self, table: Table, x: Insertion, items: ItemArrays) -> None:
        """Takes back what `take` did; the items were not inserted."""
        self.release(table, x.block_ids)
        table.blocks.release_users(np.full(len(items), items.chunk))

    def release(self, table: Table, ids: KeyArray) -> None:
        """Gives blocks up; unknown ids are ignored."""
        rows = [row for i in ids.tolist() if (row := self._rows.pop(i, None)) is not None]
        table.blocks.release(np.array(rows, np.int64))

    def release_all(self, table: Table) -> None:
        """Gives all blocks up."""
        table.blocks.release(np.fromiter(self._rows.values(), np.int64, len(self._rows)))
        self._rows.clear()

    def has_blocks(self, x: Insertion) -> npt.NDArray[np.bool_]:
        """Whether the blocks of each item are there, [m]; they may be lost with a segment."""
        known = self._rows.keys() | set(x.block_ids.tolist())
        ids = x.item_block_ids.tolist()
        if known.issuperset(ids):
            return np.ones(len(x.counts), np.bool_)
        stops = np.cumsum(x.counts)
        spans = zip((stops - x.counts).tolist(), stops.tolist(), strict=True)
        return np.array([all(i in known for i in ids[a:b]) for a, b in spans], np.bool_)


def select(x: Insertion, keep: npt.NDArray[np.bool_]) -> Insertion:
    """The message with some of its items, keep [m], and all of its blocks."""
    if keep.all():
        return x
    return dataclasses.replace(
        x,
        counts=x.counts[keep],
        item_block_ids=x.item_block_ids[np.repeat(keep, x.counts)],
        offsets=x.offsets[keep],
        lengths=x.lengths[keep],
        priorities=x.priorities[keep],
    )
