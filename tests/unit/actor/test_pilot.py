"""A pilot whose thread was given up."""

import asyncio
import dataclasses
from typing import Any, cast

import pytest

from services.actor import pilot
from services.actor.groups import Group
from services.actor.learner_client import LearnerClient
from services.actor.pilot import Pilot
from services.actor.watchdog import Abandoned


@dataclasses.dataclass
class _Group:
    index: int
    lease: object = None
    request: object = None

    def begin(self, lease: object) -> None:
        self.lease = lease

    def step(self) -> bool:
        if self.index == 1:
            raise Abandoned
        self.request = object()
        return True


class _Client:
    def __init__(self) -> None:
        self.happened: list[str] = []

    async def lease(self) -> str:
        return "lease"

    async def exchange(self, lease: object, group: int, request: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.happened.append("cancelled")
            raise

    async def close(self) -> None:
        self.happened.append("closed")


def test_an_abandoned_pilot_ends_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pilot, "_ABANDONED_DRAIN_SECONDS", 0.01)
    client, ends = _Client(), list[Any]()
    groups = [cast(Group, _Group(index)) for index in range(2)]
    abandoned = Pilot(lambda: cast(LearnerClient, client), groups, ends.append)
    abandoned._thread.join(10)
    assert abandoned.stop(0)
    # Closing cancels the streams, and a task that is left would call that a lost connection.
    assert client.happened == ["cancelled", "closed"]
    assert ends == []
    assert capfd.readouterr().err == ""
