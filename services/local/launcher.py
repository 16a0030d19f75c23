"""Runs a whole system on this machine: learner, actors, replay, and a view of what they do.

`seedpod train` calls `train`. Every service is a process of its own and talks gRPC, as in a
cluster; only the addresses and the folders are chosen here. A run's folder holds the experiment
as it was run, checkpoints, TensorBoard events, a log file for each process and, in the end, the
summary.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import pathlib
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import grpc

from services.learner import checkpoint
from services.local import view
from services.local.learners import Learners
from services.local.ports import free_port
from services.local.process import LaunchError, Service
from services.local.report import live
from services.local.report.run import SUMMARY_FILE
from services.shared import config, rpc
from services.shared.cores import usable_cores
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from services.shared.profiling import Profile

_STOP_SECONDS = 30.0
_REPLAY_STOP_SECONDS = 10.0
_POLL_SECONDS = 1.0
_ADDRESS_FILE = "learner.address"
_PAGE_FILE = "page.address"


class StopFlag:
    """Whether the run shall end. Handlers set an attribute: they must take no lock."""

    def __init__(self) -> None:
        """Starts unset."""
        self.requested = False

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not long beyond a request."""
        deadline = time.monotonic() + seconds
        while not self.requested and time.monotonic() < deadline:
            time.sleep(0.05)


def train(
    experiment: config.Experiment, run: pathlib.Path, profile: Profile | None = None
) -> dict[str, Any]:
    """Trains until all frames are taken or a signal comes.

    Args:
      experiment: What to run; addresses and folders are replaced by this run's.
      run: The run's folder; its checkpoints are resumed from.
      profile: Of each service, see `services.shared.profiling`.

    Returns:
      The learner's summary; `failure` says what ended the run, if it did not end well.

    Raises:
      LaunchError: The run cannot begin.
    """
    _check_slots(experiment)
    print(f"run: {run} (logs, checkpoints, TensorBoard events)", file=sys.stderr)
    screen = view.TrainingView(experiment.learner.total_frames)
    return _launch(experiment, run, screen, profile=profile)


