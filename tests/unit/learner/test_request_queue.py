from __future__ import annotations

import math

import numpy as np

from services.learner.leases import Group
from services.learner.request_queue import RequestQueue
from services.learner.roles import Role
from services.learner.unrolls import IntArray


class World:
    """Groups with their streams and rooms, and the queue that asks about them."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.full: set[int] = set()
        self.queue = RequestQueue(self._is_current, self._has_room)

    def group(self, number: int, slots: int = 2, role: Role = Role.TRAINING) -> Group:
        self.epochs[number] = 1
        return Group(number, "lease", np.arange(slots) + 10 * number, role, epoch=1)

    def take(self, max_slots: int) -> list[int]:
        return [request.group.number for request in self.queue.take(max_slots)]

    def _is_current(self, group: Group, epoch: int) -> bool:
        return self.epochs.get(group.number) == epoch

    def _has_room(self, slots: IntArray) -> bool:
        return int(slots[0]) // 10 not in self.full


def test_the_oldest_go_first_up_to_the_limit() -> None:
    world = World()
    world.queue.add([world.group(0), world.group(1, slots=3), world.group(2)], 5.0)
    assert (world.queue.ready_slots, world.queue.oldest, world.queue.waiting()) == (7, 5.0, 3)
    assert world.take(5) == [0, 1]
    assert world.take(1) == [2]  # larger than the limit, but alone
    assert world.take(1) == []
    assert (world.queue.ready_slots, world.queue.oldest, world.queue.waiting()) == (0, math.inf, 0)


def test_what_was_held_back_goes_by_when_it_arrived() -> None:
    world = World()
    a, b, c = (world.group(number) for number in range(3))
    world.full = {1}
    world.queue.add([a], 1.0)
    world.queue.add([b], 2.0)
    world.queue.add([c], 3.0)
    assert (world.queue.held, world.queue.ready_slots, world.queue.waiting()) == (1, 4, 3)
    world.full = {0, 2}  # what once had room keeps it
    world.queue.add([], 4.0)
    assert (world.queue.held, world.queue.ready_slots) == (0, 6)
    assert world.take(100) == [0, 1, 2]


def test_a_request_whose_stream_has_ended_is_dropped() -> None:
    world = World()
    groups = [world.group(number) for number in range(4)]
    world.full = {3}
    world.queue.add(groups, 1.0)
    del world.epochs[0], world.epochs[3]
    world.epochs[2] = 2  # a newer stream, whose request is still to come
    world.queue.add([], 2.0)
    assert (world.queue.held, world.queue.waiting()) == (0, 2)
    assert world.take(100) == [1]
    assert (world.queue.ready_slots, world.queue.waiting()) == (0, 0)


def test_requests_are_counted_by_role() -> None:
    world = World()
    world.full = {2}
    evaluation = world.group(0, role=Role.EVALUATION)
    world.queue.add([evaluation, world.group(1), world.group(2)], 1.0)
    assert world.queue.waiting(Role.TRAINING) == 2
    assert world.queue.waiting(Role.EVALUATION) == 1
    assert world.take(2) == [0]
    assert world.queue.waiting(Role.EVALUATION) == 0
