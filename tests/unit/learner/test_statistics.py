from __future__ import annotations

import math

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.learner.evaluation import Episode
from services.learner.roles import Role
from services.learner.statistics import Rate, Statistics
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from tests.unit.learner.harness import FIRST, LAST, MID


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def statistics() -> Statistics:
    return Statistics(4, CollectorRegistry(), np.full(4, Role.TRAINING, np.uint8), np.arange(4))


def observe(s: Statistics, step_type: list[int], reward: list[float], batch_size: int = 2) -> None:
    slots = np.arange(len(reward))
    s.observe_steps(
        slots,
        np.array(step_type, np.uint8),
        np.array(reward, np.float32),
        batch_size,
        lambda slot: (f"level {slot}", {"goal_difference": slot + 0.5}),
    )


def test_a_rate_is_over_the_last_20_seconds() -> None:
    clock = Clock()
    rate = Rate(clock)
    assert rate.per_second() == 0
    clock.now = 10.0
    rate.add(50)
    assert rate.per_second() == 50 / 10
    clock.now = 20.0
    rate.add(70)
    assert rate.per_second() == 120 / 20
    # At 35 s the 50 of 10 s have left the window, which is measured from there.
    clock.now = 35.0
    assert rate.per_second() == 70 / 25
    assert rate.total == 120


def test_a_rate_that_has_ended_is_zero() -> None:
    clock = Clock()
    rate = Rate(clock)
    for clock.now in (1.0, 1.2, 1.4):
        rate.add(10)
    clock.now = 41.4
    assert rate.per_second() == 0


def test_a_counter_that_grows_twice_a_minute_has_a_rate() -> None:
    clock = Clock()
    rate = Rate(clock)
    for clock.now in (30.0, 60.0, 90.0):
        rate.add(600)
        assert rate.per_second() == 600 / 30
    clock.now = 100.0
    assert rate.per_second() == 600 / 40


def test_returns_and_lengths_of_episodes() -> None:
    s = statistics()
    assert math.isnan(s.mean_return)
    assert math.isnan(s.mean_length)
    observe(s, [FIRST, FIRST], [9, 9])  # what comes with FIRST belongs to no episode
    observe(s, [MID, MID], [1, 2])
    observe(s, [LAST, MID], [3, 4])
    assert (s.episodes, s.mean_return, s.mean_length) == (1, 4, 2)
    observe(s, [FIRST, MID], [0, 5])
    observe(s, [LAST, LAST], [-1, -1])
    # Slot 0: 1 + 3 in 2 steps, then -1 in 1; slot 1: 2 + 4 + 5 - 1 in 4.
    assert list(s.ended_episodes) == [(4, 2), (-1, 1), (10, 4)]
    assert s.episodes == 3
    assert s.mean_return == pytest.approx(13 / 3)
    assert s.mean_length == pytest.approx(7 / 3)


def test_the_last_100_episodes_count() -> None:
    s = statistics()
    for reward in range(150):
        observe(s, [FIRST], [0])
        observe(s, [LAST], [reward])
    assert s.episodes == 150
    assert s.mean_return == pytest.approx((50 + 149) / 2)


def test_batch_fill_follows_the_batches() -> None:
    s = statistics()
    observe(s, [MID], [0], batch_size=4)
    assert s.batch_fill == 0.25
    observe(s, [MID] * 4, [0] * 4, batch_size=2)  # more than full is full
    assert s.batch_fill == pytest.approx(0.99 * 0.25 + 0.01)


@pytest.mark.parametrize(
    ("busy", "part"),
    [
        ({}, "environment"),
        ({"training": 0.5, "inference": 0.5}, "environment"),
        ({"training": 0.5, "inference": 0.95}, "inference"),
        ({"training": 0.95, "inference": 0.95}, "training"),
        # Held back because of training, whose thread waits for a full batch meanwhile.
        ({"held": 0.6, "training": 0.5, "inference": 0.95}, "training"),
        # Replay takes nothing: because training lags behind, or for reasons of its own.
        ({"held": 3.0, "replay": 0.9, "training": 0.95}, "training"),
        ({"held": 3.0, "replay": 0.9, "training": 0.5}, "replay"),
    ],
)
def test_the_bottleneck(busy: dict[str, float], part: str) -> None:
    clock = Clock()
    s = statistics()
    s._busy = {name: Rate(clock) for name in s._busy}
    clock.now = 10.0
    for name, share in busy.items():
        s.observe_busy(name, 10.0 * share)
    assert {name: s.busy_share(name) for name in busy} == pytest.approx(busy)
    assert s.bottleneck() == part


