"""Hung calls, heartbeats and what is said about waiting."""

import logging

import pytest

from services.actor import waiting
from services.actor.metrics import ActorMetrics
from services.actor.supervision import Heartbeat, Receiver
from services.actor.watchdog import Abandoned, Watchdog


def test_a_call_belongs_to_one_side_only() -> None:
    watchdog = Watchdog()
    expired: list[str] = []
    quick = watchdog.begin(60.0, lambda: expired.append("quick"))
    slow = watchdog.begin(-1.0, lambda: expired.append("slow"))
    in_time = watchdog.begin(-1.0, lambda: expired.append("in time"))
    watchdog.end(in_time)
    watchdog.check()
    watchdog.check()
    assert expired == ["slow"]
    watchdog.end(quick)
    with pytest.raises(Abandoned):
        watchdog.end(slow)


def test_heartbeats_arrive_in_pieces() -> None:
    receiver = Receiver()
    lines = b"".join(Heartbeat(steps=n).model_dump_json().encode() + b"\n" for n in (1, 2))
    assert receiver.feed(lines[:10]) is None
    newest = receiver.feed(lines[10:] + b'{"ste')
    assert newest == Heartbeat(steps=2)
    assert receiver.feed(b'ps": 3}\n') == Heartbeat(steps=3)


def test_counters_survive_a_restart() -> None:
    metrics = ActorMetrics(None, "127.0.0.1")
    for steps in (10, 25, 0, 5):
        metrics.update([Heartbeat(running=True, steps=steps, environments=4, absent=1)])
    assert metrics._counters["steps"]._value.get() == 30


def test_waiting_is_said_at_once_and_then_rarely(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    wait = waiting.Waiting()
    with caplog.at_level(logging.INFO):
        wait.over("nothing to say")
        for _ in range(100):
            wait.still("the learner is away")
            now += 1.0
        wait.over("back")
    assert [record.getMessage() for record in caplog.records] == [
        "the learner is away; trying again until it works",
        "waiting for 30 s now: the learner is away",
        "waiting for 60 s now: the learner is away",
        "waiting for 90 s now: the learner is away",
        "back after 100.0 s",
    ]
