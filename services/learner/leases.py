"""Leases: which actor holds which env slots, and which stream serves which group.

The transport's control thread calls it for each Join and each stream that opens or ends; it
knows nothing of gRPC or shared memory.
"""

from __future__ import annotations

import collections
import dataclasses
import secrets
import time
from collections.abc import Callable

import grpc
import numpy as np
import numpy.typing as npt

from services.learner.roles import Role
from services.shared.status import StatusError


@dataclasses.dataclass(eq=False)
class Group:
    """Env slots that step together.

    Attributes:
      number: Index into the step store's group arrays.
      lease_token: Of the lease it belongs to.
      slots: int64 [k].
      role: What becomes of its records.
      epoch: Grows with each stream that opens; the newest stream owns the group.
      front_end: Which front end the group's stream is on; None: no stream.
    """

    number: int
    lease_token: str
    slots: npt.NDArray[np.int64]
    role: Role
    epoch: int
    front_end: int | None = None


@dataclasses.dataclass(eq=False)
class Lease:
    """An actor's claim on its groups."""

    token: str
    actor_name: str
    role: Role
    groups: list[Group]
    idle_since: float | None
    # Nobody has used it since the one Join that it was made for.
    is_unused: bool = True

    @property
    def actor(self) -> str:
        """The actor service that the worker belongs to: workers are named `actor/number`."""
        return self.actor_name.rpartition("/")[0] or self.actor_name


