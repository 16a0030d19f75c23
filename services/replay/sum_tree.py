"""A sum tree over numpy arrays: draws places in proportion to their weights.

The selectors keep one each. Every operation is vectorised over the batch and loops over the
levels; nodes have 16 children, so that there are five levels for a million places. Sums are
brought up to date when they are needed, for all weights at once that were set since then.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_CHILDREN_BITS = 4
_CHILDREN = 1 << _CHILDREN_BITS
# With so many changed leaves the sums are computed anyway, or the first draw would be late.
_MAX_STALE = 4096


class SumTree:
    """Weights of `capacity` places; inner nodes hold the sums of their children.

    Sums are recomputed from the children, never adjusted by a difference, so that rounding
    errors do not grow with the number of updates.
    """

    def __init__(self, capacity: int) -> None:
        """Creates a tree in which all weights are 0."""
        # From the leaves to the root's children, [nodes of the level above, children] each.
        self._levels: list[FloatArray] = []
        nodes = capacity
        while nodes > 1 or not self._levels:
            nodes = -(-nodes // _CHILDREN)
            self._levels.append(np.zeros((nodes, _CHILDREN), np.float64))
        self._leaves = self._levels[0].reshape(-1)
        self._total = 0.0
        # Leaves that were set since the sums were computed.
        self._stale: list[IntArray] = []
        self._stale_count = 0

    @property
    def total(self) -> float:
        """The sum of all weights."""
        self._refresh()
        return self._total

    def weights(self, places: IntArray) -> FloatArray:
        """The weights of places [n], float64 [n]."""
        return self._leaves[places]

    def set(self, places: IntArray, weights: FloatArray | float) -> None:
        """Sets weights.

        Args:
          places: int64 [n], each at most once.
          weights: float64 [n], finite and not negative.
        """
        self._leaves[places] = weights
        self._stale.append(places)
        self._stale_count += len(places)
        if self._stale_count >= _MAX_STALE:
            self._refresh()

    def draw(self, uniform: FloatArray) -> IntArray:
        """Draws places in proportion to their weights; the total must be positive.

        Args:
          uniform: float64 [n] in [0, 1), one number for each draw.

        Returns:
          int64 [n], only places with a positive weight.
        """
        rest = uniform * self.total
        row = np.arange(len(uniform))
        index = np.zeros(len(uniform), np.int64)
        for level in reversed(self._levels):
            sums = level.take(index, axis=0).cumsum(axis=1)
            # The first child whose sum exceeds the rest; rounding must not leave no such child.
            sums[:, -1] = np.inf
            child = (sums > rest[:, None]).argmax(axis=1)
            rest -= np.where(child > 0, sums[row, child - 1], 0.0)
            index = (index << _CHILDREN_BITS) + child
        empty = self._leaves.take(index) <= 0
        if empty.any():
            index[empty] = self._nearest(index[empty])
        return index

    def _refresh(self) -> None:
        if not self._stale:
            return
        index = np.concatenate(self._stale)
        self._stale.clear()
        self._stale_count = 0
        for below, level in itertools.pairwise(self._levels):
            index >>= _CHILDREN_BITS
            # A node that occurs twice is computed twice, which is cheaper than finding that out.
            level.reshape(-1)[index] = below.take(index, axis=0).sum(axis=1)
        self._total = float(self._levels[-1].sum())

    def _nearest(self, leaves: IntArray) -> IntArray:
        """For each leaf the last one before it with a weight, or else the first with one."""
        used = np.flatnonzero(self._leaves > 0)
        return used[np.maximum(np.searchsorted(used, leaves, side="right") - 1, 0)]
