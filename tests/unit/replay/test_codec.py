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


TINY = SequenceLayout(
    (Field("large", "int16", (400,)), Field("action", "int32"), Field("reward", "float32"))
)


def tiny_block(first: int, count: int, noise: bool = True) -> bytes:
    buffer = StepBuffer(TINY, 40)
    rng = np.random.default_rng(first)
    for n in range(first, first + count):
        large = rng.integers(-(2**15), 2**15, 400) if noise else np.full(400, n)
        buffer.append({"large": large, "action": n, "reward": n / 2})
    return buffer.encode()


def test_raw_blocks_decode_at_once_as_they_do_one_by_one() -> None:
    blocks = [tiny_block(10 * n, 2) for n in range(3)]
    of_items = [2, 0, 0, 1]
    at_once, one_by_one = BatchBuffer(TINY, 6, 2), BatchBuffer(TINY, 6, 2)
    payload = memoryview(b"".join(blocks))
    assert at_once.decode_raw(1, payload, np.array(of_items, np.uint32), 2)
    for row, block in enumerate(of_items):
        one_by_one.decode_item(1 + row, [memoryview(blocks[block])], 0, 2)
    assert at_once.steps["action"][:, 1].tolist() == [0, 21, 1, 1, 11, 0]
    for name, array in at_once.steps.items():
        np.testing.assert_array_equal(array, one_by_one.steps[name])


@pytest.mark.parametrize(
    ("payload", "length"),
    [
        (tiny_block(0, 2) + tiny_block(5, 2, noise=False), 2),
        (tiny_block(0, 40, noise=False), 2),
        (tiny_block(0, 1) * 2, 1),
        (tiny_block(0, 2)[:-1], 2),
        (tiny_block(0, 2), 2),
    ],
    ids=["compressed", "all compressed", "shorter than the row", "cut off", "block 1 is not there"],
)
def test_other_blocks_are_left_to_the_decoder_of_items(payload: bytes, length: int) -> None:
    target = BatchBuffer(TINY, 2, 2)
    assert not target.decode_raw(0, memoryview(payload), np.array([0, 1], np.uint32), length)
    assert not any(array.any() for array in target.steps.values())
