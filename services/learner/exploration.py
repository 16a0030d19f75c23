"""How often each env slot acts at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from services.shared.config import R2d2Config

Exploration = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]
"""Gives slots [n] their epsilons, float32 [n]."""


def constant(epsilon: float) -> Exploration:
    """The same for all slots."""
    return lambda slots: np.full(len(slots), epsilon, np.float32)


def by_slot(config: R2d2Config, count_slots: Callable[[], int]) -> Exploration:
    """From much to little exploration over the slots.

    Slot i of N has epsilon^(1 + exponent i / (N - 1)): Horgan et al. 2018, Ape-X (arXiv
    1803.00933), section 4.1. One slot alone has epsilon. The evaluation slots come before the
    others and are not among these N.

    Args:
      config: Epsilons and number of evaluation slots.
      count_slots: The number of slots that are in use, from the first to the last; asked anew
        each time, so that the slots cover the whole range when actors come and go.
    """
    logarithm = np.log(config.epsilon) if config.epsilon > 0 else -np.inf

    def epsilons(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        index = slots - config.evaluation_slots
        steps = max(1, count_slots() - config.evaluation_slots - 1)
        share = np.clip(index / steps, 0.0, 1.0)
        values = np.exp(logarithm * (1.0 + config.epsilon_exponent * share))
        return np.where(index < 0, config.evaluation_epsilon, values).astype(np.float32)

    return epsilons
