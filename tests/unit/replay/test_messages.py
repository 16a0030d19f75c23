"""The payload is cut off and joined exactly as the generated code would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.shared.generated.seedpod.replay.v1 import replay_pb2
from services.shared.replay import messages
from services.shared.varint import MalformedMessage

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "sequence": st.integers(0, 2**64 - 1),
        "block_ids": st.binary(max_size=40),
        "item_priorities": st.binary(max_size=300),
        "open": st.builds(
            replay_pb2.InsertOpen, table=st.text(max_size=9), writer_id=st.integers(0, 2**64 - 1)
        ),
    },
)


@given(fields=FIELDS, payload=st.lists(st.binary(max_size=200), max_size=4))
@settings(max_examples=200, deadline=None)
def test_join_and_split_are_the_generated_code(
    fields: dict[str, object], payload: list[bytes]
) -> None:
    head = replay_pb2.InsertRequest(**fields)  # type: ignore[arg-type]
    whole = b"".join(payload)
    message = messages.join(head, payload, len(whole))
    full = replay_pb2.InsertRequest(payload=whole, **fields)  # type: ignore[arg-type]
    assert message == full.SerializeToString()
    parsed, view = messages.split(full.SerializeToString(), replay_pb2.InsertRequest)
    assert (parsed, bytes(view)) == (head, whole)


@given(data=st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        head, view = messages.split(data, replay_pb2.InsertRequest)
    except MalformedMessage:
        return
    full = replay_pb2.InsertRequest.FromString(data)
    assert bytes(view) == full.payload
    head.payload = full.payload
    assert head == full


def test_a_payload_that_is_not_last_is_found_too() -> None:
    one = replay_pb2.InsertRequest(payload=b"abc").SerializeToString()
    two = replay_pb2.InsertRequest(sequence=7).SerializeToString()
    head, view = messages.split(one + two, replay_pb2.InsertRequest)
    assert (head.sequence, bytes(view)) == (7, b"abc")


def test_arrays_must_have_whole_elements() -> None:
    import numpy as np

    assert messages.array(b"\1\0\0\0", np.uint32, "x").tolist() == [1]
    with pytest.raises(MalformedMessage, match="x has 5 bytes, allowed: a multiple of 4"):
        messages.array(b"12345", np.uint32, "x")
