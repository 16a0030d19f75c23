"""The simulation beside real runs, and beside SEED RL's table: `make bench-plan`.

Each run of `seedpod train` gives its CPU times by part; with these alone the simulation says how
many frames/s the same processes make on this machine's cores. What others use of the cores
meanwhile is taken off them, which is right for little only: run it on a machine that is quiet. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import tempfile
from typing import Any

import psutil

from services.local.plan import calibration, planner
from services.shared import config
from services.shared.cores import usable_cores
from tests.benchmarks import paper_rows
from tests.e2e import runs

_LATENCY_SECONDS = 0.0001  # of loopback, with its wake-up

RUNS: dict[str, tuple[str, ...]] = {
    "cartpole": ("cartpole", "--frames=60000"),
    "football": ("football", "--frames=12000"),
    "2 ms, MLP": (
        "cartpole",
        "--frames=18000",
        "--set=actor.environment=tests.benchmarks.synthetic:Synthetic",
        "--set=actor.environment_arguments={cpu_milliseconds: 2}",
        "--set=actor.workers=2",
    ),
}


def compare(name: str) -> dict[str, Any]:
    """A real run, and its simulation."""
    experiment, *arguments = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        before, own = psutil.cpu_times(), os.times()
        summary = runs.train(pathlib.Path(folder), experiment, *arguments)
        after, now = psutil.cpu_times(), os.times()
        run = pathlib.Path(summary["run"])
        measured = calibration.of_run(run)
        settings = config.load(str(run / "experiment.yaml"))
    seconds = now.elapsed - own.elapsed
    used = sum(getattr(after, f) - getattr(before, f) for f in ("user", "nice", "system"))
    others = used - (now.children_user + now.children_system)
    others += own.children_user + own.children_system
    cores = usable_cores() - max(0.0, others) / seconds
    system = measured.system(
        settings,
        actors=settings.local.actors,
        workers=settings.actor.workers or usable_cores(),
        learner_cores=cores,
        front_ends=settings.learner.front_ends,
        latency_seconds=_LATENCY_SECONDS,
    )
    result = planner.simulate(measured.costs(settings), system)
    return {
        "run": name,
        "cores": cores,
        "real": summary["frames_per_second"],
        "simulated": result.frames_per_second,
        "ratio": result.frames_per_second / summary["frames_per_second"],
        "cpu_seconds_per_1000_frames": summary["cpu_seconds_per_1000_frames"],
    }


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parsed = parser.parse_args()
    print(f"{'run':32} {'cores':>5} {'frames/s':>10} {'simulated':>10} ratio")
    real = []
    for name in parsed.only:
        row = compare(name)
        real.append(row)
        print(
            f"{name:32} {row['cores']:5.2f} {row['real']:10,.0f} {row['simulated']:10,.0f}"
            f" {row['ratio']:5.2f}",
            flush=True,
        )
    paper = paper_rows.reproduce()
    for row in paper:
        note = "" if row["predicted"] else "  (calibrated on it)"
        print(
            f"{row['row']:32} {'':5} {row['paper']:10,.0f} {row['simulated']:10,.0f}"
            f" {row['ratio']:5.2f}{note}"
        )
    print(json.dumps({"runs": real, "paper": paper}))


if __name__ == "__main__":
    main()
