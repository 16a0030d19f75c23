"""What a policy's parameters say to people: probabilities, or the values of actions.

Front ends add it to the answers of groups that ask for it, because they draw recordings.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.learner.step_store import StoreLayout
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import DiscreteActionSpec

Floats = npt.NDArray[np.float32]
# Bounds of the log standard deviation: see `distributions.DiagonalNormal`.
_LOG_STD_MINIMUM, _LOG_STD_MAXIMUM = -5.0, 2.0


def explain(layout: StoreLayout, parameters: Floats) -> Floats:
    """The numbers of `ActResponse.policy`.

    Args:
      layout: Says what the parameters stand for.
      parameters: float32 [k, P].

    Returns:
      float32 [k, P].
    """
    if layout.policy_kind == inference_pb2.POLICY_KIND_ACTION_VALUES:
        return _unrescaled(parameters, layout.rescaling_epsilon)
    action = layout.spec.action
    if isinstance(action, DiscreteActionSpec):
        ends = np.cumsum(action.num_values)[:-1]
        return np.concatenate([_softmax(p) for p in np.split(parameters, ends, axis=1)], axis=1)
    mean, raw = np.split(parameters, 2, axis=1)
    log_std = _LOG_STD_MAXIMUM - _softplus(_LOG_STD_MAXIMUM - raw)
    log_std = _LOG_STD_MINIMUM + _softplus(log_std - _LOG_STD_MINIMUM)
    return np.concatenate([mean, np.exp(log_std)], axis=1).astype(np.float32)


def value(layout: StoreLayout, values: Floats) -> Floats:
    """The numbers of `ActResponse.value`, of values float32 [k] in the policy's units."""
    if layout.policy_kind == inference_pb2.POLICY_KIND_ACTION_VALUES:
        return _unrescaled(values, layout.rescaling_epsilon)
    return values


def _softmax(logits: Floats) -> Floats:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares


def _softplus(x: Floats) -> Floats:
    return np.logaddexp(0.0, x).astype(np.float32)


def _unrescaled(y: Floats, epsilon: float) -> Floats:
    """h^-1; R2D2 (Kapturowski et al. 2019), section 2.3: the twin of `r2d2.unrescale`."""
    linear = 1.0 + 2.0 * epsilon
    u = 2.0 * np.abs(y) / (linear + np.sqrt(linear**2 + 4.0 * epsilon * np.abs(y)))
    return (np.sign(y) * u * (u + 2.0)).astype(np.float32)
