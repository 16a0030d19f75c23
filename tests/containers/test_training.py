"""The containers train together, survive kills and scaling, and end well."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

from tests.containers import docker

Make = Callable[[str], docker.System]

# Kills every process of a container but its first and the caller.
KILL_ALL = "import os, signal; os.kill(-1, signal.SIGKILL)"
# TensorFlow's heading of what it logs early, be it only that it uses oneDNN, is none.
PROBLEM = re.compile(
    r"^(?!WARNING: All log messages before absl).*(?:ERROR|WARNING|Traceback).*$", re.MULTILINE
)


def problems(container: docker.Container) -> list[str]:
    return PROBLEM.findall(container.logs())


def summary(learner: docker.Container) -> dict[str, Any]:
    """The line that a learner ends with."""
    lines = [line for line in learner.logs().splitlines() if line.startswith("{")]
    document: dict[str, Any] = json.loads(lines[-1])
    return document


def test_football(system: Make) -> None:
    football = system("football")
    volume = football.volume()
    # The actor comes first: whoever is early waits.
    actor = football.actor()
    learner = football.learner(volume=volume)
    # One worker, since it may use one core: two groups of four.
    docker.wait_for_slots(learner, 8)
    trained = docker.wait_for_status(learner, "updates", 0)
    assert docker.wait_for_status(learner, "frames", trained.frames).updates > 0

    # What is killed in the actor is started again; its first process takes the dead off the list.
    actor.exec(KILL_ALL)
    docker.wait_for_slots(learner, 8)
    before = docker.wait_for_status(learner, "frames", trained.frames).frames
    docker.wait_for_status(learner, "frames", before)
    assert not [process for process in actor.processes() if process.split()[1].startswith("Z")]
    assert "ended with signal 9; another one starts" in actor.logs()

    assert actor.stop() == 0
    assert "ended: SIGTERM" in actor.logs()
    assert learner.stop() == 0
    end = summary(learner)
    assert end["failure"] is None
    assert end["checkpoint"] == f"/var/lib/seedpod/checkpoints/checkpoint-{end['updates']:012d}"
    assert problems(learner) == []
    assert not learner.state()["OOMKilled"]
    assert not actor.state()["OOMKilled"]


def test_memory_with_replay_over_tls(system: Make, tmp_path: pathlib.Path) -> None:
    memory = system("memory-r2d2")
    memory.use_tls(tmp_path)
    learner = memory.learner("learner.r2d2.replay_addresses=[replay:50052]")
    actor = memory.actor()
    replay = memory.replay()
    first = docker.wait_for_status(learner, "updates", 0)
    docker.wait_for_status(learner, "updates", first.updates + 20)
    stranger = dataclasses.replace(learner, tls=None)
    assert stranger.status() is None
    assert learner.status() is not None
    assert [service.stop() for service in (learner, actor, replay)] == [0, 0, 0]
    end = summary(learner)
    assert end["updates"] > first.updates + 20
    assert end["failure"] is None
    assert problems(replay) == []


def test_a_killed_learner_resumes_and_actors_come_and_go(system: Make) -> None:
    cartpole = system("cartpole")
    volume = cartpole.volume()
    settings = (
        "learner.total_frames=1000000000",
        "learner.checkpoint_interval_seconds=1",
        "learner.lease_grace_seconds=2",
    )
    learner = cartpole.learner(*settings, volume=volume)
    first = cartpole.actor()
    saved = docker.wait_for_status(learner, "updates", 0)
    while not saved.checkpoint:
        saved = docker.wait_for_status(learner, "updates", saved.updates)
    learner.kill()
    assert learner.state()["ExitCode"] == 137

    # Another container under the same name in the network, as after a pod's replacement.
    learner = cartpole.learner(*settings, volume=volume)
    docker.wait_for_slots(learner, 16)
    resumed = re.search(r"resumed from \S+/checkpoint-(\d+) at (\d+) frames", learner.logs())
    assert resumed is not None, learner.logs()
    updates, frames = map(int, resumed.groups())
    assert updates >= int(saved.checkpoint.rpartition("-")[2])
    after = docker.wait_for_status(learner, "updates", updates)
    assert after.frames > frames
    assert first.state()["Running"]

    more = [cartpole.actor() for _ in range(3)]
    docker.wait_for_slots(learner, 64)
    grown = docker.wait_for_status(learner, "updates", after.updates)
    docker.wait_for_status(learner, "updates", grown.updates)
    assert [actor.stop() for actor in more] == [0, 0, 0]
    docker.wait_for_slots(learner, 16)
    alone = docker.wait_for_status(learner, "updates", grown.updates)
    docker.wait_for_status(learner, "updates", alone.updates)
    assert problems(learner) == []
    assert learner.stop() == 0
    assert summary(learner)["failure"] is None
    assert first.stop() == 0
