"""How many items may be sampled for each one that is inserted.

As in Reverb (arXiv 2102.04736, section 3.4): with

    diff = inserted * samples_per_insert - sampled

an insert is allowed while diff stays at or below the upper bound, a sample while it stays at or
above the lower bound, and no sample before the table has `min_size_to_sample` items. The bounds
lie `error_buffer` around samples_per_insert * min_size_to_sample. Items are counted when they
are chosen, not when they are delivered, so that prefetching does not sample more.
"""

from __future__ import annotations

import math


class RateLimiter:
    """Counts, and says what is allowed.

    Attributes:
      inserted: Items inserted so far.
      sampled: Items chosen so far.
    """

    def __init__(
        self, samples_per_insert: float | None, error_buffer: float, min_size_to_sample: int
    ) -> None:
        """Creates a limiter.

        Args:
          samples_per_insert: The ratio to keep; None: only the table's size limits.
          error_buffer: How far diff may be from its middle, in samples.
          min_size_to_sample: Items that the table must hold before the first sample.

        Raises:
          ValueError: An error buffer in which neither an insert nor a sample would fit.
        """
        self.inserted = 0
        self.sampled = 0
        self._min_size = min_size_to_sample
        self._ratio = samples_per_insert
        if samples_per_insert is None:
            return
        # With less, both sides could wait for each other.
        least = max(1.0, samples_per_insert)
        if error_buffer < least:
            raise ValueError(
                f"error_buffer is {error_buffer}, allowed: {least} (the larger of 1 and"
                " samples_per_insert) or more, or inserts and samples would wait for each other"
            )
        middle = samples_per_insert * min_size_to_sample
        self._lower = middle - error_buffer
        self._upper = middle + error_buffer

    def insertable(self, wanted: int, items: int) -> int:
        """How many of `wanted` items may be inserted now into a table that holds `items`."""
        if self._ratio is None:
            return wanted
        fits = (self._upper + self.sampled) / self._ratio - self.inserted
        # A table too small to be sampled must be allowed to grow, whatever was counted before.
        return min(wanted, max(0, math.floor(fits + 1e-9), self._min_size - items))

    def samplable(self, wanted: int, items: int) -> int:
        """How many of `wanted` items may be chosen now from a table that holds `items`."""
        if items < max(1, self._min_size):
            return 0
        if self._ratio is None:
            return wanted
        left = self.inserted * self._ratio - self._lower - self.sampled
        return min(wanted, max(0, math.floor(left + 1e-9)))

    def assume_balance(self) -> None:
        """After a loss of the count of samples: as many as leave diff in its middle."""
        inserted = self.inserted - self._min_size
        self.sampled = max(0, math.floor(inserted * (self._ratio or 0.0)))

    def describe(self, items: int) -> str:
        """What the limiter goes by, for error messages."""
        text = f"{items} items, min_size_to_sample {self._min_size}"
        if self._ratio is not None:
            text += (
                f"; {self.inserted} inserted x samples_per_insert {self._ratio} -"
                f" {self.sampled} sampled, allowed: {self._lower} to {self._upper}"
            )
        return text
