"""The examples of README.md and docs/, run as those pages say."""

from __future__ import annotations

import pathlib

import numpy as np

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
    variables = np.load(pathlib.Path(summary["checkpoint"]) / "variables.npz")
    assert variables["network/blocks/1/kernel"].shape == (32, 32)
    # Its bias started at 0.
    assert np.any(variables["network/blocks/1/bias"])
