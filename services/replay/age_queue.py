"""The items of a table in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from services.replay.items import KeyArray


class AgeQueue:
    """Keys, oldest first. Items that leave out of order are left in it and skipped later."""

    def __init__(
        self, capacity: int, is_present: Callable[[KeyArray], npt.NDArray[np.bool_]]
    ) -> None:
        """Creates an empty queue.

        Args:
          capacity: The largest number of present items.
          is_present: Says for keys [n] which still have their item.
        """
        self._keys: KeyArray = np.zeros(2 * capacity + 16, np.uint64)
        self._head = 0
        self._tail = 0
        self._is_present = is_present

    def append(self, keys: KeyArray) -> None:
        """Adds the newest keys [n], n at most the capacity."""
        if self._tail + len(keys) > len(self._keys):
            waiting = self._keys[self._head : self._tail]
            waiting = waiting[self._is_present(waiting)]
            self._keys[: len(waiting)] = waiting
            self._head, self._tail = 0, len(waiting)
        self._keys[self._tail : self._tail + len(keys)] = keys
        self._tail += len(keys)

    def oldest(self, count: int) -> KeyArray:
        """The keys of the oldest present items, up to `count`."""
        found: list[KeyArray] = []
        missing = count
        at = self._head
        leading = True
        while missing and at < self._tail:
            keys = self._keys[at : min(at + missing, self._tail)]
            at += len(keys)
            present = self._is_present(keys)
            keys = keys[present]
            if leading:
                # Nothing before the first present key is needed again.
                leading = not len(keys)
                self._head = at if leading else self._head + int(np.argmax(present))
            found.append(keys)
            missing -= len(keys)
        return np.concatenate(found) if found else np.zeros(0, np.uint64)
