"""The policy of an actor that infers by itself: the learner's inference without its training.

`impala_actor` runs it beside an ordinary actor. Environment workers ask it for actions as they
would ask a learner, over loopback; in place of the trainer a thread sends finished unrolls to the
learner and fetches parameters:

    workers -> front end -> step store -> inference thread -> unrolls -> learner
                                              ^---- parameters ----------'
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import threading
import time
import zlib

import grpc
import numpy as np
from prometheus_client import CollectorRegistry

from services.learner import join, trajectories, unrolls
from services.learner.cpu_time import CpuTime
from services.learner.inference import InferenceLoop
from services.learner.networks import registry
from services.learner.statistics import Statistics
from services.learner.step_store import COUNTERS, StepStore, StoreLayout
from services.learner.trajectory_client import Closed, Finished, Refused, TrajectoryClient
from services.learner.transport import Transport
from services.learner.vtrace_agent import VtraceAgent
from services.shared import config
from services.shared.cores import usable_cores
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.generated.seedpod.trajectory.v1 import trajectory_pb2
from services.shared.specs import EnvironmentSpec
from services.shared.status import StatusError

_STOP_SECONDS = 5.0
_TAKE_SECONDS = 0.5
# Of one message, if an unroll is not larger.
_MESSAGE_BYTES = 16 << 20
_log = logging.getLogger(__name__)


class LocalPolicy:
    """Inference for one actor, and the thread that sends its unrolls.

    Attributes:
      failure: Why it cannot go on; None while it can.
    """

    def __init__(self, experiment: config.Experiment, name: str) -> None:
        """Claims a port; `start` serves.

        Args:
          experiment: With `actor.learner_address` that of the learner's trajectory service.
          name: Of the actor, for logs.

        Raises:
          OSError: A file of the certificate cannot be read.
        """
        learner, actor = experiment.learner, experiment.actor
        # No two actors of a run draw the same random numbers.
        entropy = [learner.seed % (1 << 63), zlib.crc32(name.encode())]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1
        self._config = learner.model_copy(
            update={"address": "127.0.0.1:0", "tls": None, "front_ends": 1, "seed": seed}
        )
        self._name = name
        self._environments = (
            (actor.workers or usable_cores()) * actor.groups * actor.environments_per_group
        )
        self._client = TrajectoryClient(actor.learner_address, learner.keepalive_seconds, actor.tls)
        self._transport = Transport(
            self._config, self._check_join, _no_status, _no_recordings, self._fail
        )
        leases = self._transport.leases
        self._statistics = Statistics(
            learner.max_slots, CollectorRegistry(), leases.roles, leases.environments
        )
        self._build_lock = threading.Lock()
        self._running: _Running | None = None
        self._stopping = threading.Event()
        self.failure: Exception | None = None

    @property
    def address(self) -> str:
        """host:port where the actor's workers find it."""
        return self._transport.address

    def start(self) -> None:
        """Serves."""
        self._transport.start()

    def stop(self) -> None:
        """Ends all threads and the front end."""
        self._stopping.set()
        self._client.close()
        if self._running is not None:
            self._running.inference.stop()
            for thread in self._running.threads:
                thread.join(timeout=_STOP_SECONDS)
        self._transport.stop()

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error

    def _check_join(self, request: inference_pb2.JoinRequest) -> None:
        """The first Join of a worker tells what the environments look like."""
        spec = join.check(request, self._config.max_slots, opponent_agents=0)
        try:
            with self._build_lock:
                if self._running is None:
                    self._running = self._build(spec, request)
        except (Refused, registry.NetworkError) as error:
            self._fail(error)
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None
        except Finished:
            self._transport.finish()  # the worker hears of it when it tries again
            raise StatusError(grpc.StatusCode.UNAVAILABLE, "training is over") from None
        except Closed:
            raise StatusError(grpc.StatusCode.UNAVAILABLE, "the actor is ending") from None
        ours = self._running.store.layout.spec
        if spec != ours:
            raise StatusError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this worker's environments look like {spec}, the first one's like {ours}",
            )

    def _build(self, spec: EnvironmentSpec, request: inference_pb2.JoinRequest) -> _Running:
        cfg, leases = self._config, self._transport.leases
        agent = VtraceAgent(cfg, spec, leases.evaluated)
        self._client.register(
            trajectory_pb2.RegisterRequest(
                actor_name=self._name,
                environment=request.environment,
                environment_name=request.environment_name,
                slots=self._environments * spec.agents,
                unroll_length=cfg.unroll_length,
                parameters=trajectories.parameter_specs(agent.parameters()),
            )
        )
        store = StepStore.create(
            StoreLayout(
                spec=spec,
                slots=cfg.max_slots,
                ring=unrolls.ring_length(spec, cfg.unroll_length, cfg.unrolls_per_slot),
                parameter_size=agent.parameter_size,
                front_ends=cfg.front_ends,
            )
        )
        state = agent.initial_state(cfg.max_slots)
        assembler = unrolls.UnrollAssembler(
            store, state, cfg.unroll_length, cfg.unrolls_per_slot, leases.roles
        )
        inference = InferenceLoop(
            cfg, store, self._transport, agent, state, assembler, self._statistics, CpuTime()
        )
        layout = trajectories.UnrollLayout(
            spec, cfg.unroll_length, agent.parameter_size, agent.initial_state(1)
        )
        sender = _Sender(cfg, layout, agent, store, assembler, self._transport, self._statistics)
        sender.renew(self._client, known=-1)
        self._transport.publish(store)
        threads = [
            threading.Thread(target=self._infer, args=(inference,), name="inference", daemon=True),
            threading.Thread(target=self._send, args=(sender,), name="sender", daemon=True),
        ]
        for thread in threads:
            thread.start()
        return _Running(store, inference, threads)

    def _infer(self, inference: InferenceLoop) -> None:
        try:
            inference.run()
        except Exception as error:  # without inference there is nothing left to do
            _log.exception("inference failed")
            self._fail(error)

    def _send(self, sender: _Sender) -> None:
        try:
            while not self._stopping.is_set():
                sender.send(self._client)
        except Finished:
            self._transport.finish()
        except Closed:
            pass
        except Exception as error:  # the process ends and says why
            _log.exception("sending unrolls failed")
            self._fail(error)


