from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from services.learner.roles import Role
from tests.unit.learner.harness import FIRST, LAST, MID, Harness


def test_frames_are_stacked_oldest_first_and_repeat_the_first_one() -> None:
    harness = Harness(slots=1, stack=3, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    for frame, step in enumerate([FIRST, MID, MID, LAST, FIRST, MID], start=1):
        harness.send(group, step, frame=frame)
        harness.loop.step()
    assert [seen[0, :, 0].tolist() for seen in harness.policy.seen] == [
        [1, 1, 1],
        [1, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [5, 5, 5],
        [5, 5, 6],
    ]


def test_a_batch_goes_when_it_is_full() -> None:
    harness = Harness(slots=8, inference_batch_size=4, inference_max_wait_seconds=60)
    groups = harness.lease(3, 2)
    harness.send(groups[0], FIRST)
    harness.loop.step()
    assert harness.policy.batches == []
    harness.send(groups[1], FIRST)
    harness.loop.step()
    assert harness.policy.batches == [4]
    harness.loop.step()
    assert harness.policy.batches == [4]
    assert harness.direct.answered == [0, 1]


def test_a_batch_goes_when_every_live_group_has_reported() -> None:
    harness = Harness(slots=8, inference_batch_size=8, inference_max_wait_seconds=60)
    groups = harness.lease(2, 2)
    harness.send(groups[0], FIRST)
    harness.loop.step()
    assert harness.policy.batches == []
    harness.send(groups[1], FIRST)
    harness.loop.step()
    assert harness.policy.batches == [4]


def test_a_batch_goes_after_max_wait() -> None:
    harness = Harness(slots=8, inference_batch_size=8, inference_max_wait_seconds=0.01)
    groups = harness.lease(2, 2)
    harness.send(groups[0], FIRST)
    harness.loop.step()
    time.sleep(0.02)
    harness.loop.step()
    assert harness.policy.batches == [2]


def test_three_of_eight_slots_alive_are_answered(
    record_property: Callable[[str, object], None],
) -> None:
    harness = Harness(slots=8, inference_batch_size=8, inference_max_wait_seconds=0.05)
    dead, alive = harness.lease(2, 1)[0], harness.lease(1, 3)[0]
    harness.lease(1, 3)
    harness.send(dead, FIRST)
    thread = threading.Thread(target=harness.loop.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    slowest = 0.0
    for step in range(1, 21):
        sent = time.monotonic()
        harness.send(alive, FIRST if step == 1 else MID)
        while harness.direct.answered.count(alive.number) < step:
            assert time.monotonic() < deadline, "no answer although max_wait is 0.05 s"
            time.sleep(0.001)
        slowest = max(slowest, time.monotonic() - sent)
        harness.assembler.release(harness.assembler.take(8, 0.0) or [])
    harness.loop.stop()
    thread.join(timeout=5)
    assert not thread.is_alive()
    record_property("slowest_answer_seconds", slowest)
    print(f"slowest answer after {slowest * 1000:.1f} ms, max_wait is 50 ms")


def test_a_dead_actor_does_not_count_as_one_that_can_report() -> None:
    harness = Harness(slots=4, inference_batch_size=4, inference_max_wait_seconds=60)
    first, second = harness.lease(2, 2)
    harness.send(first, FIRST)
    harness.loop.step()
    assert harness.policy.batches == []
    harness.direct.leases.close(second.number, second.epoch)
    harness.loop.step()
    assert harness.policy.batches == [2]


def test_two_incarnations_in_one_open_batch_the_newer_counts() -> None:
    harness = Harness(slots=2, inference_batch_size=2, inference_max_wait_seconds=60)
    leases = harness.direct.leases
    lease, other_lease = leases.join("a", 1, 1, ""), leases.join("b", 1, 1, "")
    group, other = leases.open(lease.token, 0, 0), leases.open(other_lease.token, 0, 0)
    harness.send(group, FIRST, frame=1, incarnation=1)
    harness.loop.step()
    assert harness.policy.batches == []
    # The actor restarts and comes back with its token while its first request waits.
    leases.join("a", 1, 1, lease.token)
    group = leases.open(lease.token, 0, 0)
    harness.send(group, FIRST, frame=2, incarnation=2)
    harness.send(other, FIRST, frame=3)
    harness.loop.step()
    assert harness.policy.batches == [2]
    assert sorted(harness.direct.answered) == [0, 1]
    np.testing.assert_array_equal(sorted(harness.policy.seen[0][:, 0]), [2, 3])
    assert harness.store.slot_incarnation[group.slots].tolist() == [2]


def test_groups_larger_than_the_batch_size_go_alone() -> None:
    harness = Harness(slots=8, inference_batch_size=2, inference_max_wait_seconds=60)
    groups = harness.lease(2, 4)
    for group in groups:
        harness.send(group, FIRST)
    harness.loop.step()
    harness.loop.step()
    assert harness.policy.batches == [4, 4]


def test_episode_statistics() -> None:
    harness = Harness(slots=1, inference_batch_size=1)
    (group,) = harness.lease(1, 1)
    rewards = [(FIRST, 0.0), (MID, 1.0), (LAST, 2.5), (FIRST, 0.0), (LAST, -1.0), (FIRST, 0.0)]
    for step, reward in rewards:
        harness.send(group, step, reward=reward)
        harness.loop.step()
    assert list(harness.statistics.ended_episodes) == [(3.5, 2), (-1.0, 1)]
    assert harness.statistics.episodes == 2


def test_evaluation_never_holds_training_up() -> None:
    harness = Harness(slots=8, inference_batch_size=8, inference_max_wait_seconds=60)
    training = harness.lease(2, 2)
    (evaluation,) = harness.lease(1, 1, Role.EVALUATION)
    harness.send(training[0], FIRST)
    harness.send(evaluation, FIRST)
    harness.loop.step()
    assert harness.policy.batches == []
    # All groups that train have reported: what evaluates goes with them, if it is there.
    harness.send(training[1], FIRST)
    harness.loop.step()
    assert harness.policy.batches == [5]
    for group in training:
        harness.send(group, MID)
    harness.loop.step()
    assert harness.policy.batches == [5, 4]


def test_evaluation_alone_waits_for_all_its_groups() -> None:
    harness = Harness(slots=8, inference_batch_size=8, inference_max_wait_seconds=60)
    groups = harness.lease(2, 2, Role.EVALUATION)
    harness.send(groups[0], FIRST)
    harness.loop.step()
    assert harness.policy.batches == []
    harness.send(groups[1], FIRST)
    harness.loop.step()
    assert harness.policy.batches == [4]
