"""What is killed is restarted; what fails by itself ends the run and says why."""

from __future__ import annotations

import pathlib
import signal
import time

import pytest

from tests.e2e import runs

ENDLESS = "--frames=100000000"


def test_killed_services_are_restarted(tmp_path: pathlib.Path) -> None:
    process = runs.start(
        tmp_path,
        "cartpole",
        # Room for one actor only: what the killed one leased has to be freed.
        "--set=learner.max_slots=16",
        "--set=learner.lease_grace_seconds=1",
        "--set=learner.checkpoint_interval_seconds=0.5",
        "--frames=10000",
    )
    folder = runs.folder(tmp_path)
    runs.wait_for_frames(process, 200)
    (actor,) = runs.descendants(process.pid, "services.actor")
    workers = actor.children()
    actor.send_signal(signal.SIGKILL)
    runs.wait_for(lambda: not any(w.is_running() for w in workers), "its workers to end", 5)
    frames = runs.status(process).frames
    runs.wait_for_frames(process, frames + 500)
    actor_log, learner_log = folder / "actor-0.log", folder / "learner.log"
    assert actor_log.read_text().count("leased 16 slots") == 2

    saved = runs.wait_for(lambda: runs.counters(folder), "a checkpoint")
    (learner,) = runs.descendants(process.pid, "services.learner")
    learner.send_signal(signal.SIGKILL)
    summary = runs.finish(process)
    assert 10000 <= summary["frames"] < 10064
    # The actor is another's no more: it has joined the new learner.
    assert actor_log.read_text().count("leased 16 slots") == 3
    resumed_at = int(learner_log.read_text().split("resumed from")[1].split()[2])
    assert saved["frames"] <= resumed_at < 10000
    counters = runs.counters(folder)
    assert counters["frames"] == counters["steps"] == summary["frames"]
    # Each update takes 64 steps, of which few lead from an episode to the next.
    assert counters["updates"] * 64 * 0.8 < counters["steps"] <= counters["updates"] * 64
    assert runs.processes(tmp_path) == {}


def test_everything_dies_with_a_killed_launcher(tmp_path: pathlib.Path) -> None:
    process = runs.start(tmp_path, "cartpole", ENDLESS)
    runs.wait_for_frames(process, 0)
    # Launcher, learner, front end, actor, worker.
    assert len(runs.processes(tmp_path)) == 5
    started = time.monotonic()
    process.kill()
    process.communicate()
    runs.wait_for(lambda: not runs.processes(tmp_path), "all processes to end", 10)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("transformer", "network 'transformer' is unknown, allowed: ['football', "),
        ("tests.e2e.networks:NotFinished", "the attention layer is not written yet"),
        ("tests.e2e.networks:Overrun", "it leans too far"),
    ],
)
def test_a_network_that_fails_ends_the_run(
    network: str, message: str, tmp_path: pathlib.Path
) -> None:
    process = runs.start(tmp_path, "cartpole", ENDLESS, f"--set=learner.network.name={network}")
    assert message in runs.fail(process)
    assert runs.processes(tmp_path) == {}


def test_an_environment_that_cannot_start_ends_the_run(tmp_path: pathlib.Path) -> None:
    process = runs.start(
        tmp_path,
        "cartpole",
        "--set=actor.environment=tests.integration.actor_environments:unstartable",
    )
    errors = runs.fail(process)
    assert "RuntimeError: the simulator's licence has expired" in errors
    assert "the actor-0 ended with status 1" in errors
    assert runs.processes(tmp_path) == {}


def test_a_value_that_is_not_allowed_is_refused_before_anything_starts(
    tmp_path: pathlib.Path,
) -> None:
    errors = runs.fail(runs.start(tmp_path, "cartpole", "--set=learner.batch=3"), timeout=30)
    assert "learner.batch" in errors
    assert list(tmp_path.iterdir()) == []
