"""Distributions against closed forms in numpy."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from services.learner import distributions
from services.shared import specs

DISCRETE = specs.DiscreteActionSpec((2, 3))
CONTINUOUS = specs.ContinuousActionSpec((-1.0, -2.0), (1.0, 2.0))
SEED = tf.constant([1, 2], tf.int64)


def test_categorical_product_by_hand() -> None:
    distribution = distributions.for_action_spec(DISCRETE)
    assert distribution.parameter_size == 5
    # Probabilities (1/4, 3/4) and (1/2, 1/4, 1/4).
    parameters = tf.math.log([[1.0, 3.0, 2.0, 1.0, 1.0]])
    np.testing.assert_array_equal(distribution.mode(parameters), [[1, 0]])
    assert distribution.mode(parameters).dtype == tf.int32
    np.testing.assert_allclose(
        distribution.log_prob(parameters, tf.constant([[0, 2]])), [math.log(1 / 16)], rtol=1e-6
    )
    entropy = math.log(4) - 0.75 * math.log(3) + 1.5 * math.log(2)
    np.testing.assert_allclose(distribution.entropy(parameters), [entropy], rtol=1e-6)


def test_categorical_sampling_frequencies() -> None:
    distribution = distributions.for_action_spec(DISCRETE)
    parameters = tf.tile(tf.math.log([[1.0, 3.0, 2.0, 1.0, 1.0]]), [20000, 1])
    actions = distribution.sample(parameters, SEED)
    assert actions.shape == (20000, 2)
    assert actions.dtype == tf.int32
    joint = np.bincount(actions[:, 0] * 3 + actions[:, 1], minlength=6) / 20000
    np.testing.assert_allclose(joint, np.outer([0.25, 0.75], [0.5, 0.25, 0.25]).ravel(), atol=0.01)


def test_normal_by_hand() -> None:
    distribution = distributions.for_action_spec(CONTINUOUS)
    assert distribution.parameter_size == 4
    parameters = np.array([[0.5, -1.0, 0.0, 1.0]], np.float32)
    upper = 2 - np.log1p(np.exp(2 - parameters[0, 2:]))
    log_std = -5 + np.log1p(np.exp(upper + 5))
    np.testing.assert_array_equal(distribution.mode(parameters), [[0.5, -1.0]])
    action = np.array([[1.0, 0.0]], np.float32)
    z = (action[0] - parameters[0, :2]) / np.exp(log_std)
    expected = np.sum(-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi))
    np.testing.assert_allclose(distribution.log_prob(parameters, action), [expected], rtol=1e-5)
    expected = np.sum(log_std + 0.5 * (1 + math.log(2 * math.pi)))
    np.testing.assert_allclose(distribution.entropy(parameters), [expected], rtol=1e-5)
    samples = distribution.sample(tf.tile(parameters, [20000, 1]), SEED).numpy()
    np.testing.assert_allclose(samples.mean(0), parameters[0, :2], atol=0.05)
    np.testing.assert_allclose(samples.std(0), np.exp(log_std), rtol=0.03)


def test_normal_stays_finite_at_extreme_parameters() -> None:
    distribution = distributions.for_action_spec(CONTINUOUS)
    parameters = tf.constant([[0.0, 0.0, -1e4, 1e4]])
    np.testing.assert_allclose(
        distribution.entropy(parameters), [-5 + 2 + math.log(2 * math.pi * math.e)], atol=0.01
    )
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        log_prob = distribution.log_prob(parameters, tf.constant([[0.1, 0.1]]))
    assert np.isfinite(tape.gradient(log_prob, parameters).numpy()).all()


def test_sampling_is_reproducible_and_differs_between_seeds_and_rows() -> None:
    for spec in (DISCRETE, CONTINUOUS):
        distribution = distributions.for_action_spec(spec)
        parameters = tf.zeros([3, 50, distribution.parameter_size])
        actions = distribution.sample(parameters, SEED)
        assert actions.shape == (3, 50, 2)
        np.testing.assert_array_equal(actions, distribution.sample(parameters, SEED))
        assert np.any(actions != distribution.sample(parameters, tf.constant([1, 3], tf.int64)))
        assert np.any(actions[0] != actions[1])
        assert distribution.log_prob(parameters, actions).shape == (3, 50)


def test_bfloat16_parameters_are_computed_in_float32() -> None:
    distribution = distributions.for_action_spec(DISCRETE)
    parameters = tf.zeros([4, 5], tf.bfloat16)
    assert distribution.entropy(parameters).dtype == tf.float32
    log_prob = distribution.log_prob(parameters, distribution.sample(parameters, SEED))
    np.testing.assert_allclose(log_prob, [-math.log(6)] * 4, rtol=1e-6)
