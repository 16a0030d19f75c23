"""R2D2 as a whole: each of its processes is killed in turn, and the run goes on."""

from __future__ import annotations

import pathlib
import signal
import subprocess

import pytest

from tests.e2e import runs

ENDLESS = "--frames=100000000"


def wait_for_updates(process: subprocess.Popen[str], updates: int) -> int:
    """Waits for so many more; returns how many there are then."""
    goal = runs.status(process).updates + updates
    return int(
        runs.wait_for(
            lambda: (now := runs.status(process).updates) > goal and now, f"{updates} updates"
        )
    )


def kill(process: subprocess.Popen[str], module: str) -> None:
    """All that run the module: of workers the evaluator has one, too."""
    victims = runs.descendants(process.pid, module)
    assert victims
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
        victim.wait(10)


def test_each_process_is_killed_in_turn(tmp_path: pathlib.Path) -> None:
    process = runs.start(
        tmp_path,
        "memory-r2d2",
        ENDLESS,
        "--set=learner.checkpoint_interval_seconds=0.5",
        "--set=learner.lease_grace_seconds=1",
    )
    folder = runs.folder(tmp_path)
    wait_for_updates(process, 20)

    # Replay comes back empty: training waits for min_size_to_sample, inference goes on.
    kill(process, "services.replay")
    wait_for_updates(process, 20)
    assert "lost 127.0.0.1" in (folder / "learner.log").read_text()

    kill(process, "services.actor.worker")
    wait_for_updates(process, 20)

    before = runs.wait_for(lambda: runs.counters(folder), "a checkpoint")
    kill(process, "services.learner")
    after = before["updates"] + 20
    runs.wait_for(lambda: runs.status(process).updates > after, "training to go on")
    assert "resumed from" in (folder / "learner.log").read_text()

    metrics = runs.scrape(folder)
    sent = metrics["seedpod_sequences_sent_total", ""]
    acknowledged = metrics["seedpod_sequences_acknowledged_total", ""]
    # No more than two batches may be on their way.
    assert 0 <= sent - acknowledged <= 32
    assert metrics["seedpod_sequences_dropped_total", ""] == 0
    assert metrics["seedpod_replay_shards_away", ""] == 0

    assert runs.interrupt(process, group=False) < 25
    summary = runs.finish(process)
    assert summary["failure"] is None
    counters = runs.counters(folder)
    assert counters["updates"] == summary["updates"] >= after
    assert runs.processes(tmp_path) == {}


def test_updates_keep_the_ratio_and_a_checkpoint_is_evaluated(tmp_path: pathlib.Path) -> None:
    summary = runs.train(tmp_path, "memory-r2d2", "--frames=20000")
    # A sequence begins every 22 records, of which 21 are frames, and is sampled four times.
    most = 4 * summary["frames"] / 21
    assert most / 2 < summary["updates"] * 16 <= most
    cpu = summary["cpu_seconds_per_1000_frames"]
    assert cpu["replay"] > 0
    assert cpu["total"] == pytest.approx(sum(v for k, v in cpu.items() if k != "total"), abs=1e-3)
    evaluated = runs.evaluate(summary["checkpoint"], "--episodes=32", "--greedy")
    assert evaluated["episodes"] >= 32
    assert 0 <= evaluated["mean_return"] <= 1
