"""Small tasks that are really learned, by the whole system."""

from __future__ import annotations

import pathlib

import pytest

from tests.e2e import runs


@pytest.mark.learning
def test_cartpole_is_learned(tmp_path: pathlib.Path) -> None:
    summary = runs.train(tmp_path, "cartpole", timeout=600)
    assert summary["mean_return"] >= 400
    evaluated = runs.evaluate(summary["checkpoint"], "--episodes=16", "--greedy")
    assert evaluated["episodes"] == 16
    assert evaluated["mean_return"] >= 400


@pytest.mark.learning
def test_the_memory_task_is_learned(tmp_path: pathlib.Path) -> None:
    summary = runs.train(tmp_path, "memory", timeout=600)
    assert summary["mean_return"] >= 0.9


@pytest.mark.learning
def test_r2d2_learns_the_memory_task_from_replayed_sequences(tmp_path: pathlib.Path) -> None:
    summary = runs.train(
        tmp_path, "memory-r2d2", "--set=learner.evaluation.episodes=20", timeout=600
    )
    # Of two slots that hardly explore and that nothing was learned from: the last 20 episodes.
    assert summary["evaluation_return"] >= 0.8
    evaluated = runs.evaluate(summary["checkpoint"], "--episodes=160", "--greedy")
    assert evaluated["mean_return"] >= 0.95


@pytest.mark.learning
def test_r2d2_does_not_learn_it_without_memory(tmp_path: pathlib.Path) -> None:
    summary = runs.train(
        tmp_path,
        "memory-r2d2",
        "--set=learner.network={name: mlp, arguments: {sizes: [64]}}",
        timeout=600,
    )
    # Guessing one of four cues is right every fourth time; the standard deviation is .034.
    evaluated = runs.evaluate(summary["checkpoint"], "--episodes=160", "--greedy")
    assert 0.1 < evaluated["mean_return"] < 0.4
