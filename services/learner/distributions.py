"""Distributions over actions: what a network's policy parameters mean.

The inference loop samples, the losses ask for log-probabilities and entropies. Actions are
[..., A] always, also for a single choice. Sampling is stateless: the same seed and parameters
give the same action, so that a run can be repeated.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import tensorflow as tf

from services.shared import specs

_LOG_STD_MINIMUM = -5.0
_LOG_STD_MAXIMUM = 2.0


class Distribution(Protocol):
    """A family of distributions over one agent's action.

    Attributes:
      parameter_size: P, the numbers that the network puts out for each action.
    """

    @property
    def parameter_size(self) -> int:
        """P, the numbers that the network puts out for each action."""

    def sample(self, parameters: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Draws actions.

        Args:
          parameters: float32 [..., P].
          seed: int32 or int64 [2]; the same seed gives the same actions.

        Returns:
          [..., A], int32 for discrete actions, else float32.
        """

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """The likeliest action: [..., A] of parameters float32 [..., P]."""

    def log_prob(self, parameters: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Log-probability (density) of actions [..., A] in nats: float32 [...]."""

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """Entropy in nats: float32 [...]."""


def for_action_spec(spec: specs.ActionSpec) -> Distribution:
    """The distribution that acts in an environment with this action spec."""
    if isinstance(spec, specs.DiscreteActionSpec):
        return CategoricalProduct(spec.num_values)
    return DiagonalNormal(spec.size)


class CategoricalProduct:
    """Independent choices; the parameters are their logits, concatenated."""

    def __init__(self, num_values: tuple[int, ...]) -> None:
        """Sets the number of values of each of the A choices."""
        self._num_values = num_values

    @property
    def parameter_size(self) -> int:
        """The sum over all choices of their values."""
        return sum(self._num_values)

    def sample(self, parameters: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Draws int32 [..., A] by the Gumbel-max trick, all choices from one draw of noise."""
        parameters = tf.cast(parameters, tf.float32)
        # The smallest normal number instead of 0 keeps both logarithms finite.
        uniform = tf.random.stateless_uniform(
            tf.shape(parameters), seed, minval=float(np.finfo(np.float32).tiny)
        )
        return self.mode(parameters - tf.math.log(-tf.math.log(uniform)))

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """The likeliest value of each choice, int32 [..., A]."""
        choices = [
            tf.argmax(logits, axis=-1, output_type=tf.int32) for logits in self._split(parameters)
        ]
        return tf.stack(choices, axis=-1)

    def log_prob(self, parameters: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Sum over the choices of their log-probabilities, float32 [...]."""
        terms = [
            -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=choice, logits=logits)
            for logits, choice in zip(
                self._split(parameters), tf.unstack(action, axis=-1), strict=True
            )
        ]
        return tf.add_n(terms)

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """Sum over the choices of their entropies, float32 [...]."""
        terms = []
        for logits in self._split(parameters):
            log_probs = tf.nn.log_softmax(logits)
            terms.append(-tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1))
        return tf.add_n(terms)

    def _split(self, parameters: tf.Tensor) -> list[tf.Tensor]:
        parameters = tf.cast(parameters, tf.float32)
        if len(self._num_values) == 1:
            return [parameters]
        return list(tf.split(parameters, self._num_values, axis=-1))


class DiagonalNormal:
    """A normal with independent elements, in the policy's own units.

    The parameters are A means and A raw log standard deviations. The latter are bounded to about
    [-5, 2] with softplus (Chua et al. 2018, arXiv 1805.12114, appendix A.1), whose gradient never
    vanishes the way a clip's does; 0 stands for a standard deviation of 0.88.

    Actions are not bounded: `ContinuousActionSpec.to_environment` clips and scales them in the
    front end. Ratios of densities of the unclipped action are what V-trace needs.
    """

    def __init__(self, size: int) -> None:
        """Sets A, the elements of an action."""
        self._size = size

    @property
    def parameter_size(self) -> int:
        """A mean and a log standard deviation for each element."""
        return 2 * self._size

    def sample(self, parameters: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Draws float32 [..., A]."""
        mean, log_std = self._mean_and_log_std(parameters)
        return mean + tf.exp(log_std) * tf.random.stateless_normal(tf.shape(mean), seed)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """The mean, float32 [..., A]."""
        return self._mean_and_log_std(parameters)[0]

    def log_prob(self, parameters: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """Log-density, float32 [...]."""
        mean, log_std = self._mean_and_log_std(parameters)
        standardized = (tf.cast(action, tf.float32) - mean) * tf.exp(-log_std)
        terms = -0.5 * tf.square(standardized) - log_std - 0.5 * math.log(2 * math.pi)
        return tf.reduce_sum(terms, axis=-1)

    def entropy(self, parameters: tf.Tensor) -> tf.Tensor:
        """Differential entropy, float32 [...]."""
        _, log_std = self._mean_and_log_std(parameters)
        return tf.reduce_sum(log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def _mean_and_log_std(self, parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, raw = tf.split(tf.cast(parameters, tf.float32), 2, axis=-1)
        log_std = _LOG_STD_MAXIMUM - tf.nn.softplus(_LOG_STD_MAXIMUM - raw)
        return mean, _LOG_STD_MINIMUM + tf.nn.softplus(log_std - _LOG_STD_MINIMUM)
