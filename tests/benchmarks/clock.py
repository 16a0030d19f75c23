"""The CPU clock of another process."""

from __future__ import annotations

import time


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a live process so far, all of its threads."""
    # The number that Linux gives to another process's CPU clock, whose unit is a nanosecond;
    # /proc counts hundredths of seconds.
    return time.clock_gettime((~pid << 3) | 2)
