"""Frozen parameters: training must reproduce what inference recorded, record by record."""

from __future__ import annotations

import pathlib
import signal

from tests.e2e import runs

FROZEN = ("--set=learner.optimizer.learning_rate=0", "--set=learner.checkpoint_interval_seconds=1")


def test_training_reproduces_inference_across_episode_ends_and_a_restart(
    tmp_path: pathlib.Path,
) -> None:
    # Unrolls of 7 records cut the 22 steps of the memory task's episodes everywhere.
    process = runs.start(
        tmp_path, "memory", "--frames=60000", "--set=learner.unroll_length=7", *FROZEN
    )
    folder = runs.folder(tmp_path)
    checkpoints = folder / "checkpoints"
    runs.wait_for(lambda: list(checkpoints.glob("checkpoint-*")), "training to begin")
    (worker,) = runs.descendants(process.pid, "services.actor.worker")
    worker.send_signal(signal.SIGKILL)
    summary = runs.finish(process)
    assert summary["frames"] >= 60000
    log = (folder / "actor-0.log").read_text()
    assert log.count("leased 16 slots") == 2, log
    # The largest difference of any logit of any record of the run.
    difference = runs.scalars(summary["run"], "training/behaviour_difference_max")[-1]
    assert 0 <= difference < 1e-4
    # It is not 0 for want of comparison: the logits themselves are not 0.
    assert runs.scalars(summary["run"], "training/entropy")[-1] > 0
