"""How often each env slot acts at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from services.learner.roles import Role
from services.shared.config import R2d2Config

Exploration = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]
"""Gives slots [n] their epsilons, float32 [n]."""


def by_slot(
    config: R2d2Config,
    roles: npt.NDArray[np.uint8],
    places: npt.NDArray[np.float64],
    greedy_evaluation: bool = False,
) -> Exploration:
    """From much to little exploration over the training slots; little in evaluation.

    Slot i of N has epsilon^(1 + exponent i / (N - 1)): Horgan et al. 2018, Ape-X (arXiv
    1803.00933), section 4.1. One slot alone has epsilon.

    Args:
      config: The epsilons.
      roles: uint8 [slots], `Role`s: slots that are not trained on have the evaluation epsilon.
      places: float64 [slots], i / (N - 1) of each training slot; whoever owns it keeps it true,
        so that slots cover the whole range when actors come and go.
      greedy_evaluation: Evaluation never acts at random.
    """
    logarithm = np.log(config.epsilon) if config.epsilon > 0 else -np.inf
    elsewhere = 0.0 if greedy_evaluation else config.evaluation_epsilon

    def epsilons(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        values = np.exp(logarithm * (1.0 + config.epsilon_exponent * places[slots]))
        return np.where(roles[slots] == Role.TRAINING, values, elsewhere).astype(np.float32)

    return epsilons
