"""Runs a whole system on this machine: one learner, actors, and a view of what they do.

`seedpod train` calls `train`. Every service is a process of its own and talks gRPC, as in a
cluster; only the addresses and the folders are chosen here. A run's folder holds the experiment
as it was run, checkpoints, TensorBoard events and a log file for each process.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import logging
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import grpc

from services.learner import checkpoint
from services.local import view
from services.shared import config, rpc
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc

_STOP_SECONDS = 30.0
_POLL_SECONDS = 1.0
_LOG_TAIL_LINES = 15
# A learner or an actor that died by a signal so often without a minute between is not restarted.
_MAX_DEATHS_IN_A_ROW = 5
_CALM_SECONDS = 60.0
_log = logging.getLogger(__name__)


class LaunchError(RuntimeError):
    """A run that cannot go on; the message says why and where to look."""


class Service:
    """A process that is restarted when a signal kills it."""

    def __init__(self, name: str, command: list[str], log_path: pathlib.Path) -> None:
        """Starts it.

        Args:
          name: For messages.
          command: Arguments after the Python interpreter.
          log_path: Where its stderr goes, appended; its stdout goes to the same name with
            `.out`, anew. Both are files: an environment that prints must not fill a pipe that
            nobody reads.
        """
        self.name = name
        self.log_path = log_path
        self._output_path = log_path.with_suffix(".out")
        self.restarts = 0
        self._command = [sys.executable, *command]
        self._backoff = rpc.Backoff(initial=0.5)
        self._deaths_in_a_row = 0
        self._restart_at: float | None = None
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started = time.monotonic()
        with self.log_path.open("a") as log, self._output_path.open("w") as output:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                # Ctrl-C in a terminal reaches the launcher alone, which ends the others in order.
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def check(self) -> bool:
        """Restarts the process if a signal killed it.

        Returns:
          Whether it has ended well.

        Raises:
          LaunchError: It ended with an error of its own, or dies again and again.
        """
        if self._restart_at is not None:
            if time.monotonic() >= self._restart_at:
                self._restart_at = None
                self._process = self._start()
            return False
        status = self._process.poll()
        if status is None or status == 0:
            return status == 0
        if status > 0:
            raise LaunchError(
                f"the {self.name} ended with status {status}; the end of {self.log_path}:\n"
                + self._log_tail()
            )
        if time.monotonic() - self._started > _CALM_SECONDS:
            self._deaths_in_a_row = 0
            self._backoff.reset()
        self._deaths_in_a_row += 1
        name = signal.Signals(-status).name
        if self._deaths_in_a_row > _MAX_DEATHS_IN_A_ROW:
            raise LaunchError(
                f"the {self.name} was killed by {name}, {self._deaths_in_a_row} times in a row"
            )
        self.restarts += 1
        wait = self._backoff.next()
        _log.warning("the %s was killed by %s; restarting it in %.1f s", self.name, name, wait)
        self._restart_at = time.monotonic() + wait
        return False

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines)

    def terminate(self) -> None:
        """Asks it to end."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_seconds: float) -> None:
        """Waits for its end, and kills it after the timeout."""
        try:
            self._process.wait(max(0.1, timeout_seconds))
        except subprocess.TimeoutExpired:
            _log.error("the %s did not end within %.0f s: killed", self.name, timeout_seconds)
            self._process.kill()
            self._process.wait()

    def last_line(self) -> str:
        """The last line that it wrote on stdout; empty if none."""
        lines = self._output_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""


def train(experiment: config.Experiment, run: pathlib.Path) -> dict[str, Any]:
    """Trains until all frames are taken or a signal comes.

    Args:
      experiment: What to run; addresses and folders are replaced by this run's.
      run: The run's folder; its checkpoints are resumed from.

    Returns:
      The learner's summary.

    Raises:
      LaunchError: A service failed.
    """
    print(f"run: {run} (logs, checkpoints, TensorBoard events)", file=sys.stderr)
    return _launch(experiment, run, view.TrainingView(experiment.learner.total_frames))


