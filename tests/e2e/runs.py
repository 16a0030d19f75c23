"""Starts real runs with the `seedpod` command and reads what they leave behind."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import psutil
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from services.shared import rpc
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc

SEEDPOD = [sys.executable, "-m", "services.local.cli"]
# In the environment of every process of a run, whoever its parent is: what started it.
_MARK = "SEEDPOD_TEST_RUNS"


def start(runs: pathlib.Path, experiment: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts `seedpod train`; its runs are kept in `runs`."""
    return _start(runs, "train", f"--experiment={experiment}", f"--runs={runs}", *arguments)


def start_evaluation(runs: pathlib.Path, checkpoint: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts `seedpod eval`; for `processes` it counts as one of `runs`."""
    return _start(runs, "eval", f"--checkpoint={checkpoint}", *arguments)


def _start(runs: pathlib.Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*SEEDPOD, *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, _MARK: str(runs)},
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


def fail(process: subprocess.Popen[str], timeout: float = 300) -> str:
    """Waits for the end with status 1 and returns stderr."""
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, errors = process.communicate(timeout=60)
        raise AssertionError(f"not failed within {timeout} s:\n{errors}\n{logs(errors)}") from None
    assert process.returncode == 1, f"{output}\n{errors}\n{logs(errors)}"
    return errors


def train(
    runs: pathlib.Path, experiment: str, *arguments: str, timeout: float = 300
) -> dict[str, Any]:
    """Runs `seedpod train` to its end and returns the summary."""
    return finish(start(runs, experiment, *arguments), timeout)


def evaluate(checkpoint: str, *arguments: str, timeout: float = 300) -> dict[str, Any]:
    """Runs `seedpod eval` and returns its summary."""
    command = [*SEEDPOD, "eval", f"--checkpoint={checkpoint}", *arguments]
    output = subprocess.run(command, check=True, timeout=timeout, capture_output=True, text=True)
    summary: dict[str, Any] = json.loads(output.stdout.splitlines()[-1])
    return summary


def interrupt(process: subprocess.Popen[str], group: bool) -> float:
    """Sends Ctrl-C, as a terminal does to the whole group; returns the seconds until the end."""
    started = time.monotonic()
    (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    return time.monotonic() - started


def logs(errors: str) -> str:
    """The service logs of the run that a launcher's stderr names."""
    for line in errors.splitlines():
        if line.startswith("run: "):
            folder = pathlib.Path(line.split()[1])
            return "\n".join(f"{p}:\n{p.read_text()[-3000:]}" for p in folder.glob("*.log"))
    return ""


def scalars(run: str, name: str) -> list[float]:
    """All values of a TensorBoard scalar."""
    return all_scalars(run)[name]


def all_scalars(run: str) -> dict[str, list[float]]:
    """All values of all TensorBoard scalars."""
    # TensorFlow 2 writes scalars as tensors of one element; 0: keep all of them.
    accumulator = EventAccumulator(str(pathlib.Path(run) / "tensorboard"), {"tensors": 0})
    accumulator.Reload()
    return {
        name: [float(make_ndarray(e.tensor_proto)) for e in accumulator.Tensors(name)]
        for name in accumulator.Tags()["tensors"]
        if accumulator.SummaryMetadata(name).plugin_data.plugin_name == "scalars"
    }


def wait_for(condition: Callable[[], Any], what: str, timeout: float = 120) -> Any:
    """Waits until the condition is true and returns its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.1)
    return value


def descendants(pid: int, word: str) -> list[psutil.Process]:
    """Processes below `pid` whose command line has an argument `word`.

    One that has just been forked still has its parent's command line; it does not count.
    """
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            line = process.cmdline()
            if word in line and line != psutil.Process(process.ppid()).cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def processes(runs: pathlib.Path) -> dict[int, str]:
    """Command lines of all live processes of the runs in `runs`, by number."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == str(runs) and process.status() != "zombie":
                found[process.pid] = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def folder(runs: pathlib.Path) -> pathlib.Path:
    """The only run in `runs`, once it is there."""
    found: list[pathlib.Path] = wait_for(lambda: list(runs.glob("*/experiment.yaml")), "the run")
    return found[0].parent


def counters(run: str | pathlib.Path) -> dict[str, int]:
    """What the newest checkpoint has counted; empty without one."""
    paths = sorted(pathlib.Path(run).glob("checkpoints/checkpoint-*/meta.json"))
    return dict(json.loads(paths[-1].read_text())["counters"]) if paths else {}


def status(process: subprocess.Popen[str]) -> inference_pb2.GetStatusResponse:
    """Waits until the run's learner answers and returns its status."""
    prefix = "--set=learner.address="

    def ask() -> inference_pb2.GetStatusResponse | None:
        assert process.poll() is None, f"ended:\n{process.communicate()}"
        try:
            learner = descendants(process.pid, "services.learner")[0]
            (address,) = (a for a in learner.cmdline() if a.startswith(prefix))
        except (IndexError, ValueError, psutil.NoSuchProcess):  # not started, or just ended
            return None
        with rpc.channel(address.removeprefix(prefix)) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            try:
                answer: inference_pb2.GetStatusResponse = stub.GetStatus(
                    inference_pb2.GetStatusRequest(), timeout=2.0
                )
                return answer
            except grpc.RpcError:
                return None

    answer: inference_pb2.GetStatusResponse = wait_for(ask, "the learner to answer")
    return answer


def wait_for_frames(process: subprocess.Popen[str], frames: int) -> None:
    """Waits until the run has trained on more than so many frames."""
    wait_for(lambda: status(process).frames > frames, f"more than {frames} frames")


def scrape(run: pathlib.Path) -> dict[tuple[str, str], float]:
    """The learner's metrics: values by name and the values of the labels, joined."""
    pattern = re.compile(r"metrics on (http://\S+)")
    (url,) = wait_for(
        lambda: pattern.findall((run / "learner.log").read_text())[-1:], "the metrics' address"
    )
    return read_metrics(url)


def read_metrics(url: str) -> dict[tuple[str, str], float]:
    """The metrics that are served there: values by name and the values of the labels, joined."""
    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    return {
        (sample.name, "/".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
