"""Says what the actor waits for: at once, as a warning every 30 seconds, and when it is over."""

from __future__ import annotations

import logging
import time

SAY_EVERY_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Waiting:
    """Something that may take forever, but not silently."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said = 0.0

    def still(self, reason: str) -> None:
        """It has not happened yet, and why."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            # No warning yet: an actor that starts together with its learner waits for seconds.
            _log.info("%s; trying again until it works", reason)
        elif now - self._said >= SAY_EVERY_SECONDS:
            _log.warning("waiting for %.0f s now: %s", now - self._since, reason)
        else:
            return
        self._said = now

    def over(self, what: str) -> None:
        """It has happened."""
        if self._since is not None:
            _log.info("%s after %.1f s", what, time.monotonic() - self._since)
            self._since = None
