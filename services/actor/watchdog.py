"""Finds calls into an environment that do not come back.

The thread that makes a call says so before and after; the worker's main thread looks for calls
past their deadline. A thread cannot be stopped, so a call is taken away from it: exactly one of
the two threads gets the call, and the loser must not touch anything any more.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable


class Abandoned(SystemExit):
    """The thread's call took too long, and another thread goes on in its place.

    As a SystemExit it ends a thread and prints nothing.
    """


class Watchdog:
    """The calls that are under way."""

    def __init__(self) -> None:
        # Of dictionary operations only atomic ones are used: no lock at every environment step.
        self._calls: dict[int, tuple[float, Callable[[], None]]] = {}
        self._numbers = itertools.count()

    def begin(self, timeout_seconds: float, expired: Callable[[], None]) -> int:
        """Says that a call begins.

        Args:
          timeout_seconds: When it counts as hung.
          expired: Called by `check`'s thread if it does.

        Returns:
          The call's number, for `end`.
        """
        number = next(self._numbers)
        self._calls[number] = (time.monotonic() + timeout_seconds, expired)
        return number

    def end(self, number: int) -> None:
        """Says that a call came back.

        Raises:
          Abandoned: Too late.
        """
        if self._calls.pop(number, None) is None:
            raise Abandoned

    def check(self) -> None:
        """Takes away the calls that are past their deadline."""
        now = time.monotonic()
        for number, (deadline, expired) in list(self._calls.items()):
            if now > deadline and self._calls.pop(number, None) is not None:
                expired()