@dataclasses.dataclass(frozen=True)
class _Running:
    """What the first Join set off."""

    store: StepStore
    inference: InferenceLoop
    threads: list[threading.Thread]


class _Sender:
    """Takes unrolls as they finish; asks for parameters once in an unroll of all slots."""

    def __init__(
        self,
        settings: config.LearnerConfig,
        layout: trajectories.UnrollLayout,
        agent: VtraceAgent,
        store: StepStore,
        assembler: unrolls.UnrollAssembler,
        transport: Transport,
        statistics: Statistics,
    ) -> None:
        self._layout = layout
        self._agent = agent
        self._store = store
        self._assembler = assembler
        self._transport = transport
        self._statistics = statistics
        self._like = agent.parameters()
        self._largest = max(1, min(settings.batch_size, _MESSAGE_BYTES // layout.observation_bytes))
        self._since_renewal = 0
        self._cpu_reported = np.array([0.0, time.process_time()])

    def send(self, client: TrajectoryClient) -> None:
        """Waits for unrolls and sends them; returns when the learner has taken them."""
        finished = self._assembler.take(self._largest, _TAKE_SECONDS)
        if finished is None:
            return
        message = trajectories.encode(self._layout, self._assembler.gather(finished))
        self._assembler.release(finished)
        self._transport.wake()
        self._add_account(message)
        answer = client.put(message)
        if answer is None:
            self.renew(client, known=-1)
            return
        self._since_renewal += len(finished)
        is_due = self._since_renewal >= self._transport.leases.training_slots
        if is_due and answer.version != self._agent.version:
            self.renew(client, known=self._agent.version)

    def renew(self, client: TrajectoryClient, known: int) -> None:
        """Takes the learner's newest parameters, between two batches of inference."""
        self._since_renewal = 0
        newest = client.fetch(known)
        if newest is None:
            return
        version, data = newest
        parameters = trajectories.unpack(self._like, data)
        with self._transport.lock:
            self._agent.set_parameters(parameters, version)

    def _add_account(self, message: trajectory_pb2.PutUnrollsRequest) -> None:
        ended = self._statistics.ended_episodes
        while ended:
            total, length = ended.popleft()
            message.episodes.add(episode_return=total, length=length)
        counters = dict(zip(COUNTERS, self._store.counters.sum(axis=0), strict=True))
        rest = counters["actor_cpu_seconds"] + counters["front_end_cpu_seconds"]
        spent = np.array([counters["environment_cpu_seconds"], rest + time.process_time()])
        message.environment_cpu_seconds, message.actor_cpu_seconds = spent - self._cpu_reported
        self._cpu_reported = spent


def _no_status() -> inference_pb2.GetStatusResponse:
    raise StatusError(grpc.StatusCode.UNIMPLEMENTED, "ask the learner")


def _no_recordings() -> pathlib.Path:
    raise StatusError(
        grpc.StatusCode.FAILED_PRECONDITION, "an actor that holds the policy records nothing"
    )