@pytest.mark.parametrize(
    ("actors", "busy", "wanted"),
    [
        (4, {}, 4),  # nothing measured yet
        (0, {}, 1),
        (4, {"training": 0.45, "inference": 0.3}, 8),  # 4 x 0.9 / 0.45
        (4, {"training": 0.1, "inference": 0.72}, 5),  # 4 x 0.9 / 0.72
        (4, {"training": 0.9, "inference": 0.3}, 4),
        (4, {"training": 1.0, "inference": 0.3}, 3.6),  # 4 x 0.9 / 1
        (4, {"training": 0.2, "inference": 0.96}, 3.75),  # 4 x 0.9 / 0.96
        # Groups are held back: training does not take what there is, whatever it looks like.
        (4, {"training": 0.45, "held": 2.0}, 4),
        (4, {"training": 0.45, "held": 0.4}, 8),  # now and then one is
        (4, {"training": 0.45, "replay": 0.8}, 4),
        (1, {"training": 1.0}, 1),  # never none
    ],
)
def test_actors_wanted(actors: int, busy: dict[str, float], wanted: float) -> None:
    clock = Clock()
    s = statistics()
    s._busy = {name: Rate(clock) for name in s._busy}
    clock.now = 10.0
    for name, share in busy.items():
        s.observe_busy(name, 10.0 * share)
    assert s.actors_wanted(actors) == pytest.approx(wanted)


def test_evaluation_slots_are_counted_on_their_own() -> None:
    roles = np.array([Role.EVALUATION, Role.TRAINING, Role.TRAINING], np.uint8)
    s = Statistics(3, CollectorRegistry(), roles, np.arange(3), evaluation_episodes=2)
    observe(s, [FIRST] * 3, [0] * 3)
    observe(s, [LAST] * 3, [5, 1, 2])
    assert list(s.evaluation_episodes) == [Episode(0, 5.0, 1, "level 0", {"goal_difference": 0.5})]
    assert (s.mean_return, s.episodes, s.evaluated) == (1.5, 2, 1)
    # Only the newest two are kept, and a slot's role is what it is now.
    roles[1] = Role.EVALUATION
    for reward in (7.0, 8.0):
        observe(s, [FIRST, FIRST], [0, 0])
        observe(s, [MID, LAST], [0, reward])
    assert [(e.environment, e.total) for e in s.evaluation_episodes] == [(1, 7.0), (1, 8.0)]
    assert (s.episodes, s.evaluated) == (2, 3)


def test_an_evaluated_game_of_several_agents_is_one_episode() -> None:
    """Two games of two agents and an opponent each; slots 3 and 4 are of the second one."""
    roles = np.array([Role.EVALUATION, Role.EVALUATION, Role.OPPONENT] * 2, np.uint8)
    environments = np.array([0, 0, 0, 3, 3, 3])
    s = Statistics(6, CollectorRegistry(), roles, environments, opponent_agents=1)
    observe(s, [FIRST] * 6, [0] * 6)
    observe(s, [LAST] * 3 + [MID] * 3, [2, 5, 100, 1, 1, 1])
    observe(s, [FIRST] * 3 + [LAST] * 3, [0, 0, 0, 1, 3, -1])
    assert [(e.environment, e.total, e.length) for e in s.evaluation_episodes] == [
        (0, 3.5, 1),
        (3, 3.0, 2),
    ]
    assert (s.episodes, s.evaluated) == (0, 2)


def test_frames_are_those_of_environments_not_of_agents() -> None:
    spec = EnvironmentSpec(
        (TensorSpec("x", DataType.FLOAT32, (1,)),),
        DiscreteActionSpec((2,)),
        agents=2,
        frames_per_step=3,
    )
    s = statistics()
    s.add_steps(3, spec)
    # 3 steps of 2 agents: one environment step and a half.
    assert (s.steps, s.frames) == (3, 4)
    s.add_steps(1, spec)
    assert (s.steps, s.frames) == (4, 6)
    # If one of the two is an opponent, whose steps are not taken: four environment steps.
    s = Statistics(2, CollectorRegistry(), np.zeros(2, np.uint8), np.arange(2), opponent_agents=1)
    s.add_steps(4, spec)
    assert (s.steps, s.frames) == (4, 12)
