"""Sum tree, selectors and importance weights against slow references and the issue's values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.replay.sum_tree import SumTree
from services.shared.replay.weights import importance_weights
from tests.unit.replay.tables import chi_square_limit, fill, make_table


def slow_draw(weights: list[float], uniform: float) -> int:
    """The first place whose cumulative weight exceeds uniform * total."""
    rest = uniform * sum(weights)
    for place, weight in enumerate(weights):
        if rest < weight:
            return place
        rest -= weight
    return max(i for i, w in enumerate(weights) if w)


@given(
    weights=st.lists(st.integers(0, 8).map(float), min_size=1, max_size=40).filter(any),
    numbers=st.lists(st.integers(0, 1023), min_size=1, max_size=20),
)
@settings(max_examples=100, deadline=None)
def test_tree_draws_what_a_cumulative_sum_draws(weights: list[float], numbers: list[int]) -> None:
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.array(weights))
    uniform = np.array(numbers) / 1024
    assert tree.total == sum(weights)
    assert tree.draw(uniform).tolist() == [slow_draw(weights, u) for u in uniform]


def test_tree_never_draws_an_empty_place() -> None:
    tree = SumTree(1000)
    rng = np.random.default_rng(0)
    places = rng.choice(1000, 300, replace=False)
    tree.set(places, rng.random(300) ** 20)
    drawn = tree.draw(np.concatenate([rng.random(20_000), [0.0, np.nextafter(1, 0)]]))
    assert (tree.weights(drawn) > 0).all()


def test_sums_do_not_drift() -> None:
    tree = SumTree(64)
    rng = np.random.default_rng(0)
    for _ in range(2000):
        tree.set(rng.choice(64, 8, replace=False), rng.random(8) * 1e12)
    tree.set(np.arange(64), np.full(64, 0.1))
    assert tree.total == pytest.approx(6.4, rel=1e-14)


def test_the_issues_probabilities_and_weights() -> None:
    table = make_table(max_items=4, priority_exponent=0.9)
    fill(table, [1, 2, 3, 4])
    chosen = table.choose(10_000)
    p = dict(zip(chosen.priorities.tolist(), chosen.probabilities.tolist(), strict=True))
    np.testing.assert_allclose(
        [p[i] for i in (1.0, 2.0, 3.0, 4.0)], [0.11067, 0.20651, 0.29746, 0.38536], atol=5e-6
    )
    weights = importance_weights(np.array([p[i] for i in (1.0, 2.0, 3.0, 4.0)]), 0.6)
    np.testing.assert_allclose(weights, [1, 0.68777, 0.55253, 0.47303], atol=5e-6)


def test_weights_of_extreme_probabilities_are_finite() -> None:
    weights = importance_weights(np.array([1e-300, 1.0, 0.5]), 1.0)
    assert np.isfinite(weights).all()
    assert weights.max() == 1.0


def check_draws(table: object, draws: int = 100_000) -> None:
    chosen = table.choose(draws)  # type: ignore[attr-defined]
    state = table.state()  # type: ignore[attr-defined]
    keys = state["keys"]
    weights = state["priorities"] ** 0.9
    expected = draws * weights / weights.sum()
    counted = np.zeros(len(keys))
    at = np.searchsorted(np.sort(keys), chosen.keys)
    np.add.at(counted, np.argsort(keys)[at], 1)
    used = expected > 0
    assert counted[~used].sum() == 0
    statistic = ((counted - expected)[used] ** 2 / expected[used]).sum()
    assert statistic < chi_square_limit(int(used.sum()) - 1)
    table.unpin(chosen)  # type: ignore[attr-defined]


def test_draws_follow_p_before_and_after_updates_and_evictions() -> None:
    rng = np.random.default_rng(1)
    table = make_table(max_items=500, priority_exponent=0.9)
    keys = fill(table, rng.random(500) * 10)
    check_draws(table)
    for _ in range(100):
        chosen = rng.choice(keys, 100)
        table.update(chosen.astype(np.uint64), rng.random(100) * 10)
        keys = [*keys, *fill(table, rng.random(7) * 10)]
    assert table.evicted == 700
    assert table.stale > 0
    check_draws(table)


@pytest.mark.parametrize("selector", ["uniform", "prioritized"])
def test_zero_priorities_and_uniform_draw_evenly(selector: str) -> None:
    table = make_table(max_items=100, selector=selector)
    fill(table, np.zeros(50) if selector == "prioritized" else np.arange(50.0))
    chosen = table.choose(50_000)
    assert (chosen.probabilities == 1 / 50).all()
    counts = np.unique(chosen.keys, return_counts=True)[1]
    assert ((counts - 1000) ** 2 / 1000).sum() < chi_square_limit(49)
    assert np.isfinite(importance_weights(chosen.probabilities, 0.6)).all()


def test_an_item_of_priority_zero_waits_for_a_better_one() -> None:
    table = make_table(max_items=10)
    keys = fill(table, [0, 1, 0])
    assert set(table.choose(100).keys.tolist()) == {keys[1]}
