"""Ctrl-C writes a checkpoint, and `--resume` goes on from there."""

from __future__ import annotations

import pathlib
import subprocess
from typing import Any

from tests.e2e import runs

# One update takes 4 unrolls of 16 steps.
BATCH_FRAMES = 64
ENDLESS = "--frames=100000000"


def check_ended(
    process: subprocess.Popen[str], tmp_path: pathlib.Path, at_least: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """What an interrupted run left behind."""
    summary = runs.finish(process)
    counters = runs.counters(summary["run"])
    assert counters["frames"] == summary["frames"] > at_least
    assert counters["updates"] == summary["updates"]
    assert summary["failure"] is None
    assert runs.processes(tmp_path) == {}
    return summary, counters


def test_ctrl_c_and_resume(tmp_path: pathlib.Path) -> None:
    process = runs.start(tmp_path, "cartpole", ENDLESS)
    runs.wait_for_frames(process, 500)
    assert runs.interrupt(process, group=False) < 20
    summary, before = check_ended(process, tmp_path, 500)

    # The newest run, by the experiment's name; then Ctrl-C as a terminal sends it.
    process = runs.start(tmp_path, "cartpole", ENDLESS, "--resume")
    runs.wait_for_frames(process, before["frames"] + 500)
    assert runs.interrupt(process, group=True) < 20
    resumed, after = check_ended(process, tmp_path, before["frames"] + 500)
    assert resumed["run"] == summary["run"]
    # Each update is 64 steps at most, and none is lost or made twice.
    for counters in (before, after):
        assert counters["updates"] * BATCH_FRAMES * 0.8 < counters["steps"]
        assert counters["steps"] <= counters["updates"] * BATCH_FRAMES
    assert after["episodes"] > before["episodes"]
    log = pathlib.Path(summary["run"], "learner.log").read_text()
    assert f"checkpoint-{before['updates']:012d} at {before['frames']} frames" in log

    # That folder, to an end this time.
    frames = after["frames"] + 300
    last = runs.train(tmp_path, "cartpole", f"--resume={summary['run']}", f"--frames={frames}")
    assert frames <= last["frames"] < frames + BATCH_FRAMES
    assert last["updates"] >= after["updates"] + 300 // BATCH_FRAMES

    # A run that is finished ends at once; nothing is trained.
    final = runs.train(tmp_path, "cartpole", f"--resume={summary['run']}", f"--frames={frames}")
    assert [final[k] for k in ("frames", "updates", "episodes", "checkpoint")] == [
        last[k] for k in ("frames", "updates", "episodes", "checkpoint")
    ]
    assert runs.processes(tmp_path) == {}

    # Another run begins with its network, and counts from 0.
    beginning = f"--set=learner.initial_checkpoint={last['checkpoint']}"
    other = runs.train(tmp_path, "cartpole", beginning, "--frames=200")
    assert other["run"] != last["run"]
    assert other["frames"] < 200 + BATCH_FRAMES
    log = pathlib.Path(other["run"], "learner.log").read_text()
    assert f"the network begins as that of {last['checkpoint']}" in log
