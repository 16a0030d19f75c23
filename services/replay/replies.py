"""What the RPCs share: requests read and checked, batches described and cut into replies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from services.replay.host import TableHost
from services.replay.ingest import invalid
from services.replay.items import ChosenItems
from services.replay.recovery import Layout
from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import messages
from services.shared.replay.weights import importance_weights
from services.shared.varint import MalformedMessage

_Request = TypeVar("_Request", bound=Message)


def parse(data: bytes, kind: type[_Request]) -> _Request:
    """A message of a client.

    Raises:
      StatusError: INVALID_ARGUMENT.
    """
    try:
        message: _Request = kind.FromString(data)
    except DecodeError as error:
        raise invalid(f"not a {kind.DESCRIPTOR.name}: {error}") from None
    return message


def to_layout(layout: replay_pb2.Layout) -> Layout:
    """What a client says about its blocks."""
    return Layout(layout.description, layout.version)


def update(
    host: TableHost,
    request: replay_pb2.StreamSamplesRequest | replay_pb2.UpdatePrioritiesRequest,
) -> int:
    """Applies a request's priorities and returns how many were stale.

    Raises:
      StatusError: INVALID_ARGUMENT.
    """
    try:
        keys = messages.array(request.keys, np.uint64, "keys")
        priorities = messages.array(request.priorities, np.float64, "priorities")
    except MalformedMessage as error:
        raise invalid(str(error)) from None
    if len(keys) != len(priorities):
        raise invalid(f"{len(keys)} keys and {len(priorities)} priorities")
    return host.table.update(keys, priorities)


def describe(
    host: TableHost, chosen: ChosenItems, exponent: float
) -> tuple[Any, replay_pb2.BatchHeader]:
    """The rows of a batch's blocks, each once, and its header."""
    table = host.table
    rows, blocks = np.unique(chosen.rows, return_inverse=True)
    weights = importance_weights(chosen.probabilities, exponent)
    header = replay_pb2.BatchHeader(
        keys=chosen.keys.tobytes(),
        probabilities=chosen.probabilities.tobytes(),
        weights=weights.tobytes(),
        priorities=chosen.priorities.tobytes(),
        times_sampled=chosen.times_sampled.tobytes(),
        item_offsets=chosen.offsets.tobytes(),
        item_lengths=chosen.lengths.tobytes(),
        item_block_counts=chosen.counts.astype(np.uint32).tobytes(),
        item_blocks=blocks.astype(np.uint32).tobytes(),
        block_bytes=table.blocks.sizes(rows).astype(np.uint32).tobytes(),
        table_items=table.items,
        total_priority=table.total_priority,
    )
    return rows, header


def replies(
    host: TableHost, batch: int, chosen: ChosenItems, exponent: float, reply_bytes: int
) -> Iterator[bytes]:
    """The messages of a batch, each made when the one before has gone."""
    rows, header = describe(host, chosen, exponent)
    sizes = host.table.blocks.sizes(rows)
    ends = np.cumsum(sizes)
    first = 0
    while True:
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + reply_bytes, side="right"))
        stop = min(max(stop, first + 1), len(rows))
        reply = replay_pb2.StreamSamplesResponse(
            batch=batch, first_block=first, last=stop == len(rows)
        )
        if not first:
            reply.header.CopyFrom(header)
        views = host.table.blocks.views(rows[first:stop])
        yield messages.join(reply, views, int(sizes[first:stop].sum()))
        first = stop
        if reply.last:
            return
