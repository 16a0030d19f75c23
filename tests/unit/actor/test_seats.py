"""Environments that never get anywhere, and how they are closed."""

import threading
import time

import numpy as np
import numpy.typing as npt
import pytest

from services.actor.environments.base import Environment, Observation, Transition
from services.actor.seats import Seat, Starter, close_all
from services.actor.watchdog import Watchdog
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec


class _Still(Environment):
    """Shows one number; closing takes `close_seconds`."""

    def __init__(self, shows: float = 0.0, close_seconds: float = 0.0) -> None:
        self._shows = shows
        self._close_seconds = close_seconds
        self.is_closed = False

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(
            (TensorSpec("number", DataType.FLOAT32, ()),), DiscreteActionSpec((2,))
        )

    def reset(self) -> Observation:
        return (np.full(1, self._shows, np.float32),)

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        raise NotImplementedError

    def close(self) -> None:
        time.sleep(self._close_seconds)
        self.is_closed = True


class _Starts:
    """A starter and what it reports."""

    def __init__(self, shows: float = 0.0) -> None:
        self.event = threading.Event()
        self.failed: list[str] = []
        self.starter = Starter(
            lambda seat: _Still(shows), Watchdog(), 60.0, 3, self.event.set, self._failed
        )

    def _failed(self, reason: str) -> None:
        self.failed.append(reason)
        self.event.set()

    def replace(self, seat: Seat, steps: int) -> None:
        """One environment after the other, each lost after so many steps."""
        self.event.clear()
        old, seat.arrived, seat.steps = seat.arrived, None, steps
        self.starter.replace(seat, old[0] if old else None, "RuntimeError: boom")
        assert self.event.wait(10)


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.shared.rpc.Backoff.next", lambda self: 0.01)


def test_environments_that_never_finish_a_step_end_the_actor() -> None:
    starts, seat = _Starts(), Seat("seat 5", 0, 0)
    starts.starter.start(seat)
    assert starts.event.wait(10)
    for steps in (0, 0, 1, 0, 0):
        starts.replace(seat, steps)
    assert starts.failed == []
    starts.replace(seat, 0)
    (reason,) = starts.failed
    assert "seat 5 was lost before it had finished a step, 3 times in a row" in reason
    assert "RuntimeError: boom" in reason
    assert len(starts.starter.retired) == 1  # nobody else closes it


def test_environments_that_fail_now_and_then_are_replaced_forever() -> None:
    starts, seat = _Starts(), Seat("seat", 0, 0)
    starts.starter.start(seat)
    assert starts.event.wait(10)
    for _ in range(10):
        starts.replace(seat, 1)
    assert starts.failed == []
    assert starts.starter.retired == []


def test_a_first_observation_that_is_wrong_is_a_failed_start() -> None:
    starts = _Starts(shows=np.nan)
    starts.starter.start(Seat("seat 5", 0, 0))
    assert starts.event.wait(10)
    (reason,) = starts.failed
    assert "seat 5 could not be started, 3 times in a row" in reason
    assert "'number' is nan" in reason


def test_closing_waits_for_none_for_long() -> None:
    hung, slow = _Still(close_seconds=60.0), _Still(close_seconds=0.05)
    began = time.monotonic()
    close_all([_Still(), hung, slow], 5.0, 0.3)
    assert 0.3 < time.monotonic() - began < 2
    assert slow.is_closed
    began = time.monotonic()
    close_all([_Still(close_seconds=60.0) for _ in range(50)], 0.5, 0.2)
    assert time.monotonic() - began < 2
