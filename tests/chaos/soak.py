"""`python -m tests.chaos.soak`: short episodes and changing actors, and nothing that grows.

Prints a line for each process and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time

import numpy as np
import numpy.typing as npt
import psutil

from tests.chaos.system import System
from tests.e2e import runs

_WARM_UP_SHARE = 0.3
_LOOK_SECONDS = 2.0
_CHANGE_SECONDS = 20.0
# Of its size, in an hour.
_MOST_SLOPE = 0.01
# A few pages are no growth, however short the time.
_MOST_NOISE_BYTES = 64 << 10


@dataclasses.dataclass
class Series:
    """What was seen of one process: a row (time, resident bytes, threads, descriptors) a look."""

    name: str
    rows: list[tuple[float, int, int, int]] = dataclasses.field(default_factory=list)

    def covers(self, seconds: float) -> bool:
        """Whether it was there from the warm-up to the end."""
        return self.rows[0][0] < seconds * _WARM_UP_SHARE and self.rows[-1][0] > seconds * 0.9

    def judge(self, seconds: float) -> dict[str, float | str | bool]:
        """Slope of the memory, and growth of threads and descriptors, after the warm-up."""
        array = np.array(self.rows, np.float64)
        array = array[array[:, 0] >= seconds * _WARM_UP_SHARE]
        hours, size = array[:, 0] / 3600, array[:, 1]
        slope = _slope(hours, size)
        half = len(array) // 2
        growth = float(size[half:].mean() - size[:half].mean())
        flat = {
            name: bool(array[half:, column].max() <= array[:half, column].max())
            for name, column in (("threads", 2), ("descriptors", 3))
        }
        share = slope / float(size.mean())
        return {
            "process": self.name,
            "mebibytes": round(float(size.mean()) / (1 << 20), 1),
            "slope_per_hour": round(share, 4),
            "growth_kibibytes": round(growth / 1024),
            "threads": int(array[-1, 2]),
            "descriptors": int(array[-1, 3]),
            "flat": all(flat.values()) and (share < _MOST_SLOPE or growth < _MOST_NOISE_BYTES),
        }


def _slope(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """The median slope of all pairs of points; Sen 1968, doi:10.1080/01621459.1968.10480934.

    The kernel gives out memory by 2 MiB too. One such step is no growth, and least squares would
    make 1.5 % an hour of it; a leak, which goes on, has the same slope in both.
    """
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def main() -> int:
    """Runs the soak; returns 1 if something grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    seconds = parser.parse_args().seconds
    folder = pathlib.Path(tempfile.mkdtemp(prefix="seedpod-soak-"))
    system = System(folder, grace_seconds=5.0, checkpoint_interval_seconds=10.0)
    try:
        system.start(actors=2)
        series = _watch(system, seconds)
        warnings = system.processes["learner"].text().count("retracing")
        books = system.books(summary := system.end())
        left = system.leftovers()
    finally:
        system.kill()
    # Those that come and go meanwhile have no time to grow.
    judged = [s.judge(seconds) for s in series if s.covers(seconds)]
    for row in judged:
        print(row)
    good = all(row["flat"] for row in judged) and not (warnings or books.wrong or left)
    result = {
        "seconds": seconds,
        "frames": summary["frames"],
        "frames_counted_wrong": books.wrong,
        "retraces": warnings,
        "leftovers": left,
        "processes": judged,
        "flat": good,
    }
    print(json.dumps(result))
    if good:
        shutil.rmtree(folder)
    return int(not good)


def _watch(system: System, seconds: float) -> list[Series]:
    """Looks at all processes while the newest actor comes and goes."""
    series: dict[int, Series] = {}
    began = time.monotonic()
    change_at, actors = _CHANGE_SECONDS, 2
    while (now := time.monotonic() - began) < seconds:
        for pid, command in runs.processes(system.folder).items():
            name = command.split(" -m ")[-1].split()[0]
            one = series.setdefault(pid, Series(name))
            try:
                process = psutil.Process(pid)
                one.rows.append(
                    (now, process.memory_info().rss, process.num_threads(), process.num_fds())
                )
            except psutil.NoSuchProcess:
                continue
        if now >= change_at:
            change_at += _CHANGE_SECONDS
            actors = 3 - actors  # one or two
            system.scale(actors)
        system.sleep(_LOOK_SECONDS)
    return [one for one in series.values() if one.rows]


if __name__ == "__main__":
    sys.exit(main())
