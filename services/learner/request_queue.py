"""The requests that wait for the next batch of inference.

What is done for each wake-up of the inference loop does not grow with the number of requests that
wait: with hundreds of streams that was most of the loop's time.
"""

from __future__ import annotations

import collections
import heapq
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from services.learner.leases import Group
from services.learner.roles import Role
from services.learner.unrolls import IntArray


class Request(NamedTuple):
    """One group's request.

    Attributes:
      group: Whose.
      epoch: Of the group's stream that it came by.
      arrived: On the monotonic clock, in seconds.
    """

    group: Group
    epoch: int
    arrived: float


class RequestQueue:
    """Requests in the order in which they arrived; those without room are held back.

    A request that once had room keeps it: its slots get no record meanwhile, training only frees
    some. One whose stream has ended is dropped when its turn comes; until then it counts.
    """

    def __init__(
        self, is_current: Callable[[Group, int], bool], has_room: Callable[[IntArray], bool]
    ) -> None:
        """Starts empty.

        Args:
          is_current: Whether a group's stream is still the one of an epoch.
          has_room: Whether slots (int64 [k]) can take a record each.
        """
        self._is_current = is_current
        self._has_room = has_room
        self._ready: collections.deque[Request] = collections.deque()
        self._held: list[Request] = []
        self._waiting: collections.Counter[Role] = collections.Counter()
        self.ready_slots = 0

    @property
    def held(self) -> int:
        """Requests that wait for room."""
        return len(self._held)

    def waiting(self, role: Role | None = None) -> int:
        """Requests of a role, or of all, held ones too."""
        return self._waiting.total() if role is None else self._waiting[role]

    @property
    def oldest(self) -> float:
        """When the oldest request that has room arrived; infinite if there is none."""
        return self._ready[0].arrived if self._ready else math.inf

    def add(self, groups: Iterable[Group], now: float) -> None:
        """Takes requests that arrived now, and asks again for room for those held back."""
        held, self._held = self._held, []
        if admitted := [request for request in held if self._admit(request)]:
            merged = heapq.merge(admitted, self._ready, key=lambda request: request.arrived)
            self._ready = collections.deque(merged)
        for group in groups:
            request = Request(group, group.epoch, now)
            self._waiting[group.role] += 1
            if self._admit(request):
                self._ready.append(request)
        while self._ready and not self._is_current(*self._ready[0][:2]):
            self._forget(self._ready.popleft())

    def take(self, max_slots: int) -> list[Request]:
        """The oldest requests that have room, of so many slots together; at least one, if any."""
        batch: list[Request] = []
        slots = 0
        while self._ready:
            request = self._ready[0]
            if self._is_current(request.group, request.epoch):
                slots += len(request.group.slots)
                if batch and slots > max_slots:
                    break
                batch.append(request)
            self._forget(self._ready.popleft())
        return batch

    def _admit(self, request: Request) -> bool:
        """Whether the request has room; else it is held back, or dropped."""
        if not self._is_current(request.group, request.epoch):
            self._waiting[request.group.role] -= 1
            return False
        if not self._has_room(request.group.slots):
            self._held.append(request)
            return False
        self.ready_slots += len(request.group.slots)
        return True

    def _forget(self, request: Request) -> None:
        self._waiting[request.group.role] -= 1
        self.ready_slots -= len(request.group.slots)
