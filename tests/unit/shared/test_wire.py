from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from services.shared import wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import (
    ContinuousActionSpec,
    DataType,
    DiscreteActionSpec,
    EnvironmentSpec,
    TensorSpec,
)
from services.shared.varint import MalformedMessage

_floats = st.floats(width=32, allow_nan=False)
_requests = st.builds(
    inference_pb2.ActRequest,
    sequence=st.integers(0, 2**64 - 1),
    incarnation=st.binary(max_size=40),
    step_type=st.binary(max_size=300),
    reward=st.binary(max_size=40),
    discount=st.binary(max_size=40),
    environment_cpu_seconds=_floats,
    actor_cpu_seconds=_floats,
    observation=st.binary(max_size=300),
    episodes=st.lists(
        st.builds(
            inference_pb2.EpisodeInfo,
            level=st.text(max_size=9),
            values=st.dictionaries(st.text(max_size=9), _floats, max_size=3),
        ),
        max_size=3,
    ),
    wants_policy=st.booleans(),
)


def _as_tuple(fields: wire.ActRequestFields) -> tuple[object, ...]:
    return tuple(bytes(f) if isinstance(f, memoryview) else f for f in fields)


def _expected(message: inference_pb2.ActRequest) -> tuple[object, ...]:
    names = wire.ActRequestFields._fields
    fields = (getattr(message, name) for name in names)
    return tuple(
        tuple(f) if name == "episodes" else f for name, f in zip(names, fields, strict=True)
    )


@given(_requests, _requests)
def test_reader_equals_generated_code(
    first: inference_pb2.ActRequest, second: inference_pb2.ActRequest
) -> None:
    # Concatenated messages merge: the last occurrence of a field wins.
    for data in (first.SerializeToString(), first.SerializeToString() + second.SerializeToString()):
        assert _as_tuple(wire.read_act_request(data)) == _expected(
            inference_pb2.ActRequest.FromString(data)
        )


def test_reader_skips_unknown_fields() -> None:
    known = inference_pb2.ActRequest(sequence=7, reward=b"abcd").SerializeToString()
    # Fields 15 (varint), 16 (length-delimited), 17 (64 bit), 18 (32 bit) of a later version.
    unknown = b"\x78\x96\x01" + b"\x82\x01\x02xy" + b"\x89\x01" + bytes(8) + b"\x95\x01" + bytes(4)
    fields = wire.read_act_request(unknown + known + unknown)
    assert fields.sequence == 7
    assert bytes(fields.reward) == b"abcd"


@given(st.binary(max_size=60))
def test_reader_accepts_nothing_that_generated_code_refuses(data: bytes) -> None:
    try:
        fields = wire.read_act_request(data)
    except MalformedMessage:
        return
    expected = inference_pb2.ActRequest.FromString(data)
    # What is nested may have NaN, too, which equals nothing: its bytes do.
    assert [e.SerializeToString() for e in fields.episodes] == [
        e.SerializeToString() for e in expected.episodes
    ]
    plain = [f for f in _as_tuple(fields) if not isinstance(f, tuple)]
    assert plain == pytest.approx(
        [f for f in _expected(expected) if not isinstance(f, tuple)], nan_ok=True
    )


@pytest.mark.parametrize(
    "data",
    [
        *(b"\x08", b"\x08\xff", b"\x12\x05abc", b"\x35\x00", b"\x00", b"\x0b"),
        b"\x08" + b"\xff" * 10,
        # A tag and a length in six bytes: five are what 32 bits need.
        b"\x88" + b"\x80" * 4 + b"\x00\x01",
        b"\x12\x81" + b"\x80" * 4 + b"\x00a",
    ],
)
def test_reader_refuses_malformed_messages(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        wire.read_act_request(data)
    with pytest.raises(DecodeError):
        inference_pb2.ActRequest.FromString(data)


def test_layout_views_share_memory_in_the_order_of_the_spec() -> None:
    spec = (
        TensorSpec("image", DataType.UINT8, (2, 3)),
        TensorSpec("bits", DataType.BIT, (3, 3)),
        TensorSpec("x", DataType.FLOAT32, ()),
    )
    layout = wire.ObservationLayout(spec, k=2)
    assert layout.total_bytes == 2 * (6 + 2 + 4)
    buffer = bytearray(layout.total_bytes)
    image, bits, x = layout.views(buffer)
    assert (image.shape, bits.shape, x.shape) == ((2, 2, 3), (2, 2), (2,))
    image[1] = 7
    x[:] = [1.5, -2.0]
    assert bytes(buffer) == bytes(6) + b"\x07" * 6 + bytes(4) + np.array([1.5, -2], "<f4").tobytes()


@pytest.mark.parametrize(
    "action",
    [DiscreteActionSpec((3,)), DiscreteActionSpec((3, 4)), ContinuousActionSpec((-1.0,), (2.0,))],
)
def test_environment_spec_survives_the_wire(
    action: DiscreteActionSpec | ContinuousActionSpec,
) -> None:
    spec = EnvironmentSpec(
        (
            TensorSpec("a/b", DataType.BIT, (72, 96, 4), stack=4),
            TensorSpec("c", DataType.INT32, (), num_values=5),
        ),
        action,
        agents=3,
        frames_per_step=4,
    )
    message = wire.environment_spec_to_proto(spec)
    again = inference_pb2.EnvironmentSpec.FromString(message.SerializeToString())
    assert wire.environment_spec_from_proto(again) == spec


def test_unknown_data_type_is_refused_by_name() -> None:
    message = inference_pb2.EnvironmentSpec(
        observation=[inference_pb2.TensorSpec(name="speed", stack=1)],
        action=inference_pb2.ActionSpec(discrete=inference_pb2.DiscreteAction(num_values=[2])),
        agents=1,
        frames_per_step=1,
    )
    # An enum value of a later version.
    message.observation[0].MergeFromString(b"\x10\x63")
    with pytest.raises(ValueError, match=r"'speed': data type is 99, allowed: .*UINT8=1"):
        wire.environment_spec_from_proto(message)
