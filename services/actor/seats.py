"""Places in a group, and the environments that take them.

The worker starts the first environment of each seat with a `Starter`, and again whenever a
group loses one; the group takes what arrives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable

from services.actor.environments.base import Environment, Observation
from services.actor.environments.checks import check_first
from services.actor.watchdog import Abandoned, Watchdog
from services.shared.rpc import Backoff
from services.shared.specs import EnvironmentSpec

# An environment that has lived so long does not belong to the row of failures before it.
_HEALTHY_SECONDS = 60.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False, slots=True)
class Seat:
    """One place in a group, taken by one environment after the other.

    Attributes:
      name: For logs.
      number: Of the seat among those of its worker.
      incarnation: Of the environment in it; grows with each new one.
      environment: None while it is being replaced.
      needs_reset: The next call is a reset, not a step.
      arrived: A started environment and the first observation of its first episode, until the
        group takes it.
      steps: Of the environment in it, without resets.
      fruitless: Environments lost in a row before they had finished a step.
      born: When the last environment was started, by the monotonic clock.
      starts: Environments started here so far.
      backoff: Between starts.
    """

    name: str
    number: int
    incarnation: int
    environment: Environment | None = None
    needs_reset: bool = False
    arrived: tuple[Environment, Observation] | None = None
    steps: int = 0
    fruitless: int = 0
    born: float = 0.0
    starts: int = 0
    backoff: Backoff = dataclasses.field(default_factory=Backoff)


class Starter:
    """Makes environments in threads of their own, so that the others are not disturbed.

    Attributes:
      spec: What the first environment showed; all others must be like it.
      retired: Lost environments that have not been closed yet.
    """

    def __init__(
        self,
        make: Callable[[Seat], Environment],
        watchdog: Watchdog,
        timeout_seconds: float,
        attempts: int,
        arrived: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """Prepares to start environments.

        Args:
          make: Makes the environment for a seat.
          watchdog: Gives up starts that take too long.
          timeout_seconds: For the construction and the first reset together.
          attempts: Failures in a row after which `failed` is called: failed starts, or
            environments of a seat that were lost before they had finished a step.
          arrived: Called by some thread when a seat's environment has arrived.
          failed: Called by some thread with the reason when a seat cannot be filled.
        """
        self._make = make
        self._watchdog = watchdog
        self._timeout_seconds = timeout_seconds
        self._attempts = attempts
        self._arrived = arrived
        self._failed = failed
        self._stopping = threading.Event()
        self.spec: EnvironmentSpec | None = None
        self.retired: list[Environment] = []

    def start(self, seat: Seat) -> None:
        """Starts the first environment of a seat."""
        self._spawn(seat, 1, 0.0, None)

    def replace(self, seat: Seat, old: Environment | None, reason: str) -> None:
        """Starts another environment, after a while.

        Args:
          seat: It was lost.
          old: To be closed; None if it may still be running.
          reason: Why it was lost.
        """
        if old is not None:
            self.retired.append(old)
        seat.fruitless = 0 if seat.steps else seat.fruitless + 1
        if seat.fruitless >= self._attempts:
            self._failed(
                f"{seat.name} was lost before it had finished a step, {seat.fruitless} times in a"
                f" row; the last time:\n{reason}"
            )
            return
        if time.monotonic() - seat.born > _HEALTHY_SECONDS:
            seat.backoff.reset()
        self._spawn(seat, 1, seat.backoff.next(), old)

    def stop(self) -> None:
        """Starts nothing any more; does not wait for starts under way."""
        self._stopping.set()

    def _spawn(self, seat: Seat, attempt: int, delay: float, old: Environment | None) -> None:
        # A daemon: a start that hangs must not keep the worker from ending.
        threading.Thread(
            target=self._attempt,
            args=(seat, attempt, delay, old),
            name=f"start {seat.name}",
            daemon=True,
        ).start()

    def _attempt(self, seat: Seat, attempt: int, delay: float, old: Environment | None) -> None:
        if self._stopping.wait(delay):
            return
        timed_out = f"it took longer than start_timeout_seconds ({self._timeout_seconds:g} s)"
        call = self._watchdog.begin(
            self._timeout_seconds, functools.partial(self._retry, seat, attempt, timed_out)
        )
        made: list[Environment] = []
        try:
            if old is not None:
                self.retired.remove(old)
                close(old)
            seat.starts += 1
            made.append(self._make(seat))
            self._check(made[0].spec)
            observation = made[0].reset()
            check_first(made[0].spec, observation)
        except BaseException:
            # Whatever user code raises, SystemExit included, is a failure of this environment.
            reason = traceback.format_exc()
            self._watchdog.end(call)
            for environment in made:
                close(environment)
            self._retry(seat, attempt, reason)
            return
        try:
            self._watchdog.end(call)
        except Abandoned:
            close(made[0])
            raise
        seat.born = time.monotonic()
        seat.arrived = (made[0], observation)
        self._arrived()

    def _retry(self, seat: Seat, attempt: int, reason: str) -> None:
        if attempt >= self._attempts:
            self._failed(
                f"{seat.name} could not be started, {attempt} times in a row; the last time:\n"
                f"{reason}"
            )
            return
        delay = seat.backoff.next()
        _log.warning("%s failed to start, next try in %.1f s: %s", seat.name, delay, reason)
        self._spawn(seat, attempt + 1, delay, None)

    def _check(self, spec: EnvironmentSpec) -> None:
        if self.spec is None:
            self.spec = spec
        elif spec != self.spec:
            raise ValueError(
                f"the environment's spec is {spec}, that of the first one is {self.spec}; all"
                " environments of an actor must be alike"
            )


def close(environment: Environment) -> None:
    """Closes an environment that may be broken."""
    with contextlib.suppress(BaseException):  # nobody needs it any more: nothing to learn
        environment.close()


def close_all(environments: Iterable[Environment], total_seconds: float, seconds: float) -> None:
    """Closes environments one after the other, but waits for none for long.

    Args:
      environments: None of them is in a call.
      total_seconds: For all of them.
      seconds: For each.
    """
    deadline = time.monotonic() + total_seconds
    for environment in environments:
        left = deadline - time.monotonic()
        if left <= 0:
            _log.warning("not all environments could be closed within %g s", total_seconds)
            return
        # A thread for each: one that hangs is left behind, and goes with the process.
        thread = threading.Thread(target=close, args=(environment,), daemon=True)
        thread.start()
        thread.join(min(seconds, left))
