"""The V-trace loss against values computed by hand, and the adjusted entropy cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from services.learner import distributions, losses
from services.learner.networks.heads import ActorCritic
from services.shared import specs
from services.shared.config import EntropyConfig, ScheduleConfig, VtraceConfig
from services.shared.specs import StepType

DISTRIBUTION = distributions.for_action_spec(specs.DiscreteActionSpec((2,)))
LN2 = math.log(2)


def _loss(
    config: VtraceConfig,
    values: list[float],
    rewards: list[float],
    discounts: list[float],
    step_types: list[StepType],
    entropy_cost: Any = 0.0,
    logits: Any = None,
    behaviour: Any = None,
) -> tuple[tf.Tensor, dict[str, float]]:
    """One slot; uniform policies unless given."""
    records = len(values)
    zeros = tf.zeros([records, 1, 2])
    output = ActorCritic(
        zeros if logits is None else logits, tf.constant(values, tf.float32)[:, None]
    )
    loss, metrics = losses.vtrace_loss(
        config,
        DISTRIBUTION,
        output,
        behaviour_parameters=zeros if behaviour is None else behaviour,
        action=tf.zeros([records, 1, 1], tf.int32),
        reward=tf.constant(rewards, tf.float32)[:, None],
        discount=tf.constant(discounts, tf.float32)[:, None],
        step_type=tf.constant([int(x) for x in step_types], tf.uint8)[:, None],
        entropy_cost=tf.convert_to_tensor(entropy_cost),
    )
    return loss, {name: float(value) for name, value in metrics.items()}


MID = [StepType.MID] * 4


def test_by_hand() -> None:
    # The on-policy example of test_vtrace: vs [2.8, 2, 39], advantages [-7.2, -18, 9]. The reward
    # and discount of record 0 belong to a transition before this unroll.
    config = VtraceConfig(discount=0.9, baseline_cost=0.5)
    loss, metrics = _loss(
        config, [10, 20, 30, 40], [99, 1, 2, 3], [0, 1, 0, 1], MID, entropy_cost=0.1
    )
    policy_loss = LN2 * (-7.2 - 18 + 9) / 3  # -log(1/2) = ln 2.
    baseline_loss = 0.5 * (7.2**2 + 18**2 + 9**2) / 3
    assert metrics["policy_loss"] == pytest.approx(policy_loss, rel=1e-5)
    assert metrics["baseline_loss"] == pytest.approx(baseline_loss, rel=1e-5)
    assert metrics["entropy"] == pytest.approx(LN2, rel=1e-5)
    assert float(loss) == pytest.approx(policy_loss + 0.5 * baseline_loss - 0.1 * LN2, rel=1e-5)
    assert metrics["loss"] == float(loss)
    assert metrics["importance_ratio"] == pytest.approx(1.0)
    assert metrics["behaviour_difference"] == 0.0
    assert metrics["baseline"] == pytest.approx(20.0)
    targets, errors = np.array([2.8, 2, 39]), np.array([-7.2, -18, 9])
    assert metrics["explained_variance"] == pytest.approx(
        1 - errors.var() / targets.var(), rel=1e-4
    )


def test_a_truncated_episode_weighs_nothing_at_its_end() -> None:
    # FIRST and LAST with values 1, then another episode with values 100; no rewards, discount 1.
    step_types = [StepType.FIRST, StepType.LAST, StepType.FIRST, StepType.MID]
    loss, metrics = _loss(
        VtraceConfig(discount=1.0), [1, 1, 100, 100], [0, 0, 0, 0], [1, 1, 1, 1], step_types
    )
    assert float(loss) == 0.0
    assert metrics["policy_loss"] == 0.0
    # Two real transitions.
    assert metrics["baseline"] == pytest.approx(50.5)


def test_reward_clipping() -> None:
    config = VtraceConfig(discount=0.0, reward_clip=1.0)
    _, metrics = _loss(config, [0] * 4, [9, 5, -7, 0.5], [1] * 4, MID)
    assert metrics["baseline_loss"] == pytest.approx(0.5 * (1 + 1 + 0.25) / 3)


def test_ratio_and_behaviour_difference() -> None:
    # The learner plays action 0 with probability 3/4, the behaviour policy with 1/2.
    logits = tf.tile(tf.math.log([[[3.0, 1.0]]]), [4, 1, 1])
    step_types = [StepType.MID, StepType.MID, StepType.LAST, StepType.FIRST]
    _, metrics = _loss(VtraceConfig(), [0] * 4, [0] * 4, [1] * 4, step_types, logits=logits)
    assert metrics["importance_ratio"] == pytest.approx(1.5)
    assert metrics["behaviour_difference"] == pytest.approx(math.log(3))


def test_policy_gradient_by_hand() -> None:
    # d/dlogit of -log pi(0) A, averaged: -(1 - 1/2) A / 3 at transition t, A = r.
    config = VtraceConfig(discount=0.0, baseline_cost=0.0)
    logits = tf.zeros([4, 1, 2])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss, _ = _loss(config, [0] * 4, [0, 1, 2, 3], [1] * 4, MID, logits=logits)
    gradient = tape.gradient(loss, logits).numpy()[:, 0]
    np.testing.assert_allclose(
        gradient, [[-1 / 6, 1 / 6], [-1 / 3, 1 / 3], [-1 / 2, 1 / 2], [0.0, 0.0]], rtol=1e-5
    )


def test_an_adjusted_entropy_cost_moves_towards_its_target() -> None:
    for target, sign in ((LN2 + 0.5, -1), (LN2 - 0.5, 1)):
        entropy = EntropyConfig(cost=0.01, target=target, adjustment_rate=10.0)
        cost = losses.EntropyCost(entropy, total_frames=100)
        assert cost.scaled_log_cost is not None
        with tf.GradientTape() as tape:
            loss, metrics = _loss(
                VtraceConfig(entropy=entropy),
                [0] * 4,
                [0] * 4,
                [1] * 4,
                MID,
                entropy_cost=cost(tf.constant(0, tf.int64)),
            )
        # d/dp exp(10 p) (H - target); descent raises the cost where entropy is too low.
        gradient = tape.gradient(loss, cost.scaled_log_cost)
        np.testing.assert_allclose(gradient, sign * 10 * 0.01 * 0.5, rtol=1e-4)
        assert metrics["loss"] == pytest.approx(-0.01 * LN2, rel=1e-4)
        assert metrics["entropy_cost"] == pytest.approx(0.01, rel=1e-4)
        np.testing.assert_allclose(cost.scaled_log_cost.constraint(tf.constant(5.0)), 2.0)


def test_a_scheduled_entropy_cost() -> None:
    schedule = ScheduleConfig(initial=0.4, final=0.2, frames=10)
    cost = losses.EntropyCost(EntropyConfig(cost=schedule), total_frames=1000)
    assert cost.scaled_log_cost is None
    for frames, expected in ((0, 0.4), (5, 0.3), (10, 0.2), (50, 0.2)):
        np.testing.assert_allclose(cost(tf.constant(frames, tf.int64)), expected, rtol=1e-6)