def _launch(
    experiment: config.Experiment,
    run: pathlib.Path,
    screen: view.View,
    learner_arguments: tuple[str, ...] = (),
) -> dict[str, Any]:
    run.mkdir(parents=True, exist_ok=True)
    with (run / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(f"{run}: another seedpod runs in this folder") from None
        return _launch_locked(experiment, run, screen, learner_arguments)


def _launch_locked(
    experiment: config.Experiment,
    run: pathlib.Path,
    screen: view.View,
    learner_arguments: tuple[str, ...],
) -> dict[str, Any]:
    document = run / "experiment.yaml"
    document.write_text(config.dump(place(experiment, run)))
    stop = threading.Event()
    previous = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        return _Run(document, experiment, run, stop, learner_arguments).run(screen)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Run:
    """The processes of one run."""

    def __init__(
        self,
        document: pathlib.Path,
        experiment: config.Experiment,
        run: pathlib.Path,
        stop: threading.Event,
        learner_arguments: tuple[str, ...],
    ) -> None:
        self._stop = stop
        self._address = f"127.0.0.1:{_free_port()}"
        self._actors: list[Service] = []
        self._actor_count = experiment.local.actors
        self._actor_metrics_port = experiment.actor.metrics_port
        self._document = document
        self._folder = run
        arguments = [
            f"--experiment={document}",
            f"--set=learner.address={self._address}",
            *learner_arguments,
        ]
        self._learner = Service(
            "learner", ["-m", "services.learner", "--child", *arguments], run / "learner.log"
        )

    def run(self, screen: view.View) -> dict[str, Any]:
        try:
            self._start_actors()
            with rpc.channel(self._address) as channel, screen:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                while not self._stop.is_set() and not self._learner.check():
                    for actor in self._actors:
                        actor.check()
                    screen.show(_status(stub), sum(actor.restarts for actor in self._actors))
                    self._stop.wait(_POLL_SECONDS)
        finally:
            summary = self._wind_down()
        return summary

    def _start_actors(self) -> None:
        for i in range(self._actor_count):
            command = [
                *("-m", "services.actor", "--child", f"--experiment={self._document}"),
                *(f"--set=actor.learner_address={self._address}", f"--name=actor-{i}"),
            ]
            if self._actor_metrics_port:
                command.append(f"--set=actor.metrics_port={self._actor_metrics_port + i}")
            self._actors.append(Service(f"actor-{i}", command, self._folder / f"actor-{i}.log"))

    def _wind_down(self) -> dict[str, Any]:
        deadline = time.monotonic() + _STOP_SECONDS
        self._learner.terminate()
        for actor in self._actors:
            actor.terminate()
        for service in (self._learner, *self._actors):
            service.wait(deadline - time.monotonic())
        summary: dict[str, Any] = json.loads(self._learner.last_line() or '{"frames": 0}')
        summary["run"] = str(self._folder)
        return summary


def evaluate(
    checkpoint_path: pathlib.Path, episodes: int, greedy: bool, overrides: list[str]
) -> dict[str, Any]:
    """Plays episodes with a checkpoint's policy.

    Args:
      checkpoint_path: A checkpoint's folder.
      episodes: At least so many.
      greedy: Take the most probable action instead of drawing one.
      overrides: Of the checkpoint's experiment.

    Returns:
      The learner's summary: returns and lengths.

    Raises:
      CheckpointError: It cannot be read.
      LaunchError: A service failed.
    """
    saved = checkpoint.read(checkpoint_path.resolve())
    with tempfile.TemporaryDirectory(prefix="seedpod-eval-") as folder:
        run = pathlib.Path(folder)
        (run / "checkpoints").mkdir()
        (run / "checkpoints" / saved.path.name).symlink_to(saved.path)
        document = run / "checkpoint.yaml"
        document.write_text(saved.experiment)
        experiment = config.load(str(document), overrides)
        arguments = [f"--evaluate={episodes}", *(["--greedy"] if greedy else [])]
        summary = _launch(experiment, run, view.EvaluationView(), tuple(arguments))
    return {**summary, "checkpoint": str(checkpoint_path), "run": None}


def place(experiment: config.Experiment, run: pathlib.Path) -> config.Experiment:
    """The experiment with its files in the run's folder."""
    learner = experiment.learner.model_copy(
        update={
            "checkpoint_directory": str(run / "checkpoints"),
            "log_directory": str(run / "tensorboard"),
        }
    )
    # Several runs on one machine shall not fight for the default port; one that was asked for is
    # meant.
    if "metrics_port" not in experiment.learner.model_fields_set:
        learner = learner.model_copy(update={"metrics_port": 0})
    return experiment.model_copy(update={"learner": learner})


def new_run(directory: pathlib.Path, name: str) -> pathlib.Path:
    """Makes a folder for a new run: the experiment's name and the time."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    candidate, n = directory / f"{name}-{stamp}", 1
    while True:
        try:  # to make it is the only way to learn that no other run has it
            candidate.mkdir(parents=True)
        except FileExistsError:
            candidate, n = directory / f"{name}-{stamp}-{n}", n + 1
        else:
            return candidate


def newest_run(directory: pathlib.Path, name: str) -> pathlib.Path:
    """The newest run of an experiment.

    Raises:
      LaunchError: There is none.
    """
    of_experiment = re.compile(re.escape(name) + r"-\d{8}-\d{6}(-\d+)?")
    runs = [
        path.parent
        for path in directory.glob("*/experiment.yaml")
        if of_experiment.fullmatch(path.parent.name)
    ]
    if not runs:
        raise LaunchError(f"no run of {name!r} in {directory}/ to resume")
    return max(runs, key=lambda path: (path / "experiment.yaml").stat().st_mtime)


def _status(
    stub: inference_pb2_grpc.InferenceServiceStub,
) -> inference_pb2.GetStatusResponse | None:
    try:
        status: inference_pb2.GetStatusResponse = stub.GetStatus(
            inference_pb2.GetStatusRequest(), timeout=2.0
        )
        return status
    except grpc.RpcError:
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
