"""What a learner serves to Prometheus while it trains."""

from __future__ import annotations

import math
import pathlib
import re
import time

from services.learner.leases import LeaseTable
from services.local import launcher
from tests.e2e import runs

# Whoever has a lease's token can act in its place.
_TOKEN = re.compile(r"\b[0-9a-f]{32}\b")


def test_metrics_of_a_run(tmp_path: pathlib.Path) -> None:
    started = time.time()
    process = runs.start(tmp_path, "cartpole", "--frames=100000000")
    folder = runs.folder(tmp_path)
    runs.wait_for_frames(process, 2000)
    before = runs.status(process)
    values = runs.scrape(folder)
    after = runs.status(process)
    described = launcher.describe(folder)
    assert described["page"] == (folder / "page.address").read_text()
    process.terminate()
    summary = runs.finish(process)

    def value(name: str, labels: str = "") -> float:
        return values[f"seedpod_{name}", labels]

    for name, low, high in (
        ("environment_frames_total", before.frames, after.frames),
        ("updates_total", before.updates, after.updates),
        ("episodes_total", before.episodes, after.episodes),
        ("skipped_updates_total", 0, 0),
        ("frames_per_second", 1, 1e6),
        ("episode_return_mean", 1, 500),
        ("episode_length_mean", 1, 500),
        ("live_slots", 16, 16),
        ("leased_slots", 16, 16),
        ("streams", 2, 2),
        ("inference_batch_fill", 0.1, 1),
        # At most two unrolls of each slot and a batch of 4 wait, 36 unrolls, 9 updates.
        ("policy_lag", 0, 10),
        ("policy_lag_bound", 9, 9),
        ("actors", 1, 1),
        ("actors_wanted", 1, 1e3),
        ("checkpoint_timestamp_seconds", started, time.time()),
        ("held_groups", 0, 2),
        ("unrolls_waiting", 0, 16),
        ("steps_dropped_total", 0, 0),
        # At most two unrolls of 16 steps of each slot, and a batch that is not complete.
        ("steps_unfinished", 0, 2 * 16 * 16 + 64),
        ("checkpoint_failures_total", 0, 0),
        ("training_busy", 0.001, 1),
        ("inference_busy", 0.001, 1),
        ("front_end_rejected_total", 0, 0),
        ("training_behaviour_difference", 0, 1e3),
    ):
        assert low <= value(name) <= high, name
    # CartPole's reward is 1 for each step.
    assert value("episode_return_mean") == value("episode_length_mean")
    parts = ("environment", "inference", "training")
    assert sorted(value("bottleneck", part) for part in parts) == [0, 0, 1]
    # Each of 2 groups asks for 8 environments at a time.
    assert value("front_end_requests_total") * 8 >= value("environment_frames_total")
    assert value("front_end_request_bytes_total") > value("front_end_requests_total") * 8 * 4 * 4
    for name in ("inference_queue_wait", "inference", "training_step", "training_wait"):
        count, total = value(f"{name}_seconds_count"), value(f"{name}_seconds_sum")
        assert count >= value("updates_total"), name
        assert 0 < total / count < 5, name
        assert value(f"{name}_seconds_bucket", "+Inf") == count
    for part in ("environment", "actor", "front_ends", "inference", "training"):
        assert value("cpu_seconds_total", part) > 0, part
    assert all(map(math.isfinite, values.values()))
    assert summary["frames"] >= after.frames
    steps = summary["steps"]
    assert steps["trained"] == summary["frames"]
    assert steps["error"] == 0 <= steps["unfinished"]
    assert _TOKEN.fullmatch(LeaseTable(1, 1.0).join("actor", 1, 1, "").token)
    texts = {str(key): str(key) for key in values} | {
        str(path): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    }
    assert len(texts) > len(values) + 5
    assert not [name for name, text in texts.items() if _TOKEN.search(text)]
