"""Which of a run's learners a worker joins, and when it moves to another one.

A worker stays with one learner, since its environments' state is there. So that all learners have
equally many environments, also after one was added, it joins the one that has the fewest, and
looks again now and then.
"""

from __future__ import annotations

import asyncio
import random
import time

import grpc

from services.shared import rpc
from services.shared.config import TlsConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc

_STATUS_SECONDS = 2.0

Statuses = dict[str, inference_pb2.GetStatusResponse]


class Learners:
    """All learners, for one worker."""

    def __init__(
        self,
        addresses: list[str],
        keepalive_seconds: float,
        tls: TlsConfig | None,
        worker: int,
        look_seconds: float,
    ) -> None:
        """Sets which there are.

        Args:
          addresses: host:port of each.
          keepalive_seconds: Of connections.
          tls: The actor's certificate; None: no encryption.
          worker: This worker's number: where several learners are as good, those of one actor
            take different ones.
          look_seconds: Mean time from one `is_due` to the next.
        """
        first = worker % len(addresses)
        self._addresses = addresses[first:] + addresses[:first]
        self._keepalive_seconds = keepalive_seconds
        self._tls = tls
        self._look_seconds = look_seconds
        self._due = self._next_look()

    @property
    def are_several(self) -> bool:
        """Whether there is a choice."""
        return len(self._addresses) > 1

    def shuffle(self) -> None:
        """Makes the choice anew: the old one led to nothing."""
        random.shuffle(self._addresses)

    def is_due(self) -> bool:
        """Whether it is time for `shall_leave`; once in a while."""
        if not self.are_several or time.monotonic() < self._due:
            return False
        self._due = self._next_look()
        return True

    async def choose(self) -> str:
        """The learner with the fewest leased slots; one that does not answer comes last."""
        if not self.are_several:
            return self._addresses[0]
        statuses = await self._statuses()
        return fewest_leased(self._addresses, statuses)

    async def shall_leave(self, address: str, slots: int) -> bool:
        """Whether a worker of so many slots shall look for another learner."""
        statuses = await self._statuses()
        if len(statuses) < len(self._addresses):  # then training stands still, too
            return False
        live = {name: status.live_slots for name, status in statuses.items()}
        return random.random() < probability_to_leave(live, address, slots)

    def _next_look(self) -> float:
        return time.monotonic() + self._look_seconds * random.uniform(0.5, 1.5)

    async def _statuses(self) -> Statuses:
        answers = await asyncio.gather(*map(self._status, self._addresses))
        return {a: s for a, s in zip(self._addresses, answers, strict=True) if s is not None}

    async def _status(self, address: str) -> inference_pb2.GetStatusResponse | None:
        async with rpc.aio_channel(address, self._keepalive_seconds, self._tls) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            try:
                status: inference_pb2.GetStatusResponse = await stub.GetStatus(
                    inference_pb2.GetStatusRequest(), timeout=_STATUS_SECONDS
                )
            except grpc.aio.AioRpcError:
                return None
            return status


def fewest_leased(addresses: list[str], statuses: Statuses) -> str:
    """The first of the addresses whose learner has the fewest leased slots."""
    answering = [address for address in addresses if address in statuses]
    return min(answering or addresses, key=lambda a: statuses[a].leased_slots if answering else 0)


def probability_to_leave(live_slots: dict[str, int], address: str, slots: int) -> float:
    """How probable it shall be that a worker leaves its learner.

    All workers decide at about the same time, without knowing of each other: if each leaves with
    probability (own - mean) / own, just the surplus does, on average. Nobody leaves for less than
    would make the other learner the fuller one.

    Args:
      live_slots: Slots of connected actors of each learner.
      address: The worker's learner.
      slots: The worker's slots.
    """
    own = live_slots[address]
    if own - min(live_slots.values()) < 2 * slots:
        return 0.0
    return (own - sum(live_slots.values()) / len(live_slots)) / own
