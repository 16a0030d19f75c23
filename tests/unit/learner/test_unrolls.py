from __future__ import annotations

from typing import Any

import numpy as np

from services.learner import unrolls
from services.learner.roles import Role
from tests.unit.learner.harness import ABSENT, FIRST, LAST, MID, Harness


def _take_all(harness: Harness) -> list[unrolls.RecordBatch]:
    """Each finished unroll as a batch of one."""
    batches = []
    while (entries := harness.assembler.take(1, 0.0)) is not None:
        batches.append(harness.assembler.gather(entries))
        harness.assembler.release(entries)
    return batches


def test_unrolls_share_one_record_and_hold_what_arrived() -> None:
    harness = Harness(slots=1, unroll_length=4, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    batches = []
    for record in range(13):
        harness.send(group, FIRST if record == 0 else MID, frame=record, reward=record / 2)
        harness.loop.step()
        batches += _take_all(harness)
    assert [b.observation[0][0, 1:, 0].tolist() for b in batches] == [
        [0, 1, 2, 3, 4],
        [4, 5, 6, 7, 8],
        [8, 9, 10, 11, 12],
    ]
    np.testing.assert_array_equal(batches[1].reward, [[2.0, 2.5, 3.0, 3.5, 4.0]])
    np.testing.assert_array_equal(batches[1].action[0, :, 0], [4, 5, 6, 7, 8])
    np.testing.assert_array_equal(batches[1].previous_action[0, :, 0], [3, 4, 5, 6, 7])
    assert [b.environment_steps for b in batches] == [4, 4, 4]


def test_state_belongs_to_the_first_record_across_an_episode_end() -> None:
    harness = Harness(slots=1, unroll_length=4, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    steps = [FIRST, MID, MID, MID, MID, MID, LAST, FIRST, MID, MID, MID, MID, MID]
    batches = []
    for step in steps:
        harness.send(group, step)
        harness.loop.step()
        batches += _take_all(harness)
    # Before record 0 whatever the slot held (FIRST zeroes it), before record 4 four records,
    # before record 8 (after LAST at 6, FIRST at 7) one.
    assert [int(b.initial_state[0][0, 0]) for b in batches] == [777, 4, 1]
    assert batches[1].environment_steps == 3  # from LAST to FIRST is no step
    assert batches[1].step_type[0].tolist() == [MID, MID, LAST, FIRST, MID]


def test_a_new_incarnation_begins_a_new_unroll() -> None:
    harness = Harness(slots=1, unroll_length=4, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    for record, (step, incarnation) in enumerate(
        [(FIRST, 1), (MID, 1), (MID, 1), (FIRST, 2), (MID, 2), (MID, 2), (MID, 2), (MID, 2)]
    ):
        harness.send(group, step, frame=record, incarnation=incarnation)
        harness.loop.step()
    (batch,) = _take_all(harness)
    assert batch.observation[0][0, 1:, 0].tolist() == [3, 4, 5, 6, 7]
    assert harness.assembler.received_steps.tolist() == [6]  # 8 records, 2 of them FIRST
    assert harness.assembler.dropped_steps.tolist() == [2]  # from record 0 to record 2
    assert harness.assembler.unfinished_steps() == 0  # record 7 completes its unroll


def test_absent_environments_leave_their_slots_alone() -> None:
    harness = Harness(slots=2, unroll_length=2, inference_batch_size=2)
    (group,) = harness.lease(1, 2)
    for record, steps in enumerate([[FIRST, FIRST], [MID, ABSENT], [MID, ABSENT], [MID, FIRST]]):
        harness.send(group, steps, frame=record, incarnation=[1, 1 if record < 3 else 2])
        harness.loop.step()
    assert harness.store.written.tolist() == [4, 2]
    (batch,) = _take_all(harness)
    assert batch.observation[0][0, 1:, 0].tolist() == [0, 1, 2]


def test_a_slot_waits_for_training_when_its_ring_is_full() -> None:
    harness = Harness(slots=1, unroll_length=4, unrolls_per_slot=1, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    answered = 0
    for record in range(20):
        harness.send(group, FIRST if record == 0 else MID, frame=record)
        harness.loop.step()
        answered += len(harness.direct.answered) > answered
        if answered <= record:
            break
    # One unroll is finished (records 0 to 4); record 8 would finish the second.
    assert answered == 8
    assert len(harness.assembler) == 1
    entries = harness.assembler.take(8, 0.0)
    assert entries is not None
    batch = harness.assembler.gather(entries)
    harness.loop.step()
    assert len(harness.direct.answered) == 8  # taken but not yet released
    harness.assembler.release(entries)
    harness.loop.step()
    assert len(harness.direct.answered) == 9
    assert batch.observation[0][0, 1:, 0].tolist() == [0, 1, 2, 3, 4]


def test_random_steps_and_trainings_lose_nothing_and_mix_nothing() -> None:
    rng = np.random.default_rng(0)
    harness = Harness(slots=6, unroll_length=3, unrolls_per_slot=2, stack=3, inference_batch_size=1)
    groups = harness.lease(3, 2)
    # The slow reference: each incarnation's frames in a list.
    history: dict[tuple[int, int], list[tuple[int, int]]] = {}
    incarnation = [1, 1, 1]
    previous = [LAST, LAST, LAST]
    renewed = [True, True, True]
    waiting = [False, False, False]
    taken: list[unrolls.RecordBatch] = []
    frame = 0
    for _ in range(3000):
        i = int(rng.integers(3))
        if not waiting[i]:
            if rng.random() < 0.03:
                incarnation[i] += 1
                renewed[i] = True
            begins = renewed[i] or previous[i] == LAST
            step = FIRST if begins else int(rng.choice([MID, MID, MID, LAST]))
            renewed[i], previous[i] = False, step
            frame = (frame + 1) % 250
            harness.send(groups[i], step, frame=frame, incarnation=incarnation[i])
            for slot in groups[i].slots.tolist():
                history.setdefault((slot, incarnation[i]), []).append((frame, step))
            waiting[i] = True
        before = len(harness.direct.answered)
        harness.loop.step()
        for number in harness.direct.answered[before:]:
            waiting[number] = False
        if rng.random() < 0.3:
            taken += _take_all(harness)
    taken += _take_all(harness)
    expected = []
    for records in history.values():
        frames = [f for f, _ in records]
        for start in range(0, len(records) - 3, 3):
            stacks = []
            for t in range(start, start + 4):
                first = max(i for i in range(t + 1) if records[i][1] == FIRST)
                stacks.append([frames[max(first, t - j)] for j in (2, 1, 0)])
            expected.append(stacks)
    got = [batch.observation[0][0, batch.stack_index[0][0], 0].tolist() for batch in taken]
    held = 6  # unrolls whose last record's answer training holds back are not finished yet
    assert len(expected) - held <= len(got) <= len(expected)
    remaining = list(expected)
    for stacks in got:
        remaining.remove(stacks)


def test_an_unroll_is_safe_from_the_moment_it_is_complete() -> None:
    # Training gives unroll A back while the policy answers the record that completes unroll B.
    harness = Harness(slots=1, unroll_length=4, unrolls_per_slot=2, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    sent = 0

    def step() -> None:
        nonlocal sent
        harness.send(group, MID if sent else FIRST, frame=sent)
        sent += 1
        harness.loop.step()

    while not len(harness.assembler):
        step()
    a = harness.assembler.take(1, 0.0)
    assert a is not None
    act = harness.policy.act

    def release_meanwhile(*arguments: Any) -> Any:
        if sent == 9:
            harness.assembler.release(a)
        return act(*arguments)

    harness.policy.act = release_meanwhile  # type: ignore[assignment, method-assign]
    answered = -1
    while len(harness.direct.answered) != answered:  # until the slot is held back
        answered = len(harness.direct.answered)
        step()
    b = harness.assembler.take(1, 0.0)
    assert b is not None
    batch = harness.assembler.gather(b)
    assert batch.observation[0][0, 1:, 0].tolist() == [4, 5, 6, 7, 8]
    assert batch.initial_state[0].tolist() == [[4]]


def test_the_bound_of_the_policy_lag() -> None:
    # The cartpole preset: 16 slots with one unroll waiting and one under way, batches of 4.
    assert unrolls.policy_lag_bound(16, 4, unrolls_per_slot=1, sample_reuse=1) == 9
    assert unrolls.policy_lag_bound(6, 4, unrolls_per_slot=2, sample_reuse=3) == 3 * (3 * 6 / 4 + 1)


def test_evaluation_slots_make_no_unrolls_and_are_never_held() -> None:
    harness = Harness(
        slots=4, unroll_length=2, stack=3, inference_batch_size=2, inference_max_wait_seconds=0
    )
    (training,) = harness.lease(1, 1)
    (evaluation,) = harness.lease(1, 1, Role.EVALUATION)
    for n, step_type in enumerate([FIRST, MID, MID, LAST] * 6):
        assert harness.assembler.has_room(evaluation.slots)
        harness.send(evaluation, step_type, frame=n)
        harness.loop.step()
    # Frames are stacked as ever: those of an episode's FIRST, MID, MID, LAST, the first repeated.
    seen = [s[0, :, 0].tolist() for s in harness.policy.seen[-4:]]
    assert seen == [[20, 20, 20], [20, 20, 21], [20, 21, 22], [21, 22, 23]]
    assert len(harness.assembler) == 0
    assert harness.assembler.dropped_steps.sum() == harness.assembler.received_steps.sum() == 0
    for step_type in (FIRST, MID, MID):
        harness.send(training, step_type)
        harness.send(evaluation, step_type)
        harness.loop.step()
    (unroll,) = harness.assembler.take(4, 1.0) or []
    assert unroll.slot == training.slots[0]


def test_a_slot_that_changes_its_role_keeps_the_unroll_that_training_has_not_taken() -> None:
    harness = Harness(slots=1, unroll_length=2, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    for n, step_type in enumerate([FIRST, MID, MID]):
        harness.send(group, step_type, frame=n)
        harness.loop.step()
    table = harness.direct.leases
    table.close(group.number, group.epoch)
    table._grace_seconds = 0.0
    table.expire()
    table._grace_seconds = 30.0
    (group,) = harness.lease(1, 1, Role.EVALUATION)
    steps = 0
    while harness.assembler.has_room(group.slots):
        harness.send(group, MID if steps else FIRST, frame=100)
        harness.loop.step()
        steps += 1
    assert steps > 0
    unrolls = harness.assembler.take(1, 1.0)
    assert unrolls is not None
    records = harness.assembler.gather(unrolls)
    assert records.observation[0][0, -3:, 0].tolist() == [0, 1, 2]
    harness.assembler.release(unrolls)
    assert harness.assembler.has_room(group.slots)
