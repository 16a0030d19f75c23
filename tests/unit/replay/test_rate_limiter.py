"""The limiter against Reverb's definition, written out slowly."""

from __future__ import annotations

import pytest

from services.replay.rate_limiter import RateLimiter


class SlowLimiter:
    """Reverb's CanInsert and CanSample, one item at a time."""

    def __init__(self, ratio: float, buffer: float, min_size: int) -> None:
        self.ratio, self.min_size = ratio, min_size
        self.low = ratio * min_size - buffer
        self.high = ratio * min_size + buffer
        self.inserted = self.sampled = 0

    def can_insert(self, items: int) -> bool:
        if items + 1 <= self.min_size:
            return True
        return (self.inserted + 1) * self.ratio - self.sampled <= self.high

    def can_sample(self, items: int) -> bool:
        if items < self.min_size:
            return False
        return self.inserted * self.ratio - self.sampled - 1 >= self.low


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0, 7.5])
@pytest.mark.parametrize("min_size", [1, 10])
def test_as_reverb_defines_it(ratio: float, min_size: int) -> None:
    buffer = 3 * max(1.0, ratio)
    fast, slow = RateLimiter(ratio, buffer, min_size), SlowLimiter(ratio, buffer, min_size)
    items = 0
    for turn in range(400):
        for _ in range(turn % 7):
            assert (fast.insertable(1, items) == 1) == slow.can_insert(items)
            if slow.can_insert(items):
                fast.inserted += 1
                slow.inserted += 1
                items += 1
        wanted = 1 + turn % 5
        got = fast.samplable(wanted, items)
        for i in range(wanted):
            assert (i < got) == slow.can_sample(items)
            if slow.can_sample(items):
                slow.sampled += 1
                fast.sampled += 1
    assert slow.inserted > 100 * min(1.0, 1 / ratio)


def test_several_at_once_are_as_many_as_one_by_one() -> None:
    limiter = RateLimiter(2.0, 10.0, 5)
    assert limiter.insertable(100, 0) == 10
    limiter.inserted = 10
    assert limiter.insertable(1, 10) == 0
    assert limiter.samplable(100, 10) == 20
    assert limiter.samplable(100, 4) == 0
    assert limiter.insertable(9, 3) == 2  # a table below its minimum may always grow


def test_without_a_ratio_only_the_size_counts() -> None:
    limiter = RateLimiter(None, 0.0, 3)
    assert limiter.insertable(1 << 20, 0) == 1 << 20
    assert [limiter.samplable(9, items) for items in (0, 2, 3)] == [0, 0, 9]


def test_a_band_in_which_nothing_fits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"error_buffer is 3\.0, allowed: 4\.0"):
        RateLimiter(4.0, 3.0, 1)