def _launch(
    experiment: config.Experiment,
    run: pathlib.Path,
    screen: view.View,
    learner_arguments: tuple[str, ...] = (),
    profile: Profile | None = None,
) -> dict[str, Any]:
    run.mkdir(parents=True, exist_ok=True)
    with (run / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LaunchError(f"{run}: another seedpod runs in this folder") from None
        # First of all: a port that is taken must leave the folder as it is.
        with _page(experiment.local, run, screen):
            return _launch_locked(experiment, run, screen, learner_arguments, profile)


def _launch_locked(
    experiment: config.Experiment,
    run: pathlib.Path,
    screen: view.View,
    learner_arguments: tuple[str, ...],
    profile: Profile | None,
) -> dict[str, Any]:
    document = run / "experiment.yaml"
    before = document.read_text() if document.exists() else None
    newest = checkpoint.latest(run / "checkpoints")
    (run / SUMMARY_FILE).unlink(missing_ok=True)
    _write(document, config.dump(place(experiment, run)))
    stop = StopFlag()

    def request_stop(*_: object) -> None:
        stop.requested = True

    previous = {n: signal.signal(n, request_stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        summary = _Run(document, experiment, run, stop, learner_arguments, profile).run(screen)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    _write(run / SUMMARY_FILE, json.dumps(summary))
    if (
        summary["failure"]
        and before is not None
        and checkpoint.latest(run / "checkpoints") == newest
    ):
        # Refused settings: the next `--resume` shall find those that the checkpoint is of.
        _write(document, before)
    return summary


@contextlib.contextmanager
def _page(settings: config.LocalConfig, run: pathlib.Path, screen: view.View) -> Iterator[None]:
    """Serves the run's page meanwhile, and says where."""
    with live.serve(settings, run, lambda: screen.values) as address:
        if address is not None:
            _write(run / _PAGE_FILE, address)
            print(f"page: {address} (while it trains)", file=sys.stderr)
        try:
            yield
        finally:
            (run / _PAGE_FILE).unlink(missing_ok=True)


def _write(path: pathlib.Path, text: str) -> None:
    """All of it or nothing, also on a full disk."""
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


class _Run:
    """The processes of one run."""

    def __init__(
        self,
        document: pathlib.Path,
        experiment: config.Experiment,
        run: pathlib.Path,
        stop: StopFlag,
        learner_arguments: tuple[str, ...],
        profile: Profile | None,
    ) -> None:
        self._stop = stop
        self._profile_arguments = [] if profile is None else profile.arguments()
        self._tls = experiment.learner.tls
        self._actors: list[Service] = []
        self._local = experiment.local
        self._evaluates = bool(learner_arguments)
        self._actor_metrics_port = experiment.actor.metrics_port
        self._document = document
        self._folder = run
        arguments = [*learner_arguments, *self._profile_arguments]
        # Where actors hold the policy, those that train are another program, and send unrolls.
        self._trajectory_address: str | None = None
        if experiment.learner.inference == "actors" and not learner_arguments:
            self._trajectory_address = f"127.0.0.1:{free_port()}"
            arguments.append(f"--set=learner.trajectory_address={self._trajectory_address}")
        self._replay: list[Service] = []
        # An evaluation, which has arguments, neither fills nor reads replay.
        if experiment.learner.algorithm == "r2d2" and not learner_arguments:
            shards = [f"127.0.0.1:{free_port()}" for _ in range(self._local.replay_shards)]
            directory = experiment.replay.persistence.directory
            self._replay = [self._start_replay(*s, directory) for s in enumerate(shards)]
            arguments.append(f"--set=learner.r2d2.replay_addresses=[{','.join(shards)}]")
        learners = 1 if learner_arguments else self._local.learners
        self._learners = Learners(experiment, document, run, learners, arguments)
        self._learner = self._learners.chief
        _write(run / _ADDRESS_FILE, self._learners.addresses[0])

    def run(self, screen: view.View) -> dict[str, Any]:
        failure = None
        try:
            self._start_actors()
            with screen:
                while not self._stop.requested and not self._learner.check(may_end=True):
                    for service in self._others:
                        service.check(may_end=False)
                    restarts = sum(s.restarts for s in (self._learner, *self._others))
                    screen.show(learner_status(self._learners.addresses[0], self._tls), restarts)
                    self._stop.sleep(_POLL_SECONDS)
        except LaunchError as error:
            failure = str(error)
        finally:
            self._wind_down()
        return self._summary(failure)

    @property
    def _others(self) -> list[Service]:
        """All but the learner that the run ends with."""
        return [*self._learners.others, *self._actors, *self._replay]

    def _start_replay(self, shard: int, address: str, directory: str | None) -> Service:
        command = [
            *("-m", "services.replay", "--child", f"--experiment={self._document}"),
            f"--set=replay.address={address}",
            *self._profile_arguments,
        ]
        if shard:
            command.append("--set=replay.metrics_port=0")
            if directory is not None:
                command.append(f"--set=replay.persistence.directory={directory}-{shard}")
        name = f"replay-{shard}" if shard else "replay"
        return Service(name, command, self._folder / f"{name}.log")

    def _start_actors(self) -> None:
        for i in range(self._local.actors):
            if self._trajectory_address is None:
                learners = self._learners.addresses_for(i)
                self._start_actor(f"actor-{i}", "services.actor", learners)
            else:
                module = "services.learner.impala_actor"
                self._start_actor(f"actor-{i}", module, self._trajectory_address)
        if self._local.evaluation_environments and not self._evaluates:
            # All its episodes are reported by one learner.
            chief, settings = self._learners.addresses[0], evaluator_settings(self._local)
            self._start_actor("evaluator", "services.actor", chief, *settings)

    def _start_actor(self, name: str, module: str, learners: str, *settings: str) -> None:
        command = [
            *("-m", module, "--child", f"--experiment={self._document}"),
            *(f"--set=actor.learner_address={learners}", f"--name={name}"),
            *self._profile_arguments,
        ]
        if self._actor_metrics_port:
            port = self._actor_metrics_port + len(self._actors)
            command.append(f"--set=actor.metrics_port={port}")
        command += [f"--set={setting}" for setting in settings]
        self._actors.append(Service(name, command, self._folder / f"{name}.log"))

    def _wind_down(self) -> None:
        deadline = time.monotonic() + _STOP_SECONDS
        services = (self._learner, *self._learners.others, *self._actors)
        for service in services:
            service.terminate()
        # Replay ends last: the learners' streams would try to come back to it.
        for service in services:
            service.wait(deadline - time.monotonic())
        deadline = time.monotonic() + _REPLAY_STOP_SECONDS
        for service in self._replay:
            service.terminate()
        for service in self._replay:
            service.wait(deadline - time.monotonic())

    def _summary(self, failure: str | None) -> dict[str, Any]:
        summary = self._learner.summary()
        if summary is None:
            newest = checkpoint.latest(self._folder / "checkpoints")
            frames = 0 if newest is None else checkpoint.read(newest).counters["frames"]
            summary = {"frames": frames, "checkpoint": None if newest is None else str(newest)}
            # Asked to end before it was up, it has nothing to say.
            ended_early = self._stop.requested and self._learner.status in (0, -signal.SIGTERM)
            if not ended_early:
                failure = failure or "the learner ended without a summary: was it killed?"
        return {**summary, "failure": failure or summary.get("failure"), "run": str(self._folder)}


def evaluate(
    checkpoint_path: pathlib.Path,
    episodes: int,
    greedy: bool,
    overrides: list[str],
    video: pathlib.Path | None = None,
    video_episodes: int = 1,
    opponent_path: pathlib.Path | None = None,
) -> dict[str, Any]:
    """Plays episodes with a checkpoint's policy.

    Args:
      checkpoint_path: A checkpoint's folder.
      episodes: At least so many.
      greedy: Take the most probable action instead of drawing one.
      overrides: Of the checkpoint's experiment.
      video: Where recordings are kept; None: nothing is recorded.
      video_episodes: How many to record.
      opponent_path: Of a checkpoint of self-play: a checkpoint's folder, whose policy plays all
        opponents. None: they are chosen as in training.

    Returns:
      The learner's summary: returns and lengths.

    Raises:
      CheckpointError: It cannot be read, or an opponent is given and it has none.
      OSError: The folder for recordings cannot be made.
    """
    saved = checkpoint.read(checkpoint_path.resolve())
    # What training recorded, and whether its evaluators drew, does not count here.
    settings = [
        *("actor.role=evaluation", f"learner.evaluation.greedy={json.dumps(greedy)}"),
        f"actor.recording.every_episodes={int(video is not None)}",
        f"actor.recording.episodes={video_episodes}",
        f"learner.evaluation.recordings_to_keep={max(video_episodes, 20)}",
        # There is nothing to look on at.
        "local.page_port=null",
    ]
    arguments = [f"--evaluate={episodes}"]
    opponent = None
    if opponent_path is not None:
        opponent = checkpoint.read(opponent_path.resolve())
        arguments.append(f"--opponent={opponent.path}")
    if video is not None:
        video.mkdir(parents=True, exist_ok=True)
        folder = json.dumps(str(video.resolve()))
        arguments += [
            f"--recordings={video_episodes}",
            f"--set=learner.evaluation.recordings_directory={folder}",
        ]
    with tempfile.TemporaryDirectory(prefix="seedpod-eval-") as temporary:
        run = pathlib.Path(temporary)
        (run / "checkpoints").mkdir()
        name = checkpoint.name_of(saved.counters)  # whatever the folder is called now
        (run / "checkpoints" / name).symlink_to(saved.path)
        document = run / "checkpoint.yaml"
        document.write_text(saved.experiment)
        experiment = config.load(str(document), [*overrides, *settings])
        if opponent is not None:
            _check_opponent(opponent, saved, experiment.learner)
        summary = _launch(experiment, run, view.EvaluationView(), tuple(arguments))
    recordings = [] if video is None else [str(video / n) for n in summary.pop("recordings", [])]
    return {
        "episodes": 0,  # of a learner that was ended before it was up
        **summary,
        "recordings": recordings,
        "checkpoint": str(checkpoint_path),
        "opponent": None if opponent_path is None else str(opponent_path),
        "run": None,
    }


def _check_opponent(
    opponent: checkpoint.Checkpoint, saved: checkpoint.Checkpoint, settings: config.LearnerConfig
) -> None:
    """Tells at once what the learner would find, too."""
    if settings.self_play is None:
        raise checkpoint.CheckpointError(
            f"{saved.path}: learner.self_play is null, so there is no opponent; --opponent is for"
            " runs with self-play"
        )
    opponent.check_agent(saved.environment_spec, settings.network)


def evaluator_settings(local: config.LocalConfig) -> tuple[str, ...]:
    """What makes an actor the evaluator of a local run."""
    return (
        *("actor.role=evaluation", "actor.workers=1", "actor.groups=1"),
        f"actor.environments_per_group={local.evaluation_environments}",
    )


def _check_slots(experiment: config.Experiment) -> None:
    """Says at once what the learner would say to the last of the workers, or would wait for."""
    actor, learners = experiment.actor, experiment.local.learners
    workers = experiment.local.actors * (actor.workers or usable_cores())
    if workers < learners:
        raise LaunchError(
            f"{experiment.local.actors} actors have {workers} workers, allowed with local.learners"
            f" {learners}: as many or more, because each worker joins one learner, and all learners"
            " make each update together"
        )
    wanted = workers * actor.groups * actor.environments_per_group
    wanted += experiment.local.evaluation_environments
    wanted *= actor.agents
    if wanted > learners * experiment.learner.max_slots:
        raise LaunchError(
            f"{workers} workers with {actor.groups} groups of {actor.environments_per_group}"
            f" environments, and {experiment.local.evaluation_environments} for evaluation"
            + (f", of {actor.agents} agents each," if actor.agents > 1 else ",")
            + f" need {wanted} env slots, learner.max_slots is {experiment.learner.max_slots}"
            + (f" of each of {learners} learners" if learners > 1 else "")
        )


def place(experiment: config.Experiment, run: pathlib.Path) -> config.Experiment:
    """The experiment with its files in the run's folder."""
    learner = experiment.learner.model_copy(
        update={
            "checkpoint_directory": str(run / "checkpoints"),
            "log_directory": str(run / "tensorboard"),
            "evaluation": experiment.learner.evaluation.model_copy(
                update={
                    "results_path": str(run / "evaluations.jsonl"),
                    "recordings_directory": str(run / "videos"),
                }
            ),
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


def newest_run(directory: pathlib.Path, name: str | None = None) -> pathlib.Path:
    """The newest run of an experiment; None: of any.

    Raises:
      LaunchError: There is none.
    """
    pattern = ".+" if name is None else re.escape(name)
    of_experiment = re.compile(pattern + r"-\d{8}-\d{6}(-\d+)?")
    runs = [
        path.parent
        for path in directory.glob("*/experiment.yaml")
        if of_experiment.fullmatch(path.parent.name)
    ]
    if not runs:
        raise LaunchError(f"no run{'' if name is None else f' of {name!r}'} in {directory}/")
    return max(runs, key=lambda path: (path / "experiment.yaml").stat().st_mtime)


def describe(run: pathlib.Path) -> dict[str, str]:
    """How a run is doing: what its learner says, or else what its newest checkpoint has counted.

    Raises:
      ConfigError: The folder's experiment cannot be read.
      CheckpointError: Nor can the checkpoint.
    """
    experiment = config.load(str(run / "experiment.yaml"))
    address = run / _ADDRESS_FILE
    if address.exists():
        status = learner_status(address.read_text(), experiment.learner.tls)
        if status is not None:
            values = view.describe(status, experiment.learner.total_frames)
            page = run / _PAGE_FILE
            return values | ({"page": page.read_text()} if page.exists() else {})
    newest = checkpoint.latest(run / "checkpoints")
    if newest is None:
        return {"state": "not running, and without a checkpoint"}
    counters = checkpoint.read(newest).counters
    return {
        "state": "not running",
        "checkpoint": newest.name,
        **{name: f"{count:,}" for name, count in counters.items()},
    }


def learner_status(
    address: str, tls: config.TlsConfig | None
) -> inference_pb2.GetStatusResponse | None:
    """What a learner says of itself; None if there is no answer within two seconds.

    Over a channel of its own: one that is kept looks after its connection only while a call is
    under way, else every five seconds, and sees a learner that has come as much later.
    """
    with rpc.channel(address, tls=tls) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        try:
            status: inference_pb2.GetStatusResponse = stub.GetStatus(
                inference_pb2.GetStatusRequest(), timeout=2.0
            )
        except grpc.RpcError:
            return None
        return status
