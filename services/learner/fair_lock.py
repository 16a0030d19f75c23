"""A lock that is granted in the order in which it was asked for.

The inference thread takes the transport's lock in a tight loop; beside it, whoever asks for a
plain lock now and then may wait for seconds.
"""

from __future__ import annotations

import collections
import threading
from types import TracebackType


class FairLock:
    """A context manager; not reentrant."""

    def __init__(self) -> None:
        """Starts free."""
        self._mutex = threading.Lock()
        self._held = False
        self._turns: collections.deque[threading.Lock] = collections.deque()

    def __enter__(self) -> None:
        """Waits for its turn."""
        with self._mutex:
            if not self._held:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._turns.append(turn)
        turn.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hands the lock to whoever has waited longest."""
        with self._mutex:
            if self._turns:
                self._turns.popleft().release()
            else:
                self._held = False
