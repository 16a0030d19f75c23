from __future__ import annotations

import grpc
import pytest

from services.learner.leases import LeaseTable
from services.learner.roles import Role
from services.shared.status import StatusError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _table(slots: int = 8) -> tuple[LeaseTable, Clock]:
    clock = Clock()
    return LeaseTable(slots, grace_seconds=30.0, clock=clock), clock


def test_lowest_slots_first_and_each_only_once() -> None:
    table, _ = _table()
    a = table.join("a", groups=2, slots_per_group=2, token="")
    b = table.join("b", groups=1, slots_per_group=3, token="")
    assert [g.slots.tolist() for g in a.groups] == [[0, 1], [2, 3]]
    assert [g.slots.tolist() for g in b.groups] == [[4, 5, 6]]
    assert table.leased_slots == 7


def test_too_few_slots_names_both_numbers() -> None:
    table, _ = _table()
    table.join("a", 1, 6, "")
    with pytest.raises(StatusError, match="3 env slots asked for by 'b', 2 of 8 are free") as error:
        table.join("b", 1, 3, "")
    assert error.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_slots_return_after_the_grace_period_without_streams() -> None:
    table, clock = _table()
    lease = table.join("a", 2, 4, "")
    first = table.open(lease.token, 0, front_end=0)
    second = table.open(lease.token, 1, front_end=0)
    clock.now = 100.0
    assert table.expire() == []
    assert (table.live_groups, table.live_slots) == (2, 8)
    table.close(first.number, first.epoch)
    clock.now = 200.0
    assert table.expire() == []  # the other stream lives
    table.close(second.number, second.epoch)
    assert (table.live_groups, table.live_slots) == (0, 0)
    clock.now = 229.9
    assert table.expire() == []
    clock.now = 230.0
    assert table.expire() == [lease]
    assert table.leased_slots == 0
    with pytest.raises(StatusError, match="join again") as error:
        table.open(lease.token, 0, 0)
    assert error.value.code is grpc.StatusCode.NOT_FOUND


def test_a_token_gives_the_same_slots_again() -> None:
    table, _ = _table()
    table.join("other", 1, 2, "")
    lease = table.join("a", 2, 2, "")
    slots = [g.slots.tolist() for g in lease.groups]
    again = table.join("a", 2, 2, lease.token)
    assert [g.slots.tolist() for g in again.groups] == slots == [[2, 3], [4, 5]]
    assert again.token == lease.token
    with pytest.raises(StatusError, match="2 groups of 2 slots, asked for again with 1 of 4"):
        table.join("a", 1, 4, lease.token)


def test_a_newer_stream_owns_the_group() -> None:
    table, _ = _table()
    lease = table.join("a", 1, 2, "")
    group = table.open(lease.token, 0, front_end=0)
    old_epoch = group.epoch
    assert table.open(lease.token, 0, front_end=1) is group
    table.close(group.number, old_epoch)
    assert group.front_end == 1


def test_epochs_never_repeat_for_a_group_number() -> None:
    table, clock = _table()
    lease = table.join("a", 1, 8, "")
    old = table.open(lease.token, 0, 0)
    table.close(old.number, old.epoch)
    clock.now = 30.0
    group = table.join("b", 1, 8, "").groups[0]
    assert group.number == old.number
    assert group.epoch > old.epoch


@pytest.mark.parametrize(("groups", "slots"), [(0, 1), (1, 0), (-1, 4)])
def test_counts_below_one_are_refused(groups: int, slots: int) -> None:
    table, _ = _table()
    with pytest.raises(StatusError, match="allowed: 1 or more"):
        table.join("a", groups, slots, "")


def test_unknown_group_is_refused() -> None:
    table, _ = _table()
    lease = table.join("a", 2, 1, "")
    with pytest.raises(StatusError, match="group 2 of 'a', allowed: 0 to 1"):
        table.open(lease.token, 2, 0)


