"""Starts real runs with the `seedpod` command and reads what they leave behind."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SEEDPOD = [sys.executable, "-m", "services.local.cli"]


def start(runs: pathlib.Path, experiment: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts `seedpod train`; its runs are kept in `runs`."""
    command = [*SEEDPOD, "train", f"--experiment={experiment}", f"--runs={runs}", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str], timeout: float = 300, status: int = 0) -> dict[str, Any]:
    """Waits for the end and returns the summary, the last line on stdout."""
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, errors = process.communicate(timeout=60)
        raise AssertionError(
            f"not finished within {timeout} s:\n{errors}\n{logs(errors)}"
        ) from None
    assert process.returncode == status, f"{output}\n{errors}\n{logs(errors)}"
    summary: dict[str, Any] = json.loads(output.splitlines()[-1])
    return summary


def train(
    runs: pathlib.Path, experiment: str, *arguments: str, timeout: float = 300
) -> dict[str, Any]:
    """Runs `seedpod train` to its end and returns the summary."""
    return finish(start(runs, experiment, *arguments), timeout)


def logs(errors: str) -> str:
    """The service logs of the run that a launcher's stderr names."""
    for line in errors.splitlines():
        if line.startswith("run: "):
            folder = pathlib.Path(line.split()[1])
            return "\n".join(f"{p}:\n{p.read_text()[-3000:]}" for p in folder.glob("*.log"))
    return ""


def scalars(run: str, name: str) -> list[float]:
    """All values of a TensorBoard scalar."""
    accumulator = EventAccumulator(str(pathlib.Path(run) / "tensorboard"), {"scalars": 0})
    accumulator.Reload()
    return [event.value for event in accumulator.Scalars(name)]


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 120) -> Any:
    """Waits until the condition is true and returns its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.1)
    return value


def descendants(pid: int, word: str) -> list[psutil.Process]:
    """Processes below `pid` whose command line has an argument `word`."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if word in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def folder(runs: pathlib.Path) -> pathlib.Path:
    """The only run in `runs`, once it is there."""
    found: list[pathlib.Path] = wait_for(lambda: list(runs.glob("*/experiment.yaml")), "the run")
    return found[0].parent
