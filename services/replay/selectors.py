"""Which items a table chooses: by priority, uniformly, or the oldest first.

The table tells its selector about every item that comes, changes or goes, and asks it to choose.
"""

from __future__ import annotations

import math
import sys
from typing import Protocol

import numpy as np

from services.replay.sum_tree import FloatArray, IntArray, SumTree

# 2**24 such weights still have a finite sum with much to spare.
MAX_WEIGHT = 1e100


class Selector(Protocol):
    """What a table needs of a selector.

    Attributes:
      max_priority: Above it a weight would be too large.
    """

    max_priority: float

    @property
    def total(self) -> float:
        """The sum of the items' weights: the table's mass when shards are weighted."""

    def weight(self, priorities: FloatArray) -> FloatArray:
        """The weights [n] of items with these priorities [n]."""

    def set(self, places: IntArray, weights: FloatArray) -> None:
        """Takes items at places [n], each once, or changes their weights [n]."""

    def clear(self, places: IntArray) -> None:
        """Forgets the items at places [n]."""

    def choose(self, count: int, present: IntArray) -> tuple[IntArray, FloatArray]:
        """Chooses `count` items, with replacement.

        Args:
          count: How many.
          present: int64 [items], all places with an item; read only if the weights are all 0.

        Returns:
          Places int64 [count] and the probability of each, float64 [count].
        """


class PrioritizedSelector:
    """P(i) = p_i^alpha / sum_k p_k^alpha (Schaul 2016, arXiv 1511.05952, equation 1).

    Here, and nowhere else, alpha is applied. Draws are independent of each other. When all
    weights are 0, every item has the same probability.
    """

    def __init__(self, capacity: int, exponent: float, random: np.random.Generator) -> None:
        """Creates a selector for places 0 to capacity - 1.

        Args:
          capacity: Number of places.
          exponent: Alpha.
          random: Draws the numbers.
        """
        self._tree = SumTree(capacity)
        self._exponent = exponent
        self.max_priority = sys.float_info.max
        if exponent * math.log(self.max_priority) > math.log(MAX_WEIGHT):
            self.max_priority = MAX_WEIGHT ** (1 / exponent)
        self._random = random

    @property
    def total(self) -> float:
        """The sum of p^alpha."""
        return self._tree.total

    def weight(self, priorities: FloatArray) -> FloatArray:
        """p^alpha."""
        weights: FloatArray = priorities**self._exponent
        return weights

    def set(self, places: IntArray, weights: FloatArray) -> None:
        """See `Selector`."""
        self._tree.set(places, weights)

    def clear(self, places: IntArray) -> None:
        """See `Selector`."""
        self._tree.set(places, 0.0)

    def choose(self, count: int, present: IntArray) -> tuple[IntArray, FloatArray]:
        """See `Selector`."""
        uniform = self._random.random(count)
        total = self._tree.total
        if total <= 0:
            index = (uniform * len(present)).astype(np.int64)
            return present[index], np.full(count, 1 / len(present))
        places = self._tree.draw(uniform)
        return places, self._tree.weights(places) / total


class UniformSelector(PrioritizedSelector):
    """The same probability for every item, whatever its priority."""

    def __init__(self, capacity: int, random: np.random.Generator) -> None:
        """Creates a selector for places 0 to capacity - 1."""
        super().__init__(capacity, 0.0, random)

    def weight(self, priorities: FloatArray) -> FloatArray:
        """1."""
        return np.ones(len(priorities))


def make(
    name: str, capacity: int, exponent: float, random: np.random.Generator
) -> PrioritizedSelector:
    """The selector of a name; a FIFO table finds its oldest items itself, all weights are 1."""
    if name == "prioritized":
        return PrioritizedSelector(capacity, exponent, random)
    return UniformSelector(capacity, random)
