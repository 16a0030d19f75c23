"""Small tasks that are really learned, by the whole system."""

from __future__ import annotations

import pathlib

import pytest

from tests.e2e import runs


@pytest.mark.learning
def test_cartpole_is_learned(tmp_path: pathlib.Path) -> None:
    summary = runs.train(tmp_path, "cartpole", timeout=600)
    assert summary["mean_return"] >= 400


@pytest.mark.learning
def test_the_memory_task_is_learned(tmp_path: pathlib.Path) -> None:
    summary = runs.train(tmp_path, "memory", timeout=600)
    assert summary["mean_return"] >= 0.9
