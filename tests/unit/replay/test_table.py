"""Keys, capacity, priorities, uses: what a table promises beside its distribution."""

from __future__ import annotations

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from services.replay.table import Table
from services.shared.status import StatusError
from tests.unit.replay.tables import fill, make_table


def u64(*keys: int) -> npt.NDArray[np.uint64]:
    return np.array(keys, np.uint64)


def priorities(table: Table) -> dict[int, float]:
    state = table.state()
    return dict(zip(state["keys"].tolist(), state["priorities"].tolist(), strict=True))


def test_a_late_update_does_not_hit_the_item_that_took_the_place() -> None:
    table = make_table(max_items=2)
    old = fill(table, [1, 1])
    new = fill(table, [5, 6])
    assert {key & 0xFFFFFF for key in old} == {key & 0xFFFFFF for key in new}
    assert table.update(u64(*old, new[0]), np.array([9.0, 9.0, 7.0])) == 2
    assert table.stale == 2
    assert priorities(table) == {new[0]: 7.0, new[1]: 6.0}


def test_of_equal_keys_the_last_wins() -> None:
    table = make_table(max_items=8)
    a, b, c = fill(table, [1, 1, 1])
    table.update(u64(a, b, a, c, a, b), np.array([2.0, 3, 4, 5, 6, 7]))
    assert priorities(table) == {a: 6.0, b: 7.0, c: 5.0}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1e-9, 1e300])
def test_a_wrong_priority_changes_nothing(wrong: float) -> None:
    table = make_table(max_items=8)
    keys = fill(table, [1, 2, 3])
    before = priorities(table), table.total_priority
    with pytest.raises(StatusError, match="priority 1 is") as error:
        table.update(u64(*keys), np.array([4.0, wrong, 4.0]))
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert (priorities(table), table.total_priority) == before
    with pytest.raises(StatusError):
        fill(table, [wrong])
    assert (priorities(table), table.total_priority) == before


def test_unknown_keys_are_stale() -> None:
    table = make_table(max_items=8)
    fill(table, [1.0])
    assert table.update(u64(0, 1, (1 << 64) - 1, 8), np.ones(4)) == 4


def test_the_oldest_leave_first_when_there_are_too_many_items() -> None:
    table = make_table(max_items=5)
    keys = fill(table, [1] * 4) + fill(table, [1] * 4)
    assert sorted(priorities(table)) == sorted(keys)[-5:]
    assert (table.items, table.evicted) == (5, 3)
    assert len(fill(table, [1] * 12)) == 5


def test_bytes_are_bounded_by_evicting_the_oldest() -> None:
    table = make_table(max_items=1000, max_bytes=1000)
    for _ in range(50):
        newest = fill(table, [1, 1, 1], block=b"x" * 30)
        assert table.blocks.bytes <= 1000
    assert table.items >= 30
    assert set(newest) <= set(priorities(table))
    ages = sorted(key >> 24 for key in priorities(table))
    assert ages == list(range(ages[0], 151))


def test_without_room_inserting_is_refused_and_the_table_goes_on() -> None:
    table = make_table(max_items=1000, max_bytes=1000)
    fill(table, [1], block=b"x" * 900)
    with pytest.raises(StatusError, match="no room for 2000 bytes") as error:
        fill(table, [1], block=b"x" * 2000)
    assert error.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    fill(table, [1], block=b"x" * 900)
    assert table.items == 1


def test_pinned_bytes_survive_eviction_until_they_are_sent() -> None:
    table = make_table(max_items=1)
    fill(table, [1], block=b"first---")
    chosen = table.choose(1)
    fill(table, [1], block=b"second--")
    assert [bytes(view) for view in table.blocks.views(chosen.rows)] == [b"first---"]
    assert table.blocks.bytes == 16
    table.unpin(chosen)
    assert table.blocks.bytes == 8


@pytest.mark.parametrize("selector", ["prioritized", "uniform", "fifo"])
def test_items_leave_after_max_times_sampled(selector: str) -> None:
    table = make_table(max_items=50, selector=selector, max_times_sampled=3)
    keys = fill(table, np.arange(1.0, 21.0))
    drawn = np.concatenate([table.choose(n).keys for n in (7, 30, 100)])
    assert len(drawn) == 60  # and not 137: the table ran empty
    assert sorted(drawn.tolist()) == sorted(keys * 3)
    assert (table.items, table.used_up) == (0, 20)
    assert len(table.choose(4).keys) == 0


def test_fifo_takes_the_oldest() -> None:
    table = make_table(max_items=50, selector="fifo", max_times_sampled=1)
    keys = fill(table, [5, 1, 3]) + fill(table, [2, 2])
    assert table.choose(2).keys.tolist() == keys[:2]
    table.remove(u64(keys[2]))
    assert table.choose(9).keys.tolist() == keys[3:]


def test_holes_do_not_push_items_out_early() -> None:
    table = make_table(max_items=10)
    keys = fill(table, np.ones(10))
    table.remove(u64(*keys[3:8]))
    fill(table, np.ones(5))
    assert (table.items, table.evicted) == (10, 0)
    fill(table, np.ones(1))
    assert keys[0] not in priorities(table)
    assert keys[1] in priorities(table)


def test_a_table_that_can_never_be_sampled_says_so(caplog: pytest.LogCaptureFixture) -> None:
    table = make_table(max_items=100, max_bytes=1000, min_size_to_sample=50)
    fill(table, np.ones(10), block=b"y" * 90)
    assert not caplog.text
    fill(table, np.ones(5), block=b"y" * 90)
    assert "max_bytes 1000 holds" in caplog.text
    assert "min_size_to_sample is 50: nothing can be sampled" in caplog.text
    fill(table, np.ones(5), block=b"y" * 90)
    assert caplog.text.count("nothing can be sampled") == 1  # each minute


def test_long_use_keeps_all_accounts_straight() -> None:
    rng = np.random.default_rng(0)
    table = make_table(max_items=100, max_bytes=4000, max_times_sampled=4)
    for _ in range(500):
        fill(table, rng.random(rng.integers(1, 20)), block=b"y" * int(rng.integers(1, 60)))
        chosen = table.choose(int(rng.integers(1, 40)))
        keys = chosen.keys
        table.update(keys, rng.random(len(keys)))
        table.unpin(chosen)
        state = table.state()
        assert len(state["keys"]) == table.items <= 100
        assert table.blocks.bytes <= 4000
        assert table.total_priority == pytest.approx(
            (state["priorities"].astype(float) ** 0.9).sum()
        )
        assert table.blocks.rows == table.items
    table.remove(table.state()["keys"].astype(np.uint64))
    assert (table.blocks.bytes, table.blocks.rows, table.items) == (0, 0, 0)
    assert table.total_priority == 0
