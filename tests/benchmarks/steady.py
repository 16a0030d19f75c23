"""What a training run costs while it runs evenly, for `bench_impala` and `bench_system`.

Starts, compilation, and the unrolls that are unfinished at a run's end are as dear as thousands of
frames: so what is measured lies between two updates in the middle of the run.
"""

from __future__ import annotations

import pathlib
import signal
import subprocess
import tempfile
import time
from typing import NamedTuple

from tests.e2e import runs

PARTS = (
    "environment",
    "actor",
    "front_ends",
    "inference",
    "training",
    "learner_other",
    "replay",
)
_BEFORE_TRAINING = ("environment", "actor", "front_ends", "inference")
_WARM_UP_UPDATES = 6  # much of what waited for the first one, which is slow, is used up then
_POLL_SECONDS = 0.2
_UPDATE_SECONDS = 240.0  # the first one's, with everything that has to start

_Look = tuple[float, dict[tuple[str, str], float]]


class Costs(NamedTuple):
    """Of the middle of a run.

    What comes before training is divided by the frames that arrived, the rest by those trained on.

    Attributes:
      frames: So many were trained on.
      received_share: Steps that arrived for each one trained on: 1, but for what waits.
      frames_per_second: That were trained on, of the wall clock.
      cpu: Seconds of 1,000 frames, by part and in `total`.
      received_bytes: Of a frame, at the learner.
      parameter_bytes: Of a frame, sent by the learner.
    """

    frames: int
    received_share: float
    frames_per_second: float
    cpu: dict[str, float]
    received_bytes: float
    parameter_bytes: float


def measure(experiment: str, *arguments: str, seconds: float) -> Costs:
    """Trains until it has seen whole updates for at least so long.

    Args:
      experiment: A preset's name or a file.
      *arguments: Of `seedpod train`.
      seconds: Of the wall clock.

    Raises:
      AssertionError: The run ended by itself, or an update took too long.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        process = runs.start(folder, experiment, "--set=local.page_port=null", *arguments)
        try:
            first = _wait_for_update(process, folder, _WARM_UP_UPDATES, 0.0)
            last = _wait_for_update(process, folder, 0, first[0] + seconds)
        finally:
            process.send_signal(signal.SIGINT)
            runs.finish(process)
    return _costs(first, last)


def _wait_for_update(
    process: subprocess.Popen[str], folder: pathlib.Path, updates: int, not_before: float
) -> _Look:
    """What the learner says when it has just made an update, then and not before."""
    before: float | None = None
    deadline = max(time.monotonic(), not_before) + _UPDATE_SECONDS
    while True:
        time.sleep(_POLL_SECONDS)
        if process.poll() is not None:
            runs.finish(process)
            raise AssertionError("the run has ended")
        assert time.monotonic() < deadline, f"no update within {_UPDATE_SECONDS:.0f} s"
        metrics = runs.scrape(runs.folder(folder))
        now, made = time.monotonic(), metrics["seedpod_updates_total", ""]
        if before is not None and made > max(before, updates - 1) and now >= not_before:
            return now, metrics
        before = made


def _costs(first: _Look, last: _Look) -> Costs:
    def passed(name: str, label: str = "") -> float:
        # A part that has used nothing yet has no sample.
        return last[1].get((name, label), 0.0) - first[1].get((name, label), 0.0)

    frames = passed("seedpod_environment_frames_total")
    share = passed("seedpod_steps_received_total") / passed("seedpod_steps_trained_total")
    cpu = {part: passed("seedpod_cpu_seconds_total", part) / frames * 1000 for part in PARTS}
    cpu |= {part: cpu[part] / share for part in _BEFORE_TRAINING}
    return Costs(
        frames=int(frames),
        received_share=share,
        frames_per_second=frames / (last[0] - first[0]),
        cpu={**cpu, "total": sum(cpu.values())},
        received_bytes=passed("seedpod_records_received_bytes_total") / frames / share,
        parameter_bytes=passed("seedpod_parameters_sent_bytes_total") / frames,
    )
