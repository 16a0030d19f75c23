"""A sum tree over numpy arrays: draws places in proportion to their weights.

The selectors keep one each. Every operation is vectorised over the batch and loops over the
levels, about 20 for a million places.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class SumTree:
    """Weights of `capacity` places; inner nodes hold the sums of their two children.

    Sums are recomputed from the children, never adjusted by a difference, so that rounding
    errors do not grow with the number of updates.
    """

    def __init__(self, capacity: int) -> None:
        """Creates a tree in which all weights are 0."""
        self._levels = max(1, (capacity - 1).bit_length())
        self._first_leaf = 1 << self._levels
        # Node 1 is the root, the children of node i are 2i and 2i + 1.
        self._nodes: FloatArray = np.zeros(2 * self._first_leaf, np.float64)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    def weights(self, places: IntArray) -> FloatArray:
        """The weights of places [n], float64 [n]."""
        return self._nodes[self._first_leaf + places]

    def set(self, places: IntArray, weights: FloatArray | float) -> None:
        """Sets weights.

        Args:
          places: int64 [n], each at most once.
          weights: float64 [n], finite and not negative.
        """
        nodes = self._nodes
        index = self._first_leaf + places
        nodes[index] = weights
        for _ in range(self._levels):
            index >>= 1
            # A node that occurs twice is computed twice, which is cheaper than finding that out.
            left = index << 1
            nodes[index] = nodes.take(left) + nodes.take(left + 1)

    def draw(self, uniform: FloatArray) -> IntArray:
        """Draws places in proportion to their weights; the total must be positive.

        Args:
          uniform: float64 [n] in [0, 1), one number for each draw.

        Returns:
          int64 [n], only places with a positive weight.
        """
        nodes = self._nodes
        rest = uniform * nodes[1]
        index = np.ones(len(uniform), np.int64)
        for _ in range(self._levels):
            index <<= 1
            left = nodes.take(index)
            right = rest >= left
            rest -= left * right
            index += right
        # Rounding may leave a rest that exceeds both children, which leads to an empty place.
        empty = nodes.take(index) <= 0
        if empty.any():
            index[empty] = self._nearest(index[empty])
        return index - self._first_leaf

    def _nearest(self, leaves: IntArray) -> IntArray:
        """For each leaf the last one before it with a weight, or else the first with one."""
        used = np.flatnonzero(self._nodes[self._first_leaf :] > 0) + self._first_leaf
        return used[np.maximum(np.searchsorted(used, leaves, side="right") - 1, 0)]
