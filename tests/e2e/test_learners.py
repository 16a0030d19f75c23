"""Several learners that train one network: a killed one comes back, and the run ends well."""

from __future__ import annotations

import pathlib
import re
import signal

from tests.e2e import runs


def test_a_killed_learner_comes_back_and_the_run_ends_well(tmp_path: pathlib.Path) -> None:
    process = runs.start(
        tmp_path,
        "cartpole-r2d2",
        *("--set=local.learners=2", "--set=local.actors=2", "--set=local.replay_shards=2"),
        *("--set=local.evaluation_environments=0", "--set=actor.groups=1"),
        *("--set=learner.batch_size=8", "--set=replay.tables.sequences.min_size_to_sample=20"),
        "--set=learner.checkpoint_interval_seconds=0.5",
        "--frames=5000",
    )
    folder = runs.folder(tmp_path)
    saved = runs.wait_for(lambda: runs.counters(folder), "a checkpoint")
    learners = runs.descendants(process.pid, "services.learner")
    (other,) = (x for x in learners if "--set=learner.metrics_port=0" in x.cmdline())
    other.send_signal(signal.SIGKILL)
    summary = runs.finish(process)

    assert summary["failure"] is None
    logs = [(folder / f"{name}.log").read_text() for name in ("learner", "learner-1")]
    assert "another learner has gone" in logs[0]
    # Both go on from the same checkpoint, which the second one has from the first.
    (first,), (second,) = (re.findall(r"resumed from .* at (\d+) frames", log) for log in logs)
    assert saved["frames"] <= int(first) == int(second) < 5000
    assert "resumed from the first learner" in logs[1]
    # Frames, updates and steps are those of both.
    counters = runs.counters(folder)
    assert counters["frames"] == counters["steps"] == summary["frames"] >= 5000
    # Each has had an actor before and after, and both replay shards.
    for number in (0, 1):
        joined = (folder / f"actor-{number}.log").read_text().count("leased 8 slots")
        assert joined >= 2
    assert runs.processes(tmp_path) == {}
