"""What supervisor and worker tell each other."""

import contextlib
import datetime
import os
import threading
from typing import Any

import pytest

from services.actor.supervision import Heartbeat, Receiver, WorkerExit, WorkerSettings, send
from services.actor.worker import Worker
from services.shared.config import ActorConfig


def _settings(arguments: dict[str, Any]) -> WorkerSettings:
    return WorkerSettings(
        actor_name="actor",
        worker=0,
        launch=0,
        lease_token="",
        heartbeat_fd=-1,
        supervisor_pid=1,
        keepalive_seconds=5.0,
        config=ActorConfig(environment="CartPole-v1", environment_arguments=arguments),
    )


@pytest.mark.parametrize(
    "value",
    [
        float("inf"),
        1e-10,
        {1: "one", 2.5: [None, True]},
        datetime.date(2020, 1, 2),
        datetime.datetime(2020, 1, 2, 3, 4, tzinfo=datetime.UTC),
        {"a", "b"},
        b"\x00\xff",
        "line one\nline: two ' \" \u2028 \u00e9 \t",
        "2020-01-02",
        "1e5",
        "no",
    ],
)
def test_arguments_arrive_unchanged(value: Any) -> None:
    settings = _settings({"value": value})
    arrived = WorkerSettings.load(settings.dump())
    assert arrived == settings
    assert type(arrived.config.environment_arguments["value"]) is type(value)


def test_the_last_word_waits_for_room() -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    send(write_end, Heartbeat(steps=1))
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"\n" * 4096)
    send(write_end, Heartbeat(steps=2))  # left out
    drain = threading.Timer(0.2, os.read, (read_end, 1 << 20))
    drain.start()
    send(write_end, Heartbeat(end=WorkerExit.FINISHED), patience_seconds=10.0)
    drain.join()
    last = Receiver().feed(os.read(read_end, 1 << 20))
    assert last is not None
    assert last.end is WorkerExit.FINISHED
    os.close(read_end)
    os.close(write_end)


def test_a_signal_handler_takes_no_lock_of_the_thread_it_interrupts() -> None:
    worker = Worker(_settings({}))
    with worker._wake._cond:  # type: ignore[attr-defined] # where the main thread is when it begins and ends a wait
        handler = threading.Thread(target=worker.terminate, daemon=True)
        handler.start()
        handler.join(5)
        assert not handler.is_alive()
    assert worker._end == {"status": WorkerExit.TERMINATED}
