"""Raw calls and small sequences for the tests of the replay service."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np

from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import Field, SequenceLayout
from tests.integration.replay_server import ReplayServer

TIMEOUT = 20.0
LAYOUT = replay_pb2.Layout(description="eight bytes", version=1)
SMALL = SequenceLayout(
    (Field("frame", "uint8", (20, 20)), Field("n", "int32"), Field("slot", "int32")),
    (Field("state", "float32", (2,)),),
)


def step(slot: int, n: int) -> dict[str, Any]:
    return {"frame": np.full((20, 20), n % 251, np.uint8), "n": n, "slot": slot}


def check_batch(batch: Any, length: int) -> None:
    """Whether each row is what `step` made: consecutive steps of one slot and their state."""
    n, slot, frame = batch.steps["n"], batch.steps["slot"], batch.steps["frame"]
    assert (batch.lengths == length).all()
    assert (np.diff(n, axis=1) == 1).all()
    assert (slot == slot[:, :1]).all()
    assert (frame == (n % 251)[:, :, None, None]).all()
    assert (batch.context["state"] == np.stack([slot[:, 0], n[:, 0]], 1)).all()


def insert_request(
    sequence: int, priorities: Any, first_block: int = 0, block: bytes = b"12345678", **fields: Any
) -> replay_pb2.InsertRequest:
    """One item of one block for each priority; the blocks are released at once."""
    values = np.asarray(priorities, np.float64)
    count = len(values)
    ids = np.arange(first_block, first_block + count, dtype=np.uint64)
    request = replay_pb2.InsertRequest(
        sequence=sequence,
        block_ids=ids.tobytes(),
        block_bytes=np.full(count, len(block), np.uint32).tobytes(),
        released_block_ids=ids.tobytes(),
        item_block_counts=np.ones(count, np.uint32).tobytes(),
        item_block_ids=ids.tobytes(),
        item_offsets=np.zeros(count, np.uint32).tobytes(),
        item_lengths=np.ones(count, np.uint32).tobytes(),
        item_priorities=values.tobytes(),
        payload=block * count,
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return request


class InsertCall:
    """One Insert stream."""

    def __init__(
        self, server: ReplayServer, writer_id: int = 1, layout: replay_pb2.Layout = LAYOUT
    ) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        opening = replay_pb2.InsertOpen(table="sequences", layout=layout, writer_id=writer_id)
        self._requests.put(replay_pb2.InsertRequest(open=opening))
        self.call = server.stub().Insert(iter(self._requests.get, None), timeout=TIMEOUT)

    def send(self, request: replay_pb2.InsertRequest) -> None:
        self._requests.put(request)

    def receive(self) -> replay_pb2.InsertResponse:
        response: replay_pb2.InsertResponse = next(self.call)
        return response

    def insert(self, sequence: int, priorities: Any, **fields: Any) -> int:
        self.send(insert_request(sequence, priorities, first_block=sequence * 1000, **fields))
        return int(self.receive().sequence)

    def end(self) -> None:
        self._requests.put(None)


def sample_request(batch_size: int, layout: replay_pb2.Layout = LAYOUT) -> Any:
    return replay_pb2.SampleRequest(
        table="sequences", layout=layout, batch_size=batch_size, importance_exponent=0.6
    )
