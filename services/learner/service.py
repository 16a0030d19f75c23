"""The learner service: front ends, inference and training around one step store.

The first Join (or the checkpoint that the run resumes from) tells what the environments look
like; then the network and the step store are made and the threads start:

    front ends -> step store -> inference thread -> step store -> trainer thread -> parameters

The main thread waits for the end of training or a signal, then winds everything down.
"""

from __future__ import annotations

import json
import logging
import pathlib
import threading
import time

import grpc

from services.learner import (
    checkpoint,
    devices,
    join,
    peers,
    replicas,
    reports,
    training,
    unrolls,
)
from services.learner.agent import Agent
from services.learner.cpu_time import CpuTime
from services.learner.evaluator import Evaluation, Evaluator
from services.learner.inference import InferenceLoop, Policy
from services.learner.networks import registry
from services.learner.overview import Overview
from services.learner.recordings import Recordings
from services.learner.run_state import RunState
from services.learner.self_play import SelfPlay
from services.learner.statistics import Statistics
from services.learner.step_store import StepStore, StoreLayout
from services.learner.trajectories import UnrollLayout
from services.learner.trajectory_server import TrajectoryServer
from services.learner.transport import Transport
from services.learner.unroll_queue import Desk, ParameterBoard, UnrollQueue
from services.shared import config, processes
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import EnvironmentSpec
from services.shared.status import StatusError

# Actors hear of the end of training at their next request, which a slow environment delays.
_FAREWELL_SECONDS = 15.0
# One update of all learners, in which they hear that this one ends.
_PEERS_SECONDS = 20.0
# Making a network takes a few seconds when all learners are there.
_BUILD_SECONDS = 5.0
_log = logging.getLogger(__name__)


