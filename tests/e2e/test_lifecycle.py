"""How runs end: by `--frames` and by an early Ctrl-C."""

from __future__ import annotations

import json
import pathlib
import urllib.request
from typing import Any

import pytest

from services.local import cli
from services.local.report import charts
from services.local.report.run import read
from tests.e2e import runs

# One update takes 4 unrolls of 16 steps.
BATCH_FRAMES = 64
SHARED_MEMORY = pathlib.Path("/dev/shm")
ENDLESS = "--frames=100000000"


def check_summary(summary: dict[str, Any], frames: int) -> None:
    assert frames <= summary["frames"] < frames + BATCH_FRAMES
    assert summary["frames_per_second"] > 0
    assert 8 < summary["mean_return"] < 500
    cpu = dict(summary["cpu_seconds_per_1000_frames"])
    total = cpu.pop("total")
    assert total == pytest.approx(sum(cpu.values()), abs=1e-3)
    parts = {"environment", "actor", "front_ends", "inference", "training"}
    assert parts <= cpu.keys()
    assert all(cpu[part] > 0 for part in parts)
    checkpoint = pathlib.Path(summary["checkpoint"])
    assert (checkpoint / "meta.json").exists()
    assert checkpoint.parent.parent == pathlib.Path(summary["run"])


def check_pages(directory: pathlib.Path) -> None:
    """Each run has a page of its own."""
    for run in directory.iterdir():
        address = (run / "page.address").read_text()
        with urllib.request.urlopen(f"{address}page.json", timeout=30) as answer:
            page = json.load(answer)
        assert page["title"] == f"seedpod: {run.name}"
        assert page["blocks"][0]["values"][0][0] == "time"


def check_report(summary: dict[str, Any], output: pathlib.Path) -> None:
    """The report is made of what TensorBoard shows too."""
    folder = pathlib.Path(summary["run"])
    assert cli.main(["report", str(folder), f"--output={output}"]) == 0
    run = read(folder, folder.name)
    assert run.summary() == summary
    assert run.history.frames == summary["frames"]
    scalars = runs.all_scalars(summary["run"])
    assert set(run.history.tags) == set(scalars)
    for tag, values in scalars.items():
        assert run.history.series(tag).values.tolist() == values, tag
    assert scalars["episode/mean_return"][-1] == pytest.approx(summary["mean_return"], abs=1e-3)
    # CPU seconds and the bottleneck are recorded together, in all parts.
    (cpu,) = run.history.parts("cpu_seconds/")
    assert set(cpu) == set(charts.PARTS)
    assert cpu["environment"].values[-1] > 0
    (bottleneck,) = run.history.parts("bottleneck/")
    assert set(bottleneck) == set(charts.LIMITS)
    assert {sum(row) for row in zip(*(s.values for s in bottleneck.values()), strict=True)} == {1}
    text = output.read_text()
    assert f'"{folder.name}"' in text
    assert '"finished"' in text


def test_two_runs_at_once_end_after_their_frames_and_leave_nothing(tmp_path: pathlib.Path) -> None:
    shared_memory = set(SHARED_MEMORY.iterdir())
    # Started in the same second, with the same folder for their runs.
    processes = [runs.start(tmp_path, "cartpole", f"--frames={n}") for n in (2000, 3000)]
    runs.wait_for(lambda: len(runs.processes(tmp_path)) == 2 * 5, "all processes of both runs")
    check_pages(tmp_path)
    first, second = (runs.finish(process) for process in processes)
    check_summary(first, 2000)
    check_summary(second, 3000)
    assert first["run"] != second["run"]
    for summary in (first, second):
        counters = runs.counters(summary["run"])
        # Without pauses between episodes a transition is a frame.
        assert counters["frames"] == counters["steps"] == summary["frames"]
        assert counters["updates"] >= counters["frames"] // BATCH_FRAMES
        log = (pathlib.Path(summary["run"]) / "actor-0.log").read_text()
        assert log.count("leased 16 slots") == 1
        assert "lost the learner" not in log
    assert runs.processes(tmp_path) == {}
    # Other tests may run beside this one; theirs come and go.
    runs.wait_for(lambda: set(SHARED_MEMORY.iterdir()) <= shared_memory, "no shared memory is left")
    assert not list(tmp_path.glob("*/page.address"))
    check_report(first, tmp_path / "report.html")


def test_ctrl_c_before_training_began(tmp_path: pathlib.Path) -> None:
    process = runs.start(tmp_path, "cartpole", ENDLESS)
    runs.wait_for(lambda: runs.descendants(process.pid, "services.learner"), "the learner")
    assert runs.interrupt(process, group=True) < 20
    summary = runs.finish(process)
    assert summary["frames"] == 0
    assert runs.counters(summary["run"]) == {}
    assert runs.processes(tmp_path) == {}
    # There is nothing to go on with, so it begins; and a resumed run needs no checkpoint to do so.
    assert runs.train(tmp_path, "cartpole", "--resume", "--frames=100")["frames"] >= 100
