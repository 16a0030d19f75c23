"""Heads: what the algorithm wants to know, made of what a network's torso and memory say.

The agent chooses the head; any network takes any of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from services.learner.networks import layers


class Head(Protocol):
    """A `tf.Module`."""

    def __call__(self, features: tf.Tensor) -> Any:
        """Maps features [N, F] to a tensor, or a tuple of tensors, float32 [N, ...]."""


class ActorCritic(NamedTuple):
    """Attributes: policy_parameters float32 [..., P] and baseline (the value) float32 [...]."""

    policy_parameters: tf.Tensor
    baseline: tf.Tensor


class ActorCriticHead(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """A policy and its value."""

    def __init__(self, parameter_size: int) -> None:
        """Makes both.

        Args:
          parameter_size: P, the policy's parameters; see `distributions`.
        """
        super().__init__()
        # A policy that starts almost uniform explores better than one that starts with random
        # preferences (Andrychowicz et al. 2020, arXiv 2006.05990, section 3.2).
        self.policy = layers.Linear(parameter_size, layers.orthogonal(0.01))
        self.baseline = layers.Linear(1, layers.orthogonal(1.0))

    def __call__(self, features: tf.Tensor) -> ActorCritic:
        """See `Head`."""
        # Logits of a policy that is almost sure are large: bfloat16 would round them to halves.
        features = tf.cast(features, tf.float32)
        return ActorCritic(self.policy(features), self.baseline(features)[:, 0])


class DuelingHead(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """Q-values as value and advantages: Q(s, a) = V(s) + A(s, a) - mean over a of A(s, a).

    Wang et al. 2016 (arXiv 1511.06581), equation 9; one hidden layer for each of both, as in R2D2
    (Kapturowski et al. 2019), figure 1.
    """

    def __init__(self, num_actions: int, hidden_size: int) -> None:
        """Sets the number of actions and the units of each hidden layer."""
        super().__init__()
        self.value_hidden = layers.Linear(hidden_size)
        self.value = layers.Linear(1)
        self.advantage_hidden = layers.Linear(hidden_size)
        self.advantage = layers.Linear(num_actions)

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """Q-values float32 [N, num_actions]."""
        hidden = (
            tf.nn.relu(self.value_hidden(features)),
            tf.nn.relu(self.advantage_hidden(features)),
        )
        value, advantage = (tf.cast(x, tf.float32) for x in hidden)
        value, advantage = self.value(value), self.advantage(advantage)
        return value + advantage - tf.reduce_mean(advantage, axis=-1, keepdims=True)
