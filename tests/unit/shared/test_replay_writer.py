"""What a slot's writer hands over: the same blocks however the steps came, and the same again."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from services.shared.replay import Field, ReplayTimeout, SequenceLayout, SlotWriter
from services.shared.replay.codec import BatchBuffer
from services.shared.replay.inserting import Unit

LAYOUT = SequenceLayout(
    (Field("frame", "uint8", (20, 20)), Field("n", "int32"), Field("pair", "float32", (2,))),
    (Field("state", "float32", (3,)),),
)


class Shard:
    """Takes units, or has no room."""

    def __init__(self) -> None:
        self.is_usable = True
        self.has_room = True
        self.units: list[Unit] = []

    def submit(self, unit: Unit, timeout: float | None) -> None:
        if not self.has_room:
            raise ReplayTimeout("no room")
        self.units.append(unit)


def make_writer(shards: list[Shard], max_length: int = 20, block_length: int = 7) -> SlotWriter:
    shards_: Any = shards
    return SlotWriter(LAYOUT, shards_, 0, itertools.count(1), max_length, block_length)


def make_steps(start: int, stop: int) -> dict[str, Any]:
    n = np.arange(start, stop, dtype=np.int32)
    frame = np.empty((stop - start, 20, 20), np.uint8)
    frame[:] = (n % 5)[:, None, None]
    return {"frame": frame, "n": n, "pair": np.stack([n, -n], 1).astype(np.float32)}


def append(writer: SlotWriter, steps: dict[str, Any]) -> None:
    for i in range(len(steps["n"])):
        writer.append({name: values[i] for name, values in steps.items()})


@pytest.mark.parametrize("seed", range(5))
def test_extend_is_many_appends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, many = Shard(), Shard()
    writers = make_writer([one]), make_writer([many])
    n = 0
    for _ in range(40):
        steps = make_steps(n, n + int(rng.integers(0, 40)))
        n += len(steps["n"])
        append(writers[0], steps)
        writers[1].extend(steps)
        assert writers[0].steps == writers[1].steps
        choice = rng.random()
        for writer in writers:
            if choice < 0.2:
                writer.cut()
            elif choice < 0.8 and writer.steps:
                length = min(20, writer.steps)
                writer.create_item(length, 1.0, {"state": [n, n, n]})
            elif choice > 0.95:
                writer.end_episode()
    assert len(one.units) > 10
    assert one.units == many.units


def test_extend_refuses_what_does_not_fit_and_adds_nothing() -> None:
    writer = make_writer([Shard()])
    steps = make_steps(0, 10)
    with pytest.raises(ValueError, match=r"field pair has shape \(10, 3\), allowed: \(10, 2\)"):
        writer.extend({**steps, "pair": np.zeros((10, 3), np.float32)})
    with pytest.raises(ValueError, match=r"field n has shape \(9,\), allowed: \(10,\)"):
        writer.extend({**steps, "n": steps["n"][1:]})
    del steps["pair"]
    with pytest.raises(KeyError, match="pair"):
        writer.extend(steps)
    assert writer.steps == 0


def test_an_item_between_cuts_has_no_step_too_many() -> None:
    shard = Shard()
    writer = make_writer([shard], max_length=8, block_length=4)
    writer.extend(make_steps(0, 5))
    writer.create_item(5, 1.0, {"state": [0, 0, 0]})
    writer.extend(make_steps(5, 7))
    writer.cut()
    writer.cut()  # nothing to end
    writer.extend(make_steps(7, 15))
    writer.create_item(8, 1.0, {"state": [0, 0, 0]})
    # 4 + 1 steps, then 2 and 4 + 4.
    first, last = (unit.item for unit in shard.units)
    assert first is not None
    assert last is not None
    assert (len(first[0]) - 1, *first[1:3]) == (2, 0, 5)
    assert (len(last[0]) - 1, *last[1:3]) == (2, 0, 8)
    assert writer.steps == 8


def test_an_item_without_room_can_be_made_again_or_left_out() -> None:
    """Whatever calls found no room, what goes out is what one call each would have sent."""
    shards = [Shard(), Shard()]
    writer = make_writer(shards)
    rng = np.random.default_rng(0)
    blocks: list[dict[int, bytes]] = [{}, {}]
    target = BatchBuffer(LAYOUT, 1, 20)
    for turn in range(200):
        writer.extend(make_steps(turn * 6, turn * 6 + 6))
        length = min(20, writer.steps)
        shards[0].is_usable = bool(rng.random() < 0.7)
        first = turn * 6 + 6 - length
        for has_room in [False] * int(rng.integers(0, 3)) + [bool(rng.random() < 0.8)]:
            shards[0].has_room = shards[1].has_room = has_room
            before = writer.rerouted_items
            if has_room:
                writer.create_item(length, 1.0, {"state": [first, 0, 0]}, timeout=0.5)
            else:
                with pytest.raises(ReplayTimeout):
                    writer.create_item(length, 1.0, {"state": [first, 0, 0]}, timeout=0.5)
                assert writer.rerouted_items == before
        for shard, known in zip(shards, blocks, strict=True):
            for unit in shard.units:
                assert not known.keys() & unit.blocks.keys()  # no block twice
                known.update(unit.blocks)
                if unit.item is not None:
                    references, offset, steps, _ = unit.item
                    views = [memoryview(known[number]) for number in references]
                    target.decode_item(0, views, offset, steps)
                    begin = int(target.context["state"][0, 0])
                    expected = make_steps(begin, begin + steps)
                    for name, values in target.steps.items():
                        np.testing.assert_array_equal(values[0, :steps], expected[name])
                for number in unit.released:
                    del known[number]  # once, and only what is there
            shard.units.clear()
            assert len(known) <= 6
    shards[0].has_room = shards[1].has_room = True
    writer.end_episode()
    for shard, known in zip(shards, blocks, strict=True):
        assert sorted(n for unit in shard.units for n in unit.released) == sorted(known)
