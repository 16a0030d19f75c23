"""What R2D2 learns from a sequence: rescaled n-step double-Q errors and the sequence's priority.

Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning (ICLR),
section 2.3. Time comes first; t counts the records of the unroll, after the burn-in.
"""

from __future__ import annotations

import tensorflow as tf

from services.shared.config import R2d2Config
from services.shared.specs import StepType


def rescale(x: tf.Tensor, epsilon: float) -> tf.Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x; Pohlen et al. 2018 (arXiv 1805.11593).

    Written without the difference of almost equal numbers, which float32 would lose.
    """
    return x / (tf.sqrt(tf.abs(x) + 1.0) + 1.0) + epsilon * x


def unrescale(y: tf.Tensor, epsilon: float) -> tf.Tensor:
    """The inverse of `rescale`, h^-1.

    With u = sqrt(|x| + 1) - 1, |y| = epsilon u^2 + (1 + 2 epsilon) u. That is solved for u in the
    form without cancellation; then |x| = u (u + 2).
    """
    linear = 1.0 + 2.0 * epsilon
    u = 2.0 * tf.abs(y) / (linear + tf.sqrt(linear**2 + 4.0 * epsilon * tf.abs(y)))
    return tf.sign(y) * u * (u + 2.0)


def n_step_returns(
    reward: tf.Tensor, discount: tf.Tensor, value: tf.Tensor, ends: tf.Tensor, n: int
) -> tf.Tensor:
    """r_{t+1} + g_{t+1} (r_{t+2} + ... + g_{t+n} v_{t+n}).

    A return is shorter where an episode ends, terminated (discount 0) or truncated (its value
    counts), and at the end of the sequence.

    Args:
      reward: float32 [T, B], r_{t+1}: what action t earned.
      discount: float32 [T, B], g_{t+1}; 0 where the episode terminated.
      value: float32 [T, B], v_{t+1}, of the record that followed.
      ends: bool [T, B], whether the record t + 1 is its episode's last.
      n: Steps.

    Returns:
      float32 [T, B].
    """
    returns = reward + discount * value
    for _ in range(n - 1):
        following = tf.concat([returns[1:], value[-1:]], axis=0)
        returns = reward + discount * tf.where(ends, value, following)
    return returns


def td_errors(
    config: R2d2Config,
    q: tf.Tensor,
    target_q: tf.Tensor,
    *,
    action: tf.Tensor,
    reward: tf.Tensor,
    discount: tf.Tensor,
    step_type: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The errors of Q(s_t, a_t) against the rescaled n-step double-Q target (section 2.3).

    The online network chooses the action whose value in the target network is bootstrapped from;
    that value is brought back by h^-1 before it is discounted and added up, and the sum goes
    through h.

    Args:
      config: Discount, n, epsilon of h.
      q: float32 [T + 1, B, A] of the online network.
      target_q: float32 [T + 1, B, A] of the target network.
      action: int32 [T + 1, B], taken at each record.
      reward: float32 [T + 1, B], that arrived with each record.
      discount: float32 [T + 1, B], 0 at the record that terminated an episode, else 1.
      step_type: integer [T + 1, B], see `specs.StepType`.

    Returns:
      Target minus Q(s_t, a_t), float32 [T, B], through which gradients reach `q` alone, and bool
      [T, B]: which transitions are real. From LAST to FIRST there is none; its error is 0.
    """
    last = tf.equal(tf.cast(step_type, tf.int32), StepType.LAST)
    best = tf.argmax(q, axis=-1, output_type=tf.int32)
    value = unrescale(tf.gather(target_q, best, batch_dims=2), config.rescaling_epsilon)
    returns = n_step_returns(
        reward[1:], discount[1:] * config.discount, value[1:], last[1:], config.n_steps
    )
    target = tf.stop_gradient(rescale(returns, config.rescaling_epsilon))
    taken = tf.gather(q[:-1], action[:-1], batch_dims=2)
    real = ~last[:-1]
    return tf.where(real, target - taken, 0.0), real


def sequence_priorities(errors: tf.Tensor, real: tf.Tensor, eta: float) -> tf.Tensor:
    """Eta max_t |d_t| + (1 - eta) mean_t |d_t| over the real transitions (section 2.3).

    Args:
      errors: float32 [T, B], 0 where there is no transition.
      real: bool [T, B].
      eta: Weight of the maximum.

    Returns:
      float32 [B].
    """
    absolute = tf.abs(errors)
    count = tf.reduce_sum(tf.cast(real, tf.float32), axis=0)
    mean = tf.reduce_sum(absolute, axis=0) / tf.maximum(count, 1.0)
    return eta * tf.reduce_max(absolute, axis=0) + (1.0 - eta) * mean
