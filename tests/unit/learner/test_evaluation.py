"""The figures of evaluations, by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.learner import evaluation
from services.learner.evaluation import Episode
from services.learner.evaluator import Evaluation, Evaluator
from services.learner.roles import Role
from services.learner.statistics import Statistics


def _football(slot: int, lead: int, length: int, level: str = "a") -> Episode:
    values = {
        "goal_difference": float(lead),
        "win": float(lead > 0),
        "draw": float(lead == 0),
        "loss": float(lead < 0),
    }
    return Episode(slot, float(lead), length, level, values)


def test_figures_by_hand() -> None:
    # Returns 2, 0, 1, -1: mean 0.5, squared deviations 2.25 + 0.25 + 0.25 + 2.25 = 5, variance
    # 5 / 3, standard error sqrt(5 / 3 / 4) = 0.6455.
    episodes = [_football(i, lead, 10 * i) for i, lead in enumerate((2, 0, 1, -1))]
    figures = evaluation.figures(episodes)
    assert (figures.episodes, figures.mean_return, figures.median_return) == (4, 0.5, 0.5)
    assert figures.standard_error == pytest.approx(math.sqrt(5 / 12))
    assert figures.mean_length == 15
    assert figures.values["goal_difference"] == pytest.approx((0.5, math.sqrt(5 / 12)))
    # Two wins of four: variance 4 x 0.25 / 3.
    assert figures.values["win"] == pytest.approx((0.5, math.sqrt(1 / 3 / 4)))
    assert figures.values["draw"][0] == figures.values["loss"][0] == 0.25


def test_levels_are_told_apart() -> None:
    episodes = [_football(0, 1, 5), _football(1, -1, 7, "b"), _football(2, 3, 9)]
    summary = evaluation.summarize(episodes)
    assert summary["mean_return"] == 1
    assert list(summary["levels"]) == ["a", "b"]
    assert summary["levels"]["a"]["mean_return"] == 2
    assert summary["levels"]["b"] == {
        "episodes": 1,
        "mean_return": -1,
        "standard_error": None,  # of one episode nothing is known
        "median_return": -1,
        "mean_length": 7,
        "values": {
            name: {"mean": mean, "standard_error": None}
            for name, mean in (("draw", 0), ("goal_difference", -1), ("loss", 1), ("win", 0))
        },
    }
    scalars = evaluation.scalars(episodes)
    assert scalars["a/goal_difference"] == 2
    assert "b/standard_error" not in scalars
    assert "a/mean_return" not in evaluation.scalars(episodes[:1])


def test_without_episodes_nothing_is_said() -> None:
    assert evaluation.scalars([]) == {}
    assert evaluation.summarize([])["mean_return"] is None


def test_every_slot_plays_the_same_share() -> None:
    """Slot 1 is quick: its further episodes do not count, or short ones would."""
    roles = np.full(2, Role.EVALUATION, np.uint8)
    statistics = Statistics(2, CollectorRegistry(), roles, np.arange(2))
    evaluator = Evaluator(Evaluation(3), statistics, lambda: {0, 1}, lambda: 0)
    played = statistics.evaluation_episodes
    played.extend(Episode(1, 9.0, 1) for _ in range(8))
    played.append(Episode(0, 1.0, 100))
    assert not evaluator._enough()
    played.append(Episode(0, 2.0, 100))
    evaluator.run()
    summary = evaluator.summary()
    assert (summary["episodes"], summary["mean_return"]) == (4, (9 + 9 + 1 + 2) / 4)


def test_an_evaluation_that_is_stopped_tells_of_what_every_slot_has_played() -> None:
    roles = np.full(3, Role.EVALUATION, np.uint8)
    statistics = Statistics(3, CollectorRegistry(), roles, np.arange(3))
    playing: Iterator[set[int]] = iter([{0, 1, 2}, {0, 1, 2}, set()])
    evaluator = Evaluator(Evaluation(30), statistics, lambda: next(playing), lambda: 0)
    played = statistics.evaluation_episodes
    # Slot 2 has not ended any: what the others have would count short episodes only.
    played.extend([Episode(0, 1.0, 9), Episode(1, 2.0, 5), Episode(1, 3.0, 5), Episode(1, 4.0, 5)])
    evaluator.stop()
    evaluator.run()
    assert evaluator.summary()["episodes"] == 0
    played.extend([Episode(0, 7.0, 9), Episode(2, 5.0, 9), Episode(2, 6.0, 9), Episode(2, 9.0, 9)])
    assert not evaluator._enough()
    evaluator.run()  # the actors have gone
    summary = evaluator.summary()
    assert (summary["episodes"], summary["mean_return"]) == (6, (1 + 7 + 2 + 3 + 5 + 6) / 6)


def test_the_episodes_of_environments_that_have_gone_do_not_count() -> None:
    """Else those count that have played the most, which are the quick ones."""
    statistics = Statistics(
        4, CollectorRegistry(), np.full(4, Role.EVALUATION, np.uint8), np.arange(4)
    )
    playing: Iterator[set[int]] = iter([{0, 1}, {2, 3}, {2, 3}])
    evaluator = Evaluator(Evaluation(4), statistics, lambda: next(playing), lambda: 0)
    played = statistics.evaluation_episodes
    played.extend([Episode(0, 1.0, 1), Episode(0, 1.0, 1), Episode(1, 9.0, 9)])
    assert not evaluator._enough()
    played.extend([Episode(2, 2.0, 2), Episode(2, 3.0, 3), Episode(3, 8.0, 8)])
    assert not evaluator._enough()
    played.append(Episode(3, 7.0, 7))
    evaluator.run()
    summary = evaluator.summary()
    assert (summary["episodes"], summary["mean_return"]) == (4, (2 + 3 + 8 + 7) / 4)


def test_an_evaluation_waits_for_its_recordings() -> None:
    statistics = Statistics(
        1, CollectorRegistry(), np.full(1, Role.EVALUATION, np.uint8), np.arange(1)
    )
    statistics.evaluation_episodes.append(Episode(0, 1.0, 5))
    arrived = iter([0, 1, 2])
    evaluator = Evaluator(
        Evaluation(1, recordings=2), statistics, lambda: {0}, lambda: next(arrived)
    )
    evaluator.run()
    assert list(arrived) == []
    assert evaluator.failure is None
