"""Several learners that train one network: a killed one comes back, and the run ends well."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess

from tests.e2e import runs

_FRAMES = 12_000


def _start(directory: pathlib.Path, frames: int) -> subprocess.Popen[str]:
    return runs.start(
        directory,
        "cartpole-r2d2",
        *("--set=local.learners=2", "--set=local.actors=2", "--set=local.replay_shards=2"),
        *("--set=local.evaluation_environments=0", "--set=actor.groups=1"),
        *("--set=learner.batch_size=8", "--set=replay.tables.sequences.min_size_to_sample=20"),
        "--set=learner.checkpoint_interval_seconds=0.5",
        f"--frames={frames}",
    )


def _kill_the_second(process: subprocess.Popen[str]) -> None:
    learners = runs.descendants(process.pid, "services.learner")
    (other,) = (x for x in learners if "--set=learner.metrics_port=0" in x.cmdline())
    other.send_signal(signal.SIGKILL)


def test_a_killed_learner_comes_back_and_the_run_ends_well(tmp_path: pathlib.Path) -> None:
    # Four times what is made until the kill: time for both to come back.
    process = _start(tmp_path, _FRAMES)
    folder = runs.folder(tmp_path)
    actors = [folder / f"actor-{number}.log" for number in (0, 1)]
    saved = runs.wait_for(lambda: runs.counters(folder), "a checkpoint")
    _wait_until_joined(actors, times=1)
    _kill_the_second(process)
    # Each has an actor before and after, and both replay shards.
    _wait_until_joined(actors, times=2)
    summary = runs.finish(process)

    assert summary["failure"] is None
    logs = [(folder / f"{name}.log").read_text() for name in ("learner", "learner-1")]
    assert "another learner has gone" in logs[0]
    # Both go on from the same checkpoint, which the second one has from the first.
    (first,), (second,) = (re.findall(r"resumed from .* at (\d+) frames", log) for log in logs)
    assert saved["frames"] <= int(first) == int(second) < _FRAMES
    assert "resumed from the first learner" in logs[1]
    # Frames, updates and steps are those of both.
    counters = runs.counters(folder)
    assert counters["frames"] == counters["steps"] == summary["frames"] >= _FRAMES
    assert runs.processes(tmp_path) == {}


def test_a_learner_that_is_killed_before_there_is_a_network_comes_back_too(
    tmp_path: pathlib.Path,
) -> None:
    process = _start(tmp_path, 2_000)
    folder = runs.folder(tmp_path)
    log = folder / "learner-1.log"
    # From here on both wait for each other: first for an actor of each, then for their weights.
    runs.wait_for(lambda: log.exists() and "one of 2 learners" in log.read_text(), "both to meet")
    _kill_the_second(process)
    summary = runs.finish(process)

    assert summary["failure"] is None
    assert summary["frames"] >= 2_000
    # No actor has waited in vain in one learner's Join for what the other one lacked.
    logs = [(folder / f"actor-{number}.log").read_text() for number in (0, 1)]
    assert "leased 8 slots" in "".join(logs)
    assert "DEADLINE_EXCEEDED" not in "".join(logs)
    assert runs.processes(tmp_path) == {}


def _wait_until_joined(actors: list[pathlib.Path], times: int) -> None:
    """Waits until each of these logs tells so many leases."""
    runs.wait_for(
        lambda: min(log.read_text().count("leased 8 slots") for log in actors) >= times,
        f"all actors to join a learner, {times} times in all",
    )
