"""Several learners that train one network: a killed one comes back, and the run ends well."""

from __future__ import annotations

import pathlib
import re
import signal

from tests.e2e import runs

_FRAMES = 12_000


def test_a_killed_learner_comes_back_and_the_run_ends_well(tmp_path: pathlib.Path) -> None:
    process = runs.start(
        tmp_path,
        "cartpole-r2d2",
        *("--set=local.learners=2", "--set=local.actors=2", "--set=local.replay_shards=2"),
        *("--set=local.evaluation_environments=0", "--set=actor.groups=1"),
        *("--set=learner.batch_size=8", "--set=replay.tables.sequences.min_size_to_sample=20"),
        "--set=learner.checkpoint_interval_seconds=0.5",
        # Four times what is made until the kill: time for both to come back.
        f"--frames={_FRAMES}",
    )
    folder = runs.folder(tmp_path)
    actors = [folder / f"actor-{number}.log" for number in (0, 1)]
    saved = runs.wait_for(lambda: runs.counters(folder), "a checkpoint")
    _wait_until_joined(actors, times=1)
    learners = runs.descendants(process.pid, "services.learner")
    (other,) = (x for x in learners if "--set=learner.metrics_port=0" in x.cmdline())
    other.send_signal(signal.SIGKILL)
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


def _wait_until_joined(actors: list[pathlib.Path], times: int) -> None:
    """Waits until each of these logs tells so many leases."""
    runs.wait_for(
        lambda: min(log.read_text().count("leased 8 slots") for log in actors) >= times,
        f"all actors to join a learner, {times} times in all",
    )
