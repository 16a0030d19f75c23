"""The learner's serving path for benchmarks: everything between socket and network.

Real front ends, step store, inference loop and unroll assembler; instead of training a thread
gives finished unrolls back unread. The policy is the real agent, or none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry

from services.learner import join, unrolls
from services.learner.cpu_time import CpuTime
from services.learner.inference import Arrays, Decisions, InferenceLoop, Policy
from services.learner.statistics import Statistics
from services.learner.step_store import COUNTERS, StepStore, StoreLayout
from services.learner.transport import Transport
from services.shared import processes
from services.shared.config import LearnerConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import DiscreteActionSpec, EnvironmentSpec

_TAKE_SECONDS = 0.2
_SAMPLE_SECONDS = 0.02
_START_SECONDS = 180.0


@dataclasses.dataclass
class Counts:
    """What the server tells the benchmark, in memory that both share.

    Attributes:
      port: That it serves on; 0 until it does.
      calls: Of the policy.
      slots: That it chose actions for.
      policy_cpu_seconds: Of its calls.
      loop_cpu_seconds: Of the inference thread, without the policy's.
      store: float64 [len(COUNTERS)], the step store's counters some milliseconds ago.
    """

    port: Synchronized[int]
    calls: Synchronized[int]
    slots: Synchronized[int]
    policy_cpu_seconds: Synchronized[float]
    loop_cpu_seconds: Synchronized[float]
    store: Any

    @classmethod
    def create(cls, context: Any) -> Counts:
        """All 0; `context` is multiprocessing's."""
        kinds = ("i", "q", "q", "d", "d")
        shared = [context.Value(kind, 0, lock=False) for kind in kinds]
        shared.append(context.Array("d", len(COUNTERS), lock=False))
        return cls(*shared)


class _NoNetwork:
    """Action 0 for everybody."""

    version = 0

    def __init__(self, spec: EnvironmentSpec) -> None:
        assert isinstance(spec.action, DiscreteActionSpec)
        self.parameter_size = sum(spec.action.num_values)
        self._action_size = spec.action.size

    def initial_state(self, slots: int) -> Arrays:
        return ()

    def act(self, slots: npt.NDArray[np.int64], *inputs: Any) -> Decisions:
        n = len(slots)
        action = np.zeros((n, self._action_size), np.int32)
        parameters = np.zeros((n, self.parameter_size), np.float32)
        return Decisions(action, parameters, np.zeros(n, np.float32), ())


class _Metered:
    """A policy whose calls are counted."""

    def __init__(self, policy: Policy, counts: Counts) -> None:
        self._policy = policy
        self._counts = counts
        self._outside_seconds = 0.0
        self._left = 0.0

    @property
    def version(self) -> int:
        return self._policy.version

    def act(self, slots: npt.NDArray[np.int64], *inputs: Any) -> Decisions:
        counts = self._counts
        process, entered = time.process_time(), time.thread_time()
        decisions = self._policy.act(slots, *inputs)
        counts.policy_cpu_seconds.value += time.process_time() - process
        counts.loop_cpu_seconds.value += entered - self._left
        counts.calls.value += 1
        counts.slots.value += len(slots)
        self._left = time.thread_time()
        return decisions


@contextlib.contextmanager
def running(config: LearnerConfig, network: bool) -> Iterator[tuple[BaseProcess, Counts]]:
    """A process that serves; see `serve`.

    Yields:
      The process, which listens already, and what it counts.
    """
    context = multiprocessing.get_context("spawn")
    counts = Counts.create(context)
    server = context.Process(target=serve, args=(config, counts, network))
    # As the learner does it, for itself and its front ends.
    with mock.patch.dict(os.environ, {**processes.LARGE_ARRAYS, **os.environ}):
        server.start()
    try:
        wait_for(lambda: counts.port.value != 0, server.is_alive)
        yield server, counts
    finally:
        server.kill()
        server.join()


def wait_for(condition: Callable[[], bool], *alive: Callable[[], bool]) -> None:
    """Waits until the condition holds.

    Raises:
      RuntimeError: It took too long, or one of `alive` is not.
    """
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline or not all(is_alive() for is_alive in alive):
            raise RuntimeError(f"not ready within {_START_SECONDS:.0f} s, or ended")
        time.sleep(0.02)


def serve(config: LearnerConfig, counts: Counts, network: bool) -> None:
    """Serves until it is killed; the body of a process.

    Args:
      config: The learner's settings.
      counts: Is kept up to date.
      network: Whether the policy is the network of `config`, or none.
    """
    processes.die_with_parent()
    building = threading.Lock()
    stores: list[StepStore] = []

    def check_join(request: inference_pb2.JoinRequest) -> None:
        spec = join.check(request, config.max_slots, 0)
        with building:
            if not stores:
                stores.append(_start(config, spec, transport, counts, network))

    transport = Transport(
        config, check_join, inference_pb2.GetStatusResponse, pathlib.Path, lambda error: None
    )
    transport.start()
    counts.port.value = int(transport.address.rpartition(":")[2])
    while True:
        time.sleep(_SAMPLE_SECONDS)
        if stores:
            counts.store[:] = stores[0].counters.sum(axis=0)


def _start(
    config: LearnerConfig,
    spec: EnvironmentSpec,
    transport: Transport,
    counts: Counts,
    network: bool,
) -> StepStore:
    leases = transport.leases
    agent: Any = _NoNetwork(spec)
    if network:
        # Only here: the import of TensorFlow.
        from services.learner import devices, training

        devices.configure(config.threads)
        agent = training.make_agent(config, spec, leases)
    ring = unrolls.ring_length(spec, config.unroll_length, config.unrolls_per_slot)
    store = StepStore.create(
        StoreLayout(spec, config.max_slots, ring, agent.parameter_size, config.front_ends)
    )
    state = agent.initial_state(config.max_slots)
    assembler = unrolls.UnrollAssembler(
        store, state, config.unroll_length, config.unrolls_per_slot, leases.roles
    )
    statistics = Statistics(
        config.max_slots, CollectorRegistry(), leases.roles, leases.environments
    )
    policy = _Metered(agent, counts)
    loop = InferenceLoop(config, store, transport, policy, state, assembler, statistics, CpuTime())

    def give_back() -> None:
        while True:
            if unrolls_taken := assembler.take(config.batch_size, _TAKE_SECONDS):
                assembler.release(unrolls_taken)
                transport.wake()

    transport.publish(store)
    for body in (loop.run, give_back):
        threading.Thread(target=body, daemon=True).start()
    return store
