"""Cores that jobs share equally, in simulated time."""

from __future__ import annotations

import heapq
import itertools

import simpy


class Processor:
    """A machine's cores, or a device: n jobs run at the rate min(1, cores / n) each.

    Attributes:
      busy_seconds: Core-seconds of finished and unfinished work, up to the last change.
    """

    def __init__(self, clock: simpy.Environment, cores: float) -> None:
        """Starts idle.

        Raises:
          ValueError: There are no cores.
        """
        if not cores > 0:
            raise ValueError(f"cores is {cores}, allowed: above 0")
        self.busy_seconds = 0.0
        self._clock = clock
        self._cores = cores
        # What a job would have been given if it had always been there.
        self._served = 0.0
        self._changed = 0.0
        self._jobs: list[tuple[float, int, simpy.Event]] = []
        self._numbers = itertools.count()
        self._alarm = 0

    def run(self, seconds: float) -> simpy.Event:
        """An event that comes when so many core-seconds of work are done, by one core at most."""
        done = self._clock.event()
        self._advance()
        heapq.heappush(self._jobs, (self._served + seconds, next(self._numbers), done))
        self._arm()
        return done

    @property
    def _rate(self) -> float:
        return min(1.0, self._cores / len(self._jobs))

    def _advance(self) -> None:
        now = self._clock.now
        if self._jobs:
            served = (now - self._changed) * self._rate
            self._served += served
            self.busy_seconds += served * len(self._jobs)
        self._changed = now

    def _arm(self) -> None:
        self._alarm += 1
        if not self._jobs:
            return
        alarm = self._alarm
        wait = max(0.0, self._jobs[0][0] - self._served) / self._rate
        self._clock.timeout(wait).callbacks.append(lambda _: self._ring(alarm))

    def _ring(self, alarm: int) -> None:
        if alarm != self._alarm:  # another job has come or gone since
            return
        self._advance()
        # Exactly: the sum of the small steps may have stayed behind by a rounding error.
        self._served = max(self._served, self._jobs[0][0])
        while self._jobs and self._jobs[0][0] <= self._served:
            heapq.heappop(self._jobs)[2].succeed()
        self._arm()
