"""Blocks: what goes in comes out, in any cut, and damage is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from services.shared.replay.codec import (
    BatchBuffer,
    MalformedBlock,
    StepBuffer,
    encode_context,
)
from services.shared.replay.layout import Field, SequenceLayout

LAYOUT = SequenceLayout(
    (
        Field("frame", "uint8", (84, 84)),
        Field("noise", "float32", (100,)),
        Field("action", "int32"),
        Field("vector", "float16", (3,)),
    ),
    (Field("h", "float32", (5,)), Field("first", "int64")),
)


def make_steps(count: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    return [
        {
            "frame": np.full((84, 84), n, np.uint8),
            "noise": rng.random(100).astype(np.float32),
            "action": n,
            "vector": [n, n + 0.5, -n],
        }
        for n in range(count)
    ]


def encode(steps: list[dict[str, object]]) -> memoryview:
    buffer = StepBuffer(LAYOUT, 40)
    for step in steps:
        buffer.append(step)
    return memoryview(buffer.encode())


@pytest.mark.parametrize("cuts", [[40, 40, 20], [7, 1, 33, 40, 19], [30, 30, 40]])
@pytest.mark.parametrize(("offset", "length"), [(0, 90), (5, 60), (6, 1), (0, 1)])
def test_every_cut_decodes_to_the_same(cuts: list[int], offset: int, length: int) -> None:
    steps = make_steps(100)
    blocks, at = [], 0
    for cut in cuts:
        blocks.append(encode(steps[at : at + cut]))
        at += cut
    target = BatchBuffer(LAYOUT, 3, 95)
    for array in (*target.steps.values(), *target.context.values()):
        array[...] = 77  # what was there before must not show
    context = memoryview(encode_context(LAYOUT, {"h": np.arange(5), "first": -3}))
    target.decode_item(1, [*blocks, context], offset, length)
    for name, array in target.steps.items():
        expected = np.array([step[name] for step in steps[offset : offset + length]], array.dtype)
        np.testing.assert_array_equal(array[1, :length], expected)
        assert not array[1, length:].any()
        assert (array[[0, 2]] == 77).all()
    assert target.context["h"][1].tolist() == [0, 1, 2, 3, 4]
    assert target.context["first"][1] == -3


def test_only_what_shrinks_by_a_third_is_compressed() -> None:
    block = encode(make_steps(40))
    _, records, frame, noise = np.frombuffer(block, "<u4", 4).tolist()
    assert frame & 1
    assert frame >> 1 < 84 * 84 * 40 / 50
    assert noise == 100 * 4 * 40 << 1
    assert records == LAYOUT.record.itemsize * 40 << 1


def test_damage_is_noticed() -> None:
    target = BatchBuffer(LAYOUT, 1, 95)
    block = encode(make_steps(40))
    context = memoryview(encode_context(LAYOUT, {"h": np.zeros(5), "first": 0}))
    for blocks in (
        [block, context[:-1]],
        [block[:8], context],
        [block[:-20], context],
        [context],
    ):
        with pytest.raises(MalformedBlock):
            target.decode_item(0, blocks, 0, 40)
    with pytest.raises(MalformedBlock, match="41 steps from 0 on has 40"):
        target.decode_item(0, [block, context], 0, 41)
    with pytest.raises(MalformedBlock, match="96 steps, the buffer 95"):
        target.decode_item(0, [block, context], 0, 96)


def test_descriptions_differ_exactly_when_layouts_do() -> None:
    same = SequenceLayout(LAYOUT.steps, LAYOUT.context)
    other = SequenceLayout((*LAYOUT.steps[:-1], Field("vector", "float16", (4,))), LAYOUT.context)
    assert same.description == LAYOUT.description
    assert other.description != LAYOUT.description
    with pytest.raises(ValueError, match="each name once"):
        SequenceLayout((Field("a", "int32"), Field("a", "int32")))