class LearnerService:
    """One learner."""

    def __init__(
        self,
        experiment: config.Experiment,
        evaluation: Evaluation | None = None,
        cluster: peers.Cluster | None = None,
        found: devices.Devices = devices.Devices(),  # noqa: B008  # It is frozen.
    ) -> None:
        """Claims the port and, when there is a checkpoint, makes ready to resume from it.

        Args:
          experiment: The experiment; its learner section is read.
          evaluation: Evaluate the newest checkpoint instead of training.
          cluster: All learners of the run; None: there is only this one.
          found: What this one computes on.

        Raises:
          OSError: The port is taken.
          NetworkError: There is no network of that name.
          checkpoint.CheckpointError: The checkpoint cannot be used.
        """
        registry.find(experiment.learner.network.name)
        self._cluster = cluster
        self._devices = found
        self._replicas: replicas.Replicas | None = None
        # Addresses of learners that have not come yet.
        self._missing: list[str] = []
        self._config = peers.own_settings(experiment.learner, cluster)
        self._evaluation = evaluation
        self._reports = reports.Reports(self._config)
        self._transport = Transport(
            self._config,
            self._check_join,
            lambda: self._overview.status(),
            self._recording_folder,
            self._fail,
        )
        statistics = Statistics(
            self._config.max_slots,
            self._reports.registry,
            self._transport.leases.roles,
            self._transport.leases.environments,
            self._config.evaluation.episodes if evaluation is None else None,
            self._config.opponent_agents,
        )
        # Where actors hold the policy.
        self._trajectories: TrajectoryServer | None = None
        if self._config.inference == "actors" and evaluation is None:
            self._trajectories = TrajectoryServer(
                self._config, self._check_registration, statistics
            )
        self._state = RunState(
            experiment,
            statistics,
            claims=evaluation is None,
            is_chief=cluster is None or cluster.index == 0,
        )
        if evaluation is not None and self._state.restored is None:
            raise checkpoint.CheckpointError(
                f"{self._config.checkpoint_directory}: has no checkpoint to evaluate"
            )
        self._recordings = Recordings(
            self._config.evaluation, lambda picture: self._reports.picture(picture, statistics)
        )
        self._overview = Overview(
            self._config,
            self._transport,
            self._trajectories,
            statistics,
            self._state,
            self._recordings,
        )
        self._build_lock = threading.Lock()
        self._builder: threading.Thread | None = None
        self._spec: EnvironmentSpec | None = None
        self._agent: Agent | None = None
        self._inference: InferenceLoop | None = None
        self._threads: list[threading.Thread] = []
        self._wake = threading.Event()
        self._stop_requested = False

    def run(self) -> int:
        """Serves until training is over or `request_stop`; returns the exit status."""
        self._reports.serve_metrics(self._overview)
        self._transport.start()
        _log.info("serving on %s", self._transport.address)
        try:
            if self._trajectories is not None:
                self._trajectories.start()
            self._meet()
            # With others, building waits for all of them, and they for their first actors.
            if self._state.restored is not None and self._cluster is None:
                with self._build_lock:
                    self._build(self._state.restored.environment_spec)
            while not (self._stop_requested or self._overview.failure or self._trainer_ended()):
                self._wake.wait(0.2)
            self._overview.ended = time.monotonic()
            self._wind_down()
        finally:
            if self._trajectories is not None:
                self._trajectories.stop()
            self._transport.stop()
        print(json.dumps(self._overview.summary()), flush=True)
        if (failure := self._overview.failure) is None:
            return 0
        # Once more: what ended after it has written into the log too.
        _log.error("ended by %s: %s", type(failure).__name__, failure)
        return processes.START_AGAIN if isinstance(failure, peers.PeerLost) else 1

    def request_stop(self) -> None:
        """Ends `run` with a checkpoint; for signal handlers."""
        # No more than this: a handler must not take a lock that the interrupted code may hold.
        self._stop_requested = True

    def _meet(self) -> None:
        """Waits for the other learners, if there are any."""
        cluster = self._cluster
        try:
            if cluster is None or peers.wait(
                cluster, self._config.peers_timeout_seconds, self._still_missing
            ):
                self._replicas = replicas.form(cluster, self._devices)
                self._reports.open()
        except peers.PeerLost as error:
            self._fail(error)

    def _still_missing(self, addresses: list[str]) -> bool:
        self._missing = addresses
        self._overview.missing_learners = len(addresses)
        return self._stop_requested or self._overview.failure is not None

    def _fail(self, error: Exception) -> None:
        # `run` says it, too, but only when all has ended.
        _log.warning("ending because of %s: %s", type(error).__name__, error)
        self._overview.error = error
        self._wake.set()

    def _trainer_ended(self) -> bool:
        return self._overview.worker is not None and self._overview.worker.ended.is_set()

    def _wind_down(self) -> None:
        worker, inference = self._overview.training or self._overview.evaluator, self._inference
        if worker is None or inference is None:
            return
        if not self._stop_requested and self._overview.error is None and self._overview.is_finished:
            self._transport.finish()
            if self._trajectories is not None:
                self._trajectories.finish()
            deadline = time.monotonic() + _FAREWELL_SECONDS
            while self._overview.is_visited and time.monotonic() < deadline:
                time.sleep(0.05)
        worker.stop()
        self._recordings.stop()
        # The trainer may hang on another learner: then it cannot say what the variables are.
        patience = None if self._cluster is None else _PEERS_SECONDS
        for thread in self._threads:
            if thread.name != "inference":
                thread.join(patience)
                if thread.is_alive():
                    self._fail(peers.PeerLost(f"the others have kept {thread.name} waiting"))
                    return
        try:
            self._save()
        except checkpoint.CheckpointError as error:
            self._fail(error)
        inference.stop()
        for thread in self._threads:
            thread.join()
        if self._overview.training is not None:
            self._overview.training.close()
        self._reports.close(self._overview)

    def _check_registration(self, request: inference_pb2.JoinRequest) -> Desk:
        """As `_check_join`, of an actor that holds the policy."""
        self._check_spec(request)
        assert self._overview.desk is not None, "there is one where actors hold the policy"
        return self._overview.desk

    def _check_join(self, request: inference_pb2.JoinRequest) -> None:
        evaluates = request.role == inference_pb2.ACTOR_ROLE_EVALUATION
        if self._trajectories is not None and not evaluates:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{request.actor_name!r} asks for actions to train, this learner trains on unrolls"
                " of actors that hold the policy (learner.inference actors): allowed is"
                " actor.role evaluation",
            )
        self._check_spec(request)

    def _check_spec(self, request: inference_pb2.JoinRequest) -> None:
        spec = join.check(request, self._config.max_slots, self._config.opponent_agents)
        if self._evaluation is not None and request.role != inference_pb2.ACTOR_ROLE_EVALUATION:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{request.actor_name!r} wants to train, this learner only evaluates: allowed is"
                " actor.role evaluation",
            )
        if self._replicas is None:
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE,
                "this learner waits for the others of its run: "
                + (", ".join(self._missing) or "they have come and are being connected"),
            )
        if self._cluster is not None and self._spec is None:
            self._build_with_others(spec, request)
        with self._build_lock:
            if self._spec is None:
                try:
                    self._build(spec)
                except registry.NetworkError as error:
                    raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None
                except Exception as error:  # whatever it is, the next try would end like it
                    _log.exception("the network cannot be built")
                    self._fail(error)
                    raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, repr(error)) from None
        if spec != self._spec:
            restored = self._state.restored
            source = "this learner's" if restored is None else restored.path
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the actor's environments ({request.environment_name or 'unnamed'}) look like"
                f" {spec}, those of {source} ({self._state.environment_name}) like {self._spec}",
            )
        self._state.environment_name = self._state.environment_name or request.environment_name

    def _build_with_others(self, spec: EnvironmentSpec, request: inference_pb2.JoinRequest) -> None:
        """Sets `_build` off, which waits for all learners, and they for their first actors.

        The actor must not wait here for long: it may be the one that another learner waits for.

        Raises:
          StatusError: UNAVAILABLE: it is not built yet.
        """
        # So that an actor that asks which learner has the fewest slots goes to the others, too.
        asked = request.groups * request.environments_per_group * spec.agents
        self._overview.asked_slots[request.actor_name] = asked
        with self._build_lock:
            if self._builder is None:
                self._builder = threading.Thread(
                    target=self._build_or_fail, args=(spec,), name="build", daemon=True
                )
                self._builder.start()
        self._builder.join(_BUILD_SECONDS)
        if self._spec is None:
            raise StatusError(
                grpc.StatusCode.UNAVAILABLE,
                "this learner makes the network, together with the others of its run: they, too,"
                " wait for an actor",
            )

    def _build_or_fail(self, spec: EnvironmentSpec) -> None:
        assert self._replicas is not None, "Join waits for it"
        try:
            with self._replicas.watch():
                self._build(spec)
        except peers.PeerLost as error:
            self._fail(error)
        except Exception as error:  # whatever it is, the next try would end like it
            _log.exception("the network cannot be built")
            self._fail(error)

    def _build(self, spec: EnvironmentSpec) -> None:
        cfg = self._config
        leases = self._transport.leases
        together = self._replicas
        assert together is not None, "Join waits for it"
        agent = training.make_agent(cfg, spec, leases, together)
        length = training.run_length(cfg)
        store = StepStore.create(
            StoreLayout(
                spec=spec,
                slots=cfg.max_slots,
                ring=unrolls.ring_length(spec, length, cfg.unrolls_per_slot),
                parameter_size=agent.parameter_size,
                front_ends=cfg.front_ends,
                policy_kind=training.policy_kind(cfg, spec),
                rescaling_epsilon=cfg.r2d2.rescaling_epsilon,
            )
        )
        state = agent.initial_state(cfg.max_slots)
        assembler = unrolls.UnrollAssembler(
            store, state, length, cfg.unrolls_per_slot, leases.roles
        )
        self._overview.cpu_time = CpuTime()
        self._state.begin(agent, spec, counts=self._evaluation is None)
        self_play = cfg.self_play
        if self_play is not None and self._evaluation is not None and self._evaluation.opponent:
            opponent = checkpoint.read(self._evaluation.opponent)
            opponent.check_agent(spec, cfg.network)
            agent.play_against(opponent)
            self_play = self_play.model_copy(update={"newest_share": 0.0})
        if self._trajectories is not None:
            layout = UnrollLayout(spec, length, agent.parameter_size, agent.initial_state(1))
            board = ParameterBoard(agent.parameters(), agent.version)
            self._overview.desk = Desk(layout, UnrollQueue(cfg.batch_size), board)
        policy: Policy = agent
        if self_play is not None:
            policy = SelfPlay(agent, self_play, leases, cfg.seed + together.learner)
        inference = InferenceLoop(
            cfg,
            store,
            self._transport,
            policy,
            state,
            assembler,
            self._overview.statistics,
            self._overview.cpu_time,
        )
        self._threads = [
            threading.Thread(target=self._infer, args=(inference,), name="inference", daemon=True),
            threading.Thread(target=self._recordings.run, name="recordings", daemon=True),
            *self._make_worker(agent, assembler, spec, together),
        ]
        self._agent, self._overview.store, self._overview.assembler = agent, store, assembler
        self._inference = inference
        self._transport.publish(store)
        for thread in self._threads:
            thread.start()
        self._spec = spec
        self._overview.started = time.monotonic()

    def _infer(self, inference: InferenceLoop) -> None:
        try:
            inference.run()
        except Exception as error:  # without inference there is nothing left to do
            _log.exception("inference failed")
            self._fail(error)

    def _make_worker(
        self,
        agent: Agent,
        assembler: unrolls.UnrollAssembler,
        spec: EnvironmentSpec,
        together: replicas.Replicas,
    ) -> list[threading.Thread]:
        """Makes what trains or evaluates; returns its threads."""
        if self._evaluation is not None:
            self._overview.evaluator = Evaluator(
                self._evaluation,
                self._overview.statistics,
                lambda: self._transport.leases.evaluated_environments,
                lambda: self._overview.arrived_recordings,
            )
            return [
                threading.Thread(target=self._overview.evaluator.run, name="evaluator", daemon=True)
            ]
        self._overview.training = training.make_training(
            self._config,
            spec,
            agent,
            assembler,
            self._overview.statistics,
            self._overview.cpu_time,
            self._transport.wake,
            self._after_update,
            self._fail,
            self._overview.desk,
            together,
        )
        return self._overview.training.threads()

    def _recording_folder(self) -> pathlib.Path:
        """Where a front end puts a recording."""
        if self._recordings.folder is None:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the learner keeps no recordings: learner.evaluation.recordings_directory is not"
                " set",
            )
        return self._recordings.folder

    def _after_update(self, metrics: dict[str, float]) -> None:
        if self._overview.desk is not None and self._agent is not None:
            self._overview.desk.board.pin(self._agent.parameters(), self._agent.version)
        self._reports.training(metrics, self._overview)
        if self._agent is not None and self._spec is not None:
            self._state.save_if_due(self._agent, self._spec)

    def _save(self) -> None:
        if (
            self._agent is not None
            and self._spec is not None
            and self._overview.training is not None
        ):
            self._state.save(self._agent, self._spec, wait=True)
