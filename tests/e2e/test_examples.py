"""The examples of README.md and docs/, run as those pages say."""

from __future__ import annotations

import pathlib

from tests.e2e import runs


def test_an_environment_of_ones_own_is_learned(tmp_path: pathlib.Path) -> None:
    summary = runs.train(tmp_path, "examples/corridor.yaml")
    assert summary["frames"] >= 30000
    # Random steps reach the right end as often as the left one.
    assert summary["mean_return"] > 0.9


def test_a_network_of_ones_own_trains(tmp_path: pathlib.Path) -> None:
    summary = runs.train(
        tmp_path,
        "cartpole",
        "--frames=3000",
        "--set=learner.network="
        "{name: examples.small_network:SmallNetwork, arguments: {size: 32, lstm_size: 16}}",
    )
    assert summary["updates"] >= 40
    # What inference computed, training computes too: the torso keeps to its contract.
    assert runs.scalars(summary["run"], "training/entropy")[-1] > 0