class LeaseTable:
    """All leases of a learner.

    Training takes the lowest free slots, as only slots that have been used take memory, and
    evaluation the highest.

    Attributes:
      roles: uint8 [slots], of each slot's present or last lease.
      evaluated: bool [slots], of environments that are evaluated, their opponents' too; likewise.
      environments: int64 [slots], the first slot of each slot's environment.
      places: float64 [slots], of those that are leased for training: from 0, the first of them,
        evenly to 1, the last.
      groups: The leased groups by number.
      live_groups: Number of groups with an open stream.
      live_training_groups: Those of them that are trained on.
      live_slots: Number of slots of live groups.
    """

    def __init__(
        self,
        max_slots: int,
        grace_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        opponent_agents: int = 0,
    ) -> None:
        """Creates a table in which all slots are free.

        Args:
          max_slots: Number of slots.
          grace_seconds: How long a lease lives without a stream.
          clock: In seconds.
          opponent_agents: So many agents of each environment, the last ones, are opponents.
        """
        self._opponent_agents = opponent_agents
        self._max_slots = max_slots
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._free_slots = set(range(max_slots))
        self._free_groups = set(range(max_slots))
        # Outlives the leases, so that no late message of an old holder matches a new one.
        self._last_epochs = [0] * max_slots
        self.roles: npt.NDArray[np.uint8] = np.full(max_slots, Role.TRAINING, np.uint8)
        self.evaluated: npt.NDArray[np.bool_] = np.zeros(max_slots, np.bool_)
        self.environments = np.arange(max_slots, dtype=np.int64)
        self.groups: dict[int, Group] = {}
        self.live_groups = 0
        self.live_training_groups = 0
        self.live_slots = 0
        self._live_groups_of: collections.Counter[str] = collections.Counter()
        self.places: npt.NDArray[np.float64] = np.zeros(max_slots)

    @property
    def leased_slots(self) -> int:
        """Number of slots that are not free."""
        return self._max_slots - len(self._free_slots)

    @property
    def training_slots(self) -> int:
        """Number of slots that are leased for training; any thread may ask."""
        groups = list(self.groups.values())
        return sum(int(np.sum(self.roles[group.slots] == Role.TRAINING)) for group in groups)

    @property
    def evaluated_environments(self) -> set[int]:
        """Environments that are leased for evaluation, by first slot; any thread may ask."""
        groups = list(self.groups.values())
        played = [self.environments[g.slots] for g in groups if g.role is Role.EVALUATION]
        return {slot for slots in played for slot in slots.tolist()}

    @property
    def live_actors(self) -> int:
        """Number of actor services that train and have a stream open; any thread may ask."""
        return len(self._live_groups_of)

    def join(
        self,
        actor_name: str,
        groups: int,
        slots_per_group: int,
        token: str,
        role: Role = Role.TRAINING,
        agents: int = 1,
    ) -> Lease:
        """Leases slots, or gives an actor that returns with its token the same ones.

        Args:
          actor_name: For messages.
          groups: How many.
          slots_per_group: Those of an environment's agents follow each other.
          token: Of the lease that is asked for again, or empty.
          role: What becomes of the records of all agents but opponents.
          agents: Of each environment.

        Raises:
          StatusError: INVALID_ARGUMENT for counts below 1, or other counts or another role than
            the token's lease has, NOT_FOUND for an unknown token, RESOURCE_EXHAUSTED without
            enough slots.
        """
        if groups < 1 or slots_per_group < 1:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{groups} groups of {slots_per_group} slots asked for, allowed: 1 or more of each",
            )
        self.expire()
        if token:
            return self._rejoin(token, groups, slots_per_group, role)
        wanted = groups * slots_per_group
        if wanted > len(self._free_slots):
            raise StatusError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{wanted} env slots asked for by {actor_name!r}, {len(self._free_slots)} of"
                f" {self._max_slots} are free (learner.max_slots)",
            )
        ordered = sorted(self._free_slots)
        slots = ordered[:wanted] if role is Role.TRAINING else ordered[-wanted:]
        numbers = sorted(self._free_groups)[:groups]
        self._free_slots.difference_update(slots)
        self._free_groups.difference_update(numbers)
        roles_of_agents = np.full(agents, role, np.uint8)
        roles_of_agents[agents - self._opponent_agents :] = Role.OPPONENT
        self.roles[slots] = np.tile(roles_of_agents, wanted // agents)
        self.evaluated[slots] = role is Role.EVALUATION
        self.environments[slots] = np.repeat(slots[::agents], agents)
        token = secrets.token_hex(16)
        shares = np.array(slots, np.int64).reshape(groups, slots_per_group)
        lease = Lease(
            token,
            actor_name,
            role,
            [
                Group(number, token, share, role, self._last_epochs[number] + 1)
                for number, share in zip(numbers, shares, strict=True)
            ],
            idle_since=self._clock(),
        )
        self._leases[token] = lease
        self.groups.update({group.number: group for group in lease.groups})
        self._place()
        return lease

    def _rejoin(self, token: str, groups: int, slots_per_group: int, role: Role) -> Lease:
        lease = self._find(token)
        held = len(lease.groups), len(lease.groups[0].slots)
        if held != (groups, slots_per_group):
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"lease of {lease.actor_name!r} has {held[0]} groups of {held[1]} slots, asked for"
                f" again with {groups} of {slots_per_group}",
            )
        if lease.role is not role:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"lease of {lease.actor_name!r} is for {lease.role.name}, asked for again for"
                f" {role.name}",
            )
        for group in lease.groups:
            group.epoch += 1
            self._set_front_end(group, None)
        lease.idle_since = self._clock()
        lease.is_unused = False
        return lease

    def open(self, token: str, group_index: int, front_end: int) -> Group:
        """Gives a group to a new stream; an older stream of it has lost it.

        Raises:
          StatusError: NOT_FOUND for an unknown lease, INVALID_ARGUMENT for a group it lacks.
        """
        self.expire()
        lease = self._find(token)
        if not 0 <= group_index < len(lease.groups):
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"group {group_index} of {lease.actor_name!r}, allowed: 0 to"
                f" {len(lease.groups) - 1}",
            )
        group = lease.groups[group_index]
        group.epoch += 1
        self._set_front_end(group, front_end)
        lease.idle_since = None
        lease.is_unused = False
        return group

    def check(self, token: str) -> None:
        """Raises StatusError, NOT_FOUND, if there is no lease of this token."""
        self._find(token)

    def close(self, number: int, epoch: int) -> None:
        """Notes that a stream ended; nothing happens if a newer one owns its group."""
        group = self.groups.get(number)
        if group is None or group.epoch != epoch:
            return
        self._set_front_end(group, None)
        lease = self._leases[group.lease_token]
        if all(other.front_end is None for other in lease.groups):
            lease.idle_since = self._clock()

    def expired(self) -> list[Lease]:
        """Leases that had no stream for the grace period; may be called by any thread."""
        deadline = self._clock() - self._grace_seconds
        return [
            lease
            for lease in list(self._leases.values())
            if (idle_since := lease.idle_since) is not None and idle_since <= deadline
        ]

    def expire(self) -> list[Lease]:
        """Frees the slots of the expired leases and returns these."""
        expired = self.expired()
        self._free(expired)
        return expired

    def abandon(self, token: str) -> None:
        """Frees a lease whose Join was given up before its answer came.

        Nothing happens if it has been used, or asked for again by its token.
        """
        lease = self._leases.get(token)
        if lease is not None and lease.is_unused:
            self._free([lease])

    def _free(self, leases: list[Lease]) -> None:
        for lease in leases:
            del self._leases[lease.token]
            for group in lease.groups:
                del self.groups[group.number]
                self._last_epochs[group.number] = group.epoch
                self._free_groups.add(group.number)
                self._free_slots.update(group.slots.tolist())
        if leases:
            self._place()

    def _place(self) -> None:
        leased = self.roles == Role.TRAINING
        leased[list(self._free_slots)] = False
        count = int(np.count_nonzero(leased))
        self.places[leased] = np.arange(count) / max(1, count - 1)

    def _set_front_end(self, group: Group, front_end: int | None) -> None:
        change = (front_end is not None) - (group.front_end is not None)
        group.front_end = front_end
        if not change:
            return
        self.live_groups += change
        self.live_slots += change * len(group.slots)
        if group.role is not Role.TRAINING:
            return
        self.live_training_groups += change
        actor = self._leases[group.lease_token].actor
        self._live_groups_of[actor] += change
        if not self._live_groups_of[actor]:
            del self._live_groups_of[actor]

    def _find(self, token: str) -> Lease:
        lease = self._leases.get(token)
        if lease is None:
            raise StatusError(
                grpc.StatusCode.NOT_FOUND,
                f"no lease {token[:8]!r}...: it expired {self._grace_seconds} s after its last"
                " stream ended, or the learner restarted; join again",
            )
        return lease