def test_training_slots_have_places_among_those_that_are_leased() -> None:
    table, clock = _table()
    places = table.places  # The same array all the time.
    a = table.join("a", groups=1, slots_per_group=1, token="")
    assert places[0] == 0
    table.open(a.token, 0, 0)
    table.join("b", groups=1, slots_per_group=2, token="")
    assert places[:3].tolist() == [0, 0.5, 1]
    table.join("e", 1, 2, "", Role.EVALUATION)
    assert places[:3].tolist() == [0, 0.5, 1]
    clock.now = 30.0
    table.expire()  # b and e, which never opened a stream
    c = table.join("c", groups=1, slots_per_group=5, token="")
    table.open(c.token, 0, 0)
    assert places[:6].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    table.close(a.groups[0].number, a.groups[0].epoch)
    clock.now = 60.0
    table.expire()  # a: the lowest slot is free
    assert places[1:6].tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_opponents_have_no_place_in_training() -> None:
    table = LeaseTable(8, grace_seconds=30.0, opponent_agents=1)
    table.join("a", 1, 6, "", agents=2)
    assert table.places[[0, 2, 4]].tolist() == [0, 0.5, 1]


def test_an_actor_service_counts_once_while_any_of_its_workers_has_a_stream() -> None:
    table, clock = _table()
    first = table.join("pod-a/0", 2, 1, "")
    second = table.join("pod-a/1", 1, 1, "")
    other = table.join("pod-b/0", 1, 1, "")
    unnamed = table.join("", 1, 1, "")
    assert table.live_actors == 0  # leases alone do not act
    groups = [table.open(first.token, 0, 0), table.open(first.token, 1, 0)]
    assert table.live_actors == 1
    groups.append(table.open(second.token, 0, 0))
    assert table.live_actors == 1
    table.open(other.token, 0, 0)
    table.open(unnamed.token, 0, 0)
    assert table.live_actors == 3
    for group in groups[:2]:
        table.close(group.number, group.epoch)
    assert table.live_actors == 3
    table.close(groups[2].number, groups[2].epoch)
    assert table.live_actors == 2
    # A stream that replaces another of its group changes nothing.
    table.open(other.token, 0, 1)
    assert table.live_actors == 2
    table.join("pod-b/0", 1, 1, other.token)
    assert table.live_actors == 1
    clock.now = 100.0
    assert len(table.expire()) == 3
    assert table.live_actors == 1


def test_evaluation_takes_the_highest_slots_and_moves_no_training_slot() -> None:
    table, clock = _table()
    evaluation = table.join("e", 1, 2, "", Role.EVALUATION)
    assert evaluation.groups[0].slots.tolist() == [6, 7]
    assert table.training_slots == 0
    training = table.join("a", 2, 2, "")
    assert [g.slots.tolist() for g in training.groups] == [[0, 1], [2, 3]]
    assert (table.training_slots, table.leased_slots) == (4, 6)
    assert table.roles.tolist() == [Role.TRAINING] * 6 + [Role.EVALUATION] * 2
    table.open(evaluation.token, 0, 0)
    assert (table.live_groups, table.live_training_groups, table.live_actors) == (1, 0, 0)
    table.open(training.token, 1, 0)
    assert (table.live_groups, table.live_training_groups, table.live_actors) == (2, 1, 1)
    with pytest.raises(StatusError, match="is for EVALUATION, asked for again for TRAINING"):
        table.join("e", 1, 2, evaluation.token)
    # A slot that was evaluated is trained on when it is leased for that.
    table.close(evaluation.groups[0].number, evaluation.groups[0].epoch)
    clock.now = 40.0
    table.join("b", 1, 4, "")
    assert table.roles.tolist() == [Role.TRAINING] * 8
    assert table.training_slots == 8


def test_a_lease_whose_join_was_given_up_is_free_at_once() -> None:
    table, _ = _table()
    table.abandon("nobody")
    table.abandon(table.join("a", 1, 2, "").token)
    assert table.leased_slots == 0
    # One that was used or asked for again has its grace period.
    used = table.join("b", 1, 2, "")
    group = table.open(used.token, 0, 0)
    table.close(group.number, group.epoch)
    again = table.join("c", 1, 2, "")
    table.join("c", 1, 2, again.token)
    for lease in (used, again):
        table.abandon(lease.token)
    assert table.leased_slots == 4


def test_opponents_are_not_evaluated() -> None:
    table = LeaseTable(8, grace_seconds=30.0, opponent_agents=1)
    lease = table.join("e", 1, 4, "", Role.EVALUATION, agents=2)
    roles = table.roles[lease.groups[0].slots].tolist()
    assert roles == [Role.EVALUATION, Role.OPPONENT] * 2
    assert table.evaluated.nonzero()[0].tolist() == lease.groups[0].slots.tolist()
    assert (len(table.evaluated_environments), table.training_slots, table.leased_slots) == (
        2,
        0,
        4,
    )
