"""Losses: from a network's outputs on a batch of unrolls to one number to minimize."""

from __future__ import annotations

import math

import tensorflow as tf

from services.learner import schedules, vtrace
from services.learner.distributions import Distribution
from services.learner.networks.heads import ActorCritic
from services.shared.config import EntropyConfig, ScheduleConfig, VtraceConfig
from services.shared.specs import StepType

# Bounds of the adjusted cost's logarithm, as in SEED RL: outside, its gradient would round to 0.
_LOG_COST_BOUND = 20.0


def vtrace_loss(
    config: VtraceConfig,
    distribution: Distribution,
    output: ActorCritic,
    *,
    behaviour_parameters: tf.Tensor,
    action: tf.Tensor,
    reward: tf.Tensor,
    discount: tf.Tensor,
    step_type: tf.Tensor,
    entropy_cost: tf.Tensor,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The V-trace actor-critic loss of T + 1 consecutive records of each of B slots.

    Espeholt et al. 2018, IMPALA (arXiv 1802.01561), section 4.2. Transition t takes action a_t at
    record t and earns the reward and discount that arrived with record t + 1. Transitions that
    leave a LAST record are not real and count nowhere.

    Each term is the mean over the real transitions, as in SEED RL, where IMPALA takes the sum: so
    learning rates and clipping do not depend on batch size and unroll length.

    Args:
      config: Discount, clipping and costs.
      distribution: What the policy parameters mean.
      output: The learner's view: policy parameters [T + 1, B, P], baseline [T + 1, B].
      behaviour_parameters: float32 [T + 1, B, P], what the actions were drawn from.
      action: [T + 1, B, A], drawn at each record.
      reward: float32 [T + 1, B], that arrived with each record.
      discount: float32 [T + 1, B], 0 at the record that terminated an episode, else 1.
      step_type: integer [T + 1, B], see `specs.StepType`.
      entropy_cost: float32 scalar, see `EntropyCost`.

    Returns:
      The loss, float32 scalar, and scalar metrics by name.
    """
    mask = _real_transitions(step_type)
    parameters = output.policy_parameters[:-1]
    log_probs = distribution.log_prob(parameters, action[:-1])
    log_rhos = log_probs - distribution.log_prob(behaviour_parameters[:-1], action[:-1])
    values = output.baseline[:-1]
    returns = vtrace.from_importance_weights(
        tf.stop_gradient(log_rhos),
        discount[1:] * config.discount,
        _clip_reward(config, reward[1:]),
        values,
        output.baseline[-1],
        mask,
        clip_rho=config.clip_rho,
        clip_c=config.clip_c,
        clip_pg_rho=config.clip_pg_rho,
        trace_lambda=config.trace_lambda,
    )
    policy_loss = -_masked_mean(log_probs * returns.pg_advantages, mask)
    baseline_loss = 0.5 * _masked_mean(tf.square(returns.vs - values), mask)
    entropy = _masked_mean(distribution.entropy(parameters), mask)
    loss = (
        policy_loss
        + config.baseline_cost * baseline_loss
        - tf.stop_gradient(entropy_cost) * entropy
    )
    if config.entropy.target is not None:
        # Worth 0, but its gradient raises the cost while the entropy is below the target.
        adjustment = entropy_cost * tf.stop_gradient(entropy - config.entropy.target)
        loss += adjustment - tf.stop_gradient(adjustment)
    difference = tf.abs(output.policy_parameters[:-1] - behaviour_parameters[:-1])
    metrics = {
        "loss": loss,
        "policy_loss": policy_loss,
        "baseline_loss": baseline_loss,
        "entropy": entropy,
        "entropy_cost": entropy_cost,
        "baseline": _masked_mean(values, mask),
        "explained_variance": _explained_variance(returns.vs, values, mask),
        "importance_ratio": _masked_mean(tf.exp(log_rhos), mask),
        # LAST records count here: they too were answered by the network that is compared.
        "behaviour_difference": tf.reduce_max(difference),
    }
    return loss, {name: tf.stop_gradient(value) for name, value in metrics.items()}


class EntropyCost(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """The weight of the entropy bonus: fixed, scheduled, or adjusted to a target entropy.

    When adjusted, its logarithm is a trainable variable that `vtrace_loss` gives a gradient to:
    the Lagrange multiplier of SEED RL (Espeholt et al. 2019, arXiv 1910.06591, V-trace learner).
    """

    def __init__(self, config: EntropyConfig, total_frames: int) -> None:
        """Makes the variable, if the cost is adjusted; `cost` is then where it starts."""
        super().__init__()
        self._config = config
        self._total_frames = total_frames
        self.scaled_log_cost: tf.Variable | None = None
        if config.target is not None:
            rate = config.adjustment_rate
            cost = config.cost
            initial = cost.initial if isinstance(cost, ScheduleConfig) else cost
            bound = _LOG_COST_BOUND / rate
            # Stored divided by the rate, so that the optimizer's steps count `rate` times.
            self.scaled_log_cost = tf.Variable(
                math.log(initial) / rate,
                dtype=tf.float32,
                constraint=lambda x: tf.clip_by_value(x, -bound, bound),
            )

    def __call__(self, frames: tf.Tensor) -> tf.Tensor:
        """The cost, float32 scalar, at int64 scalar `frames`."""
        if self.scaled_log_cost is not None:
            return tf.exp(self._config.adjustment_rate * self.scaled_log_cost)
        return schedules.value_at(self._config.cost, frames, self._total_frames)


def _clip_reward(config: VtraceConfig, reward: tf.Tensor) -> tf.Tensor:
    if config.reward_clip is None:
        return reward
    return tf.clip_by_value(reward, -config.reward_clip, config.reward_clip)


def count_transitions(step_type: tf.Tensor) -> tf.Tensor:
    """How many transitions the terms of `vtrace_loss` are means over, float32 scalar."""
    return tf.reduce_sum(tf.cast(_real_transitions(step_type), tf.float32))


def _real_transitions(step_type: tf.Tensor) -> tf.Tensor:
    return tf.not_equal(tf.cast(step_type[:-1], tf.int32), StepType.LAST)


def _masked_mean(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    count = tf.reduce_sum(tf.cast(mask, tf.float32))
    return tf.reduce_sum(tf.where(mask, x, 0.0)) / tf.maximum(count, 1.0)


def _explained_variance(targets: tf.Tensor, values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """1 - Var(targets - values) / Var(targets): 1 is perfect, 0 no better than a constant."""

    def variance(x: tf.Tensor) -> tf.Tensor:
        return _masked_mean(tf.square(x - _masked_mean(x, mask)), mask)

    return 1.0 - variance(targets - values) / tf.maximum(variance(targets), 1e-8)
