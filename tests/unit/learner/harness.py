"""Drives the inference loop without a network: a transport and a policy that tests control."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry

from services.learner import training, unrolls
from services.learner.cpu_time import CpuTime
from services.learner.fair_lock import FairLock
from services.learner.inference import Arrays, Decisions, InferenceLoop, InferenceTransport
from services.learner.leases import Group, LeaseTable
from services.learner.roles import Role
from services.learner.statistics import Statistics
from services.learner.step_store import StepStore, StoreLayout
from services.shared.config import LearnerConfig
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec

FIRST, MID, LAST, ABSENT = range(4)


class CountingPolicy:
    """Its state counts records since FIRST; its action is the newest frame's number modulo 100."""

    version = 0

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.seen: list[npt.NDArray[np.generic]] = []

    def act(
        self,
        slots: npt.NDArray[np.int64],
        observation: Arrays,
        previous_action: npt.NDArray[np.generic],
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        state: Arrays,
    ) -> Decisions:
        self.batches.append(len(reward))
        self.seen.append(observation[0])
        count = np.where(first, 0, state[0][:, 0])[:, None]
        frames = observation[0] if observation[0].ndim == 1 else observation[0][:, -1]
        action = (frames.reshape(len(reward), -1)[:, :1] % 100).astype(np.int32)
        parameters = np.full((len(reward), 2), 0.5, np.float32)
        return Decisions(action, parameters, count[:, 0].astype(np.float32), (count + 1,))


class DirectTransport:
    """Requests come from `send`; answers are kept in `answered`."""

    def __init__(self, slots: int) -> None:
        self.lock = FairLock()
        self.leases = LeaseTable(slots, grace_seconds=30.0)
        self.answered: list[int] = []
        self._arrived: list[Group] = []
        self._event = threading.Event()

    @property
    def live_groups(self) -> int:
        return self.leases.live_groups

    @property
    def live_training_groups(self) -> int:
        return self.leases.live_training_groups

    def wait(self, timeout_seconds: float) -> None:
        self._event.wait(max(0.0, timeout_seconds))
        self._event.clear()

    def wake(self) -> None:
        self._event.set()

    def take(self) -> list[Group]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def is_current(self, group: Group, epoch: int) -> bool:
        return group.epoch == epoch and self.leases.groups.get(group.number) is group

    def answer(self, groups: Iterable[Group]) -> None:
        self.answered += [group.number for group in groups]

    def put(self, group: Group) -> None:
        self._arrived.append(group)
        self._event.set()


class Harness:
    """A learner without network and trainer; one uint8 tensor of one element, `frame`."""

    def __init__(
        self,
        slots: int = 8,
        unroll_length: int = 4,
        stack: int = 1,
        transport: InferenceTransport | None = None,
        config: LearnerConfig | None = None,
        roles: npt.NDArray[np.uint8] | None = None,
        **settings: object,
    ) -> None:
        self.config = config or LearnerConfig.model_validate(
            {"max_slots": slots, "unroll_length": unroll_length, **settings}
        )
        run_length = training.run_length(self.config)
        self.spec = spec = EnvironmentSpec(
            (TensorSpec("frame", DataType.UINT8, (1,), stack=stack),), DiscreteActionSpec((100,))
        )
        ring = unrolls.ring_length(spec, run_length, self.config.unrolls_per_slot)
        self.store = StepStore.create(StoreLayout(spec, slots, ring, 2, 1))
        # Magic values: what is read without having been written shows.
        self.store.observation[0][:] = 251
        self.store.reward[:] = 1e9
        self.state = (np.full((slots, 1), 777, np.int64),)
        self.direct = DirectTransport(slots)
        roles = self.direct.leases.roles if roles is None else roles
        self.assembler = unrolls.UnrollAssembler(
            self.store, self.state, run_length, self.config.unrolls_per_slot, roles
        )
        self.policy = CountingPolicy()
        self.statistics = Statistics(
            slots, CollectorRegistry(), roles, self.direct.leases.environments
        )
        self.loop = InferenceLoop(
            self.config,
            self.store,
            transport or self.direct,
            self.policy,
            self.state,
            self.assembler,
            self.statistics,
            CpuTime(),
        )

    def lease(self, groups: int, slots_per_group: int, role: Role = Role.TRAINING) -> list[Group]:
        lease = self.direct.leases.join("test", groups, slots_per_group, "", role)
        for group in lease.groups:
            self.store.slot_incarnation[group.slots] = 0
        return [self.direct.leases.open(lease.token, i, 0) for i in range(groups)]

    def send(
        self,
        group: Group,
        step_type: int | list[int],
        frame: int = 0,
        reward: float = 0.0,
        incarnation: int | list[int] = 1,
    ) -> None:
        """Writes a request as a front end does."""
        slots = group.slots
        rows = self.store.written[slots] % self.store.layout.ring
        self.store.observation[0][slots, rows] = frame
        self.store.reward[slots, rows] = reward
        self.store.discount[slots, rows] = 1.0
        self.store.step_type[slots, rows] = step_type
        self.store.incarnation[slots, rows] = incarnation
        self.direct.put(group)
