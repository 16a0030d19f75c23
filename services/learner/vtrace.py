"""V-trace targets and advantages: pure functions that `losses` calls once per update.

Espeholt et al. 2018, IMPALA (arXiv 1802.01561), section 4.1. Everything is time-major [T, B] and
computed in float32, whatever precision the network runs in: the recursion adds up T terms, which
bfloat16's eight bits of mantissa do not survive.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class VtraceReturns(NamedTuple):
    """What the losses need; no gradient flows through either.

    Attributes:
      vs: float32 [T, B], the value targets v_s of equation (1).
      pg_advantages: float32 [T, B], what multiplies the policy's score (section 4.2).
    """

    vs: tf.Tensor
    pg_advantages: tf.Tensor


def from_importance_weights(
    log_rhos_tm1: tf.Tensor,
    discount_t: tf.Tensor,
    r_t: tf.Tensor,
    v_tm1: tf.Tensor,
    bootstrap_value: tf.Tensor,
    mask_tm1: tf.Tensor | None = None,
    *,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
    trace_lambda: float = 1.0,
) -> VtraceReturns:
    """V-trace for T transitions, each from a record (`tm1`) to the next one (`t`).

    With rho = min(clip_rho, pi/mu) and c = lambda min(clip_c, pi/mu), equation (1) is computed as
    the recursion of remark 1:

      v_s = V(x_s) + delta_s + gamma_s c_s (v_{s+1} - V(x_{s+1}))
      delta_s = rho_s (r_s + gamma_s V(x_{s+1}) - V(x_s))

    and the advantage is min(clip_pg_rho, pi/mu) (r_s + gamma_s v_{s+1} - V(x_s)).

    Where the mask is false the transition leads out of a LAST record and never happened. There
    delta and c are 0, so v_s is V(LAST) itself: the step before it bootstraps at the value of the
    final observation, and nothing of the next episode flows back.

    Args:
      log_rhos_tm1: [T, B], log pi(a)/mu(a) of the actions taken.
      discount_t: [T, B], gamma, and 0 where the transition terminated the episode.
      r_t: [T, B], rewards that the transitions earned.
      v_tm1: [T, B], values of the records that the transitions start from.
      bootstrap_value: [B], value of the record that the last transition leads to.
      mask_tm1: bool [T, B], whether the transition is real. Default: all are.
      clip_rho: rho-bar, sets the fixed point that the values converge to.
      clip_c: c-bar, trades variance for speed of contraction.
      clip_pg_rho: rho-bar of the policy gradient.
      trace_lambda: lambda of remark 2.

    Returns:
      Targets and advantages; advantages are 0 where the mask is false.
    """
    log_rhos_tm1, discount_t, r_t, v_tm1, bootstrap_value = (
        tf.cast(x, tf.float32) for x in (log_rhos_tm1, discount_t, r_t, v_tm1, bootstrap_value)
    )
    rhos_tm1 = tf.exp(log_rhos_tm1)
    v_t = tf.concat([v_tm1[1:], bootstrap_value[None]], axis=0)
    deltas = tf.minimum(clip_rho, rhos_tm1) * (r_t + discount_t * v_t - v_tm1)
    decays = discount_t * trace_lambda * tf.minimum(clip_c, rhos_tm1)
    if mask_tm1 is not None:
        # A selection, not a product: 0 * inf would let a masked ratio poison the whole column.
        deltas = tf.where(mask_tm1, deltas, 0.0)
        decays = tf.where(mask_tm1, decays, 0.0)
    vs = v_tm1 + _discounted_sum(deltas, decays)
    vs_t = tf.concat([vs[1:], bootstrap_value[None]], axis=0)
    advantages = tf.minimum(clip_pg_rho, rhos_tm1) * (r_t + discount_t * vs_t - v_tm1)
    if mask_tm1 is not None:
        advantages = tf.where(mask_tm1, advantages, 0.0)
    return VtraceReturns(tf.stop_gradient(vs), tf.stop_gradient(advantages))


def _discounted_sum(deltas: tf.Tensor, decays: tf.Tensor) -> tf.Tensor:
    """Solves x_s = delta_s + decay_s x_{s+1}, x_T = 0, for float32 [T, B] with a static T."""
    # Unrolled in Python: T vector operations cost less than a while loop's bookkeeping, and
    # compile under XLA as they are.
    total = tf.zeros_like(deltas[0])
    totals = []
    for delta, decay in zip(
        reversed(tf.unstack(deltas)), reversed(tf.unstack(decays)), strict=True
    ):
        total = delta + decay * total
        totals.append(total)
    return tf.stack(totals[::-1])
