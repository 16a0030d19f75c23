"""V-trace against hand-computed values and against the explicit sums of the paper."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from services.learner import vtrace

Array = npt.NDArray[np.float64]


def _column(values: list[float]) -> tf.Tensor:
    return tf.constant(values, tf.float32)[:, None]


def _run(
    rewards: list[float],
    values: list[float],
    bootstrap: float,
    discounts: list[float],
    ratios: list[float] | None = None,
    mask: list[bool] | None = None,
    trace_lambda: float = 1.0,
) -> tuple[Array, Array]:
    returns = vtrace.from_importance_weights(
        tf.math.log(_column(ratios or [1.0] * len(rewards))),
        _column(discounts),
        _column(rewards),
        _column(values),
        tf.constant([bootstrap]),
        None if mask is None else tf.constant(mask)[:, None],
        trace_lambda=trace_lambda,
    )
    return returns.vs.numpy()[:, 0], returns.pg_advantages.numpy()[:, 0]


def test_on_policy_with_a_termination() -> None:
    vs, advantages = _run([1, 2, 3], [10, 20, 30], 40, [0.9, 0, 0.9])
    np.testing.assert_allclose(vs, [2.8, 2, 39], rtol=1e-6)
    np.testing.assert_allclose(advantages, [-7.2, -18, 9], rtol=1e-6)


def test_off_policy() -> None:
    vs, advantages = _run([1, 2, 3], [10, 20, 30], 40, [0.9] * 3, ratios=[2, 0.5, 0.1])
    np.testing.assert_allclose(vs, [23.4145, 24.905, 30.9], rtol=1e-6)
    np.testing.assert_allclose(advantages, [13.4145, 4.905, 0.9], rtol=1e-5)


@pytest.mark.parametrize(
    ("trace_lambda", "expected_vs", "expected_advantages"),
    [
        (1.0, [0.970299, 0.9801, 0.99, 1], [0.970299, 0.9801, 0.99, 1]),
        (0.9, [0.707348, 0.793881, 0.891, 1], [0.785942, 0.88209, 0.99, 1]),
    ],
)
def test_a_late_reward(
    trace_lambda: float, expected_vs: list[float], expected_advantages: list[float]
) -> None:
    vs, advantages = _run([0, 0, 0, 1], [0] * 4, 0, [0.99] * 4, trace_lambda=trace_lambda)
    np.testing.assert_allclose(vs, expected_vs, rtol=1e-6)
    np.testing.assert_allclose(advantages, expected_advantages, rtol=1e-6)


def test_truncation_bootstraps_from_the_final_observation() -> None:
    # Records FIRST, LAST | FIRST, MID: transition 1 leads from LAST to FIRST.
    vs, advantages = _run([0, 0, 0], [1, 1, 100], 100, [1, 1, 1], mask=[True, False, True])
    np.testing.assert_array_equal(vs, [1, 1, 100])
    np.testing.assert_array_equal(advantages, [0, 0, 0])


def test_termination_ignores_the_final_observation() -> None:
    vs, advantages = _run([5, 0, 0], [1, 77, 100], 100, [0, 1, 1], mask=[True, False, True])
    np.testing.assert_array_equal(vs, [5, 77, 100])
    np.testing.assert_array_equal(advantages, [4, 0, 0])


def test_a_masked_ratio_of_infinity_or_nan_harms_nothing() -> None:
    for ratio in (np.inf, np.nan):
        vs, advantages = _run(
            [0, 0, 0], [1, 1, 1], 1, [1, 1, 1], ratios=[1, ratio, 1], mask=[True, False, True]
        )
        np.testing.assert_array_equal(vs, [1, 1, 1])
        np.testing.assert_array_equal(advantages, [0, 0, 0])


def _ground_truth(
    rhos: Array,
    discounts: Array,
    rewards: Array,
    values: Array,
    mask: npt.NDArray[np.bool_],
    clips: tuple[float, float, float],
    trace_lambda: float,
) -> tuple[Array, Array]:
    """IMPALA, equation (1): v_s = V_s + sum_t gamma^(t-s) (prod_{i=s}^{t-1} c_i) delta_t.

    `values` are [T + 1]; one environment. The sum ends before the first transition that is not
    real.
    """
    clip_rho, clip_c, clip_pg_rho = clips
    length = len(rewards)
    vs = values.copy()
    for s in range(length):
        for t in range(s, length):
            if not mask[t]:
                break
            weight = 1.0
            for i in range(s, t):
                weight *= discounts[i] * trace_lambda * min(clip_c, rhos[i])
            delta = rewards[t] + discounts[t] * values[t + 1] - values[t]
            vs[s] += weight * min(clip_rho, rhos[t]) * delta
    advantages = np.zeros(length)
    for s in range(length):
        if mask[s]:
            target = rewards[s] + discounts[s] * vs[s + 1]
            advantages[s] = min(clip_pg_rho, rhos[s]) * (target - values[s])
    return vs[:length], advantages


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_explicit_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length, batch = 12, 5
    log_rhos = rng.normal(size=(length, batch))
    discounts = np.where(rng.random((length, batch)) < 0.2, 0.0, 0.97)
    rewards = rng.normal(size=(length, batch))
    values = rng.normal(size=(length + 1, batch))
    mask = rng.random((length, batch)) < 0.8
    clips = tuple(rng.uniform(0.5, 2.0, size=3))
    trace_lambda = rng.uniform(0.5, 1.0)
    returns = vtrace.from_importance_weights(
        tf.constant(log_rhos),
        tf.constant(discounts),
        tf.constant(rewards),
        tf.constant(values[:-1]),
        tf.constant(values[-1]),
        tf.constant(mask),
        clip_rho=clips[0],
        clip_c=clips[1],
        clip_pg_rho=clips[2],
        trace_lambda=trace_lambda,
    )
    for b in range(batch):
        vs, advantages = _ground_truth(
            np.exp(log_rhos[:, b]),
            discounts[:, b],
            rewards[:, b],
            values[:, b],
            mask[:, b],
            (clips[0], clips[1], clips[2]),
            trace_lambda,
        )
        np.testing.assert_allclose(returns.vs[:, b], vs, atol=1e-5)
        np.testing.assert_allclose(returns.pg_advantages[:, b], advantages, atol=1e-5)


def test_math_is_float32_for_bfloat16_inputs_and_no_gradient_flows() -> None:
    values = tf.ones([3, 2], tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch(values)
        returns = vtrace.from_importance_weights(
            values * 0, values, values, values, tf.ones([2], tf.bfloat16)
        )
        total = tf.reduce_sum(returns.vs) + tf.reduce_sum(returns.pg_advantages)
    assert returns.vs.dtype == tf.float32
    assert returns.pg_advantages.dtype == tf.float32
    assert tape.gradient(total, values) is None
