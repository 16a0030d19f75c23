"""Unrolls and parameters as bytes: hand-made ones, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc
import numpy as np
import pytest

from services.learner import trajectories
from services.learner.trajectories import UnrollLayout
from services.learner.unrolls import RecordBatch
from services.shared.generated.seedpod.trajectory.v1 import trajectory_pb2
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from services.shared.status import StatusError
from tests.unit.learner.harness import FIRST, LAST, MID, Harness

# Three stacked frames need two records of context; nine bits travel in two bytes.
SPEC = EnvironmentSpec(
    (
        TensorSpec("bits", DataType.BIT, (9,), stack=3),
        TensorSpec("mode", DataType.INT32, (), num_values=4),
    ),
    DiscreteActionSpec((5,)),
)
LAYOUT = UnrollLayout(SPEC, 2, 5, (np.zeros((1, 2), np.float32),))


def batch() -> RecordBatch:
    """Two unrolls of three records: the second one soon after its episode began."""
    return RecordBatch(
        observation=(
            np.arange(20, dtype=np.uint8).reshape(2, 5, 2),
            np.array([[0, 1, 2, 3, 0], [3, 2, 1, 0, 3]], np.int32),
        ),
        stack_index=(
            np.array([[[0, 1, 2], [1, 2, 3], [4, 4, 4]], [[1, 1, 2], [1, 2, 3], [2, 3, 4]]], "i4"),
            np.array([[[2], [3], [4]]] * 2, np.int32),
        ),
        previous_action=np.array([[[4], [3], [2]], [[0], [1], [2]]], np.int32),
        action=np.array([[[3], [2], [1]], [[1], [2], [3]]], np.int32),
        reward=np.array([[0.5, 1, 0], [2, 3, 4]], np.float32),
        discount=np.array([[1, 0, 1], [1, 1, 1]], np.float32),
        step_type=np.array([[MID, LAST, FIRST], [MID, MID, MID]], np.uint8),
        policy_parameters=np.arange(30, dtype=np.float32).reshape(2, 3, 5),
        initial_state=(np.array([[1, 2], [3, 4]], np.float32),),
        policy_version=np.array([[7, 7, 8], [8, 8, 9]]),
    )


def test_an_unroll_travels_as_the_contract_says() -> None:
    message = trajectories.encode(LAYOUT, batch())
    assert message.unrolls == 2
    assert message.records_before == bytes([2, 1])
    assert message.step_type == bytes([1, 2, 0, 1, 1, 1])
    assert np.frombuffer(message.action, np.int32).tolist() == [4, 3, 2, 1, 0, 1, 2, 3]
    assert np.frombuffer(message.initial_state, np.float32).tolist() == [1, 2, 3, 4]
    # Ten frames of two bytes, then ten integers: stacks are not sent.
    assert message.observation[:20] == bytes(range(20))
    assert len(message.observation) == 20 + 40 == 2 * LAYOUT.observation_bytes


def test_what_is_decoded_is_what_was_encoded() -> None:
    data = trajectories.encode(LAYOUT, batch()).SerializeToString()
    decoded = trajectories.decode(LAYOUT, trajectory_pb2.PutUnrollsRequest.FromString(data))
    for field in dataclasses.fields(RecordBatch):
        given, got = getattr(batch(), field.name), getattr(decoded, field.name)
        parts = zip(given, got, strict=True) if isinstance(given, tuple) else [(given, got)]
        for expected, part in parts:
            assert part.dtype == expected.dtype, field.name
            np.testing.assert_array_equal(part, expected, field.name)


def test_unrolls_that_the_learner_cut_itself_survive() -> None:
    """Of a harness whose episodes begin and end anywhere in context and unroll."""
    harness = Harness(slots=1, unroll_length=4, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    state = tuple(part[:1] for part in harness.state)
    size = harness.store.layout.parameter_size
    layout = UnrollLayout(harness.store.layout.spec, 4, size, state)
    kinds = [FIRST, MID, MID, LAST, FIRST, LAST, FIRST, MID, MID, MID, MID, MID, LAST, FIRST]
    seen = 0
    for record, kind in enumerate([*kinds, MID, MID, MID]):
        harness.send(group, kind, frame=record)
        harness.loop.step()
        while (entries := harness.assembler.take(1, 0.0)) is not None:
            unroll = harness.assembler.gather(entries)
            harness.assembler.release(entries)
            # What the harness's policy answers need not be an action of its spec.
            unroll.action[:] = unroll.previous_action[:] = 0
            decoded = trajectories.decode(layout, trajectories.encode(layout, unroll))
            for expected, index in zip(unroll.stack_index, decoded.stack_index, strict=True):
                np.testing.assert_array_equal(index, expected)
            seen += 1
    assert seen == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unrolls": 0}, "unrolls is 0"),
        ({"reward": b"\0" * 23}, "reward has 23 bytes, must have 24"),
        ({"unrolls": 3}, "records_before has 2 bytes, must have 3"),
        ({"records_before": bytes([3, 0])}, "records_before is 3, allowed: 0 to 2"),
        ({"step_type": bytes([1, 2, 0, 1, 3, 1])}, "step_type is 3, allowed: 0 to 2"),
        ({"discount": np.full(6, 2, np.float32).tobytes()}, "discount is 2.0, allowed: 0 to 1"),
        ({"reward": np.full(6, np.nan, np.float32).tobytes()}, "reward is not finite"),
        ({"action": np.full(8, 5, np.int32).tobytes()}, "action[0] is 5, allowed: 0 to 4"),
        ({"policy_version": np.full(6, -1).tobytes()}, "policy_version is -1"),
        ({"initial_state": b""}, "initial_state has 0 bytes, must have 16"),
        ({"initial_state": np.full(4, np.inf, np.float32).tobytes()}, "initial_state[0] is not"),
        ({"observation": b"\0" * 20 + b"\4" * 40}, "observation 'mode' is 67372036, allowed: 0 to"),
        ({"observation": b""}, "observation has 0 bytes, must have 60"),
    ],
)
def test_bad_unrolls_are_refused(change: dict[str, Any], message: str) -> None:
    request = trajectories.encode(LAYOUT, batch())
    for name, value in change.items():
        setattr(request, name, value)
    with pytest.raises(StatusError) as refused:
        trajectories.decode(LAYOUT, request)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert message in refused.value.message


def test_parameters_are_told_apart_by_their_place() -> None:
    like = {"a": np.zeros((2, 1), np.float32), "b": np.zeros(1, np.float32)}
    data = trajectories.pack({"a": np.array([[1], [2]], "f4"), "b": np.array([3], "f4")})
    assert data == np.array([1, 2, 3], "<f4").tobytes()
    unpacked = trajectories.unpack(like, data)
    assert unpacked["a"].tolist() == [[1], [2]]
    assert unpacked["b"].tolist() == [3]
    with pytest.raises(ValueError, match="have 8 bytes, expected: 12"):
        trajectories.unpack(like, data[:8])
