"""Adam and RMSProp against numpy; clipping, schedules and skipped updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from services.learner import optimizer, schedules
from services.shared.config import OptimizerConfig, ScheduleConfig

Array = npt.NDArray[np.float64]
FRAMES = tf.constant(0, tf.int64)
LOSS = tf.constant(1.0)
START = {"a": np.array([1.0, -2.0]), "b": np.array([[0.5]])}
GRADIENTS = [
    {"a": np.array([3.0, 0.1]), "b": np.array([[-4.0]])},
    {"a": np.array([-1.0, 0.0]), "b": np.array([[2.0]])},
    {"a": np.array([0.5, 1e-4]), "b": np.array([[0.3]])},
]


def _targets() -> dict[str, tf.Variable]:
    return {name: tf.Variable(value, dtype=tf.float32) for name, value in START.items()}


def _tensors(gradients: dict[str, Array]) -> list[tf.Tensor]:
    return [tf.constant(gradient, tf.float32) for gradient in gradients.values()]


def _clip(gradients: dict[str, Array], clip_norm: float) -> dict[str, Array]:
    norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
    return {name: g * min(1.0, clip_norm / norm) for name, g in gradients.items()}


def _numpy_adam(config: OptimizerConfig, learning_rate: float) -> dict[str, Array]:
    theta = {name: value.copy() for name, value in START.items()}
    m = {name: np.zeros_like(value) for name, value in START.items()}
    v = {name: np.zeros_like(value) for name, value in START.items()}
    assert config.clip_norm is not None
    for t, gradients in enumerate(GRADIENTS, start=1):
        for name, g in _clip(gradients, config.clip_norm).items():
            m[name] = config.beta_1 * m[name] + (1 - config.beta_1) * g
            v[name] = config.beta_2 * v[name] + (1 - config.beta_2) * g**2
            rate = learning_rate * np.sqrt(1 - config.beta_2**t) / (1 - config.beta_1**t)
            theta[name] -= rate * m[name] / (np.sqrt(v[name]) + config.epsilon)
    return theta


def _numpy_rmsprop(config: OptimizerConfig, learning_rate: float) -> dict[str, Array]:
    theta = {name: value.copy() for name, value in START.items()}
    mean_square = {name: np.zeros_like(value) for name, value in START.items()}
    momentum = {name: np.zeros_like(value) for name, value in START.items()}
    assert config.clip_norm is not None
    for gradients in GRADIENTS:
        for name, g in _clip(gradients, config.clip_norm).items():
            mean_square[name] = config.decay * mean_square[name] + (1 - config.decay) * g**2
            step = learning_rate * g / np.sqrt(mean_square[name] + config.epsilon)
            momentum[name] = config.momentum * momentum[name] + step
            theta[name] -= momentum[name]
    return theta


@pytest.mark.parametrize(
    ("config", "twin"),
    [
        (OptimizerConfig(name="adam", learning_rate=0.1, clip_norm=2.5), _numpy_adam),
        (OptimizerConfig(name="adam", learning_rate=0.1, beta_1=0.0, clip_norm=2.5), _numpy_adam),
        (
            OptimizerConfig(
                name="rmsprop", learning_rate=0.1, momentum=0.5, epsilon=0.1, clip_norm=2.5
            ),
            _numpy_rmsprop,
        ),
    ],
)
def test_three_steps_equal_numpy(config: OptimizerConfig, twin: Any) -> None:
    targets = _targets()
    instance = optimizer.Optimizer(config, targets, total_frames=100)
    apply = tf.function(instance.apply)
    for gradients in GRADIENTS:
        metrics = apply(_tensors(gradients), LOSS, FRAMES)
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
        np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-5)
        assert float(metrics["skipped"]) == 0.0
    for name, expected in twin(config, 0.1).items():
        np.testing.assert_allclose(targets[name], expected, rtol=1e-5)
    assert int(instance.variables["updates"]) == 3


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
@pytest.mark.parametrize("where", ["gradient_nan", "gradient_inf", "loss"])
def test_an_update_that_is_not_finite_changes_nothing(name: Any, where: str) -> None:
    targets = _targets()
    instance = optimizer.Optimizer(OptimizerConfig(name=name), targets, total_frames=100)
    apply = tf.function(instance.apply)
    apply(_tensors(GRADIENTS[0]), LOSS, FRAMES)
    before = {k: v.numpy() for k, v in {**targets, **instance.variables}.items()}
    gradients = _tensors(GRADIENTS[1])
    loss = LOSS
    if where == "loss":
        loss = tf.constant(np.nan)
    else:
        bad = np.nan if where == "gradient_nan" else np.inf
        gradients[0] = tf.constant([1.0, bad])
    assert float(apply(gradients, loss, FRAMES)["skipped"]) == 1.0
    for key, variable in {**targets, **instance.variables}.items():
        np.testing.assert_array_equal(variable, before[key])
    assert float(apply(_tensors(GRADIENTS[1]), LOSS, FRAMES)["skipped"]) == 0.0
    assert np.isfinite(targets["a"].numpy()).all()
    assert int(instance.variables["updates"]) == 2


def test_variables_are_named_after_their_targets() -> None:
    instance = optimizer.Optimizer(OptimizerConfig(), _targets(), total_frames=1)
    assert list(instance.variables) == ["updates", "m/a", "m/b", "v/a", "v/b"]
    instance = optimizer.Optimizer(OptimizerConfig(name="rmsprop"), _targets(), total_frames=1)
    assert list(instance.variables)[1] == "mean_square/a"


def test_the_learning_rate_follows_the_frames() -> None:
    schedule = ScheduleConfig(initial=1.0, final=0.0)
    instance = optimizer.Optimizer(
        OptimizerConfig(learning_rate=schedule), _targets(), total_frames=200
    )
    rates = [
        float(
            instance.apply(_tensors(GRADIENTS[0]), LOSS, tf.constant(frames, tf.int64))[
                "learning_rate"
            ]
        )
        for frames in (0, 50, 200, 500)
    ]
    np.testing.assert_allclose(rates, [1.0, 0.75, 0.0, 0.0])


def test_schedules_tell_late_frames_apart() -> None:
    schedule = ScheduleConfig(initial=0.0, final=1e9, frames=10**9)
    value = schedules.value_at(schedule, tf.constant(999_999_936, tf.int64), 1)
    assert float(value) == 999_999_936.0


def test_a_constraint_is_applied_and_a_missing_gradient_named() -> None:
    target = tf.Variable(1.0, constraint=lambda x: tf.clip_by_value(x, 0.9, 1.1))
    instance = optimizer.Optimizer(OptimizerConfig(learning_rate=5.0), {"x": target}, 1)
    instance.apply([tf.constant(1.0)], LOSS, FRAMES)
    np.testing.assert_allclose(target, 0.9)
    with pytest.raises(ValueError, match="'x' has no gradient"):
        instance.dense([None])
