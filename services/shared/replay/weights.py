"""Importance weights: the service computes them for its items, the client over all shards."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def importance_weights(probabilities: FloatArray, exponent: float) -> FloatArray:
    """w_i = (N P(i))^-beta / max_j w_j, the maximum over the batch, in which N cancels.

    Schaul 2016 (arXiv 1511.05952), section 3.4. The batch's maximum, not the table's, so that
    one item of tiny priority somewhere in the table does not scale all updates down.

    Args:
      probabilities: float64 [m], P, all positive.
      exponent: Beta.

    Returns:
      float64 [m], the largest is 1.
    """
    if not len(probabilities):
        return np.zeros(0)
    # The same as dividing the weights by their maximum, but it cannot overflow.
    weights: FloatArray = (probabilities / probabilities.min()) ** -exponent
    return weights
