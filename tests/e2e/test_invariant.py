"""Frozen parameters: training must reproduce what inference recorded, record by record."""

from __future__ import annotations

import pathlib
import signal

import pytest

from tests.e2e import runs

FROZEN = ("--set=learner.optimizer.learning_rate=0", "--set=learner.checkpoint_interval_seconds=1")


# Runs of 7 and 6 records cut the 22 steps of the memory task's episodes everywhere.
VTRACE = ("memory", "--set=learner.unroll_length=7")
IMPALA = (*VTRACE, "--set=learner.inference=actors")
R2D2 = (
    "memory-r2d2",
    "--set=learner.unroll_length=7",
    "--set=learner.r2d2.burn_in=5",
    "--set=learner.r2d2.replay_period=6",
)


@pytest.mark.parametrize("experiment", [VTRACE, IMPALA, R2D2])
def test_training_reproduces_inference_across_episode_ends_and_a_restart(
    experiment: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    process = runs.start(tmp_path, *experiment, "--frames=60000", *FROZEN)
    folder = runs.folder(tmp_path)
    checkpoints = folder / "checkpoints"
    runs.wait_for(lambda: list(checkpoints.glob("checkpoint-*")), "training to begin")
    # R2D2's evaluator has one, too.
    for worker in runs.descendants(process.pid, "services.actor.worker"):
        worker.send_signal(signal.SIGKILL)
    summary = runs.finish(process)
    assert summary["frames"] >= 60000
    log = (folder / "actor-0.log").read_text()
    assert log.count("leased 16 slots") == 2, log
    # The largest difference of any logit, or Q-value, of any record of the run.
    difference = runs.scalars(summary["run"], "training/behaviour_difference_max")[-1]
    assert 0 <= difference < 1e-4
    # It is not 0 for want of comparison: what is compared is not 0 itself.
    name = "training/q" if experiment is R2D2 else "training/entropy"
    assert abs(runs.scalars(summary["run"], name)[-1]) > 1e-2
