"""What people are shown of a policy is what TensorFlow's side means by it."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from services.learner import distributions, explanation, r2d2
from services.learner.step_store import StoreLayout
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import (
    ContinuousActionSpec,
    DataType,
    DiscreteActionSpec,
    EnvironmentSpec,
    TensorSpec,
)

OBSERVATION = (TensorSpec("x", DataType.FLOAT32, (1,)),)


def test_probabilities_of_each_choice() -> None:
    spec = EnvironmentSpec(OBSERVATION, DiscreteActionSpec((2, 3)))
    logits = np.log(np.array([[3.0, 1.0, 2.0, 2.0, 4.0]], np.float32))
    shares = explanation.explain(StoreLayout(spec, 1, 4, 5, 1), logits)
    np.testing.assert_array_equal(
        explanation.value(StoreLayout(spec, 1, 4, 5, 1), logits[0]), logits[0]
    )
    np.testing.assert_allclose(shares, [[0.75, 0.25, 0.25, 0.25, 0.5]], rtol=1e-6)


def test_action_values_are_unrescaled() -> None:
    spec = EnvironmentSpec(OBSERVATION, DiscreteActionSpec((3,)))
    layout = StoreLayout(spec, 1, 4, 3, 1, policy_kind=inference_pb2.POLICY_KIND_ACTION_VALUES)
    values = np.array([[-20.0, 0.0, 350.0]], np.float32)
    rescaled = np.asarray(r2d2.rescale(tf.constant(values), layout.rescaling_epsilon))
    np.testing.assert_allclose(explanation.explain(layout, rescaled), values, rtol=1e-5)
    np.testing.assert_allclose(explanation.value(layout, rescaled[0]), values[0], rtol=1e-5)


def test_mean_and_deviation() -> None:
    spec = EnvironmentSpec(OBSERVATION, ContinuousActionSpec((-1.0, -1.0), (1.0, 1.0)))
    layout = StoreLayout(spec, 1, 4, 4, 1)
    parameters = np.array([[0.5, -0.5, 0.0, 30.0]], np.float32)
    shown = explanation.explain(
        dataclasses.replace(layout, policy_kind=inference_pb2.POLICY_KIND_NORMAL), parameters
    )
    normal = distributions.DiagonalNormal(2)
    _, log_std = normal._mean_and_log_std(tf.constant(parameters))
    np.testing.assert_allclose(shown[:, :2], [[0.5, -0.5]])
    np.testing.assert_allclose(shown[:, 2:], np.exp(log_std), rtol=1e-5)
