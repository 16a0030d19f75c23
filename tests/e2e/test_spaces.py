"""Every kind of space is trained on by the whole system, for a few updates."""

from __future__ import annotations

import math
import pathlib

import numpy as np
import pytest

from services.learner import checkpoint
from tests.e2e import runs

SMALL = (
    "--set=actor.environments_per_group=2",
    "--set=learner.unroll_length=8",
    "--set=learner.batch_size=2",
    "--set=learner.checkpoint_interval_seconds=1000",
)


def trains(
    tmp_path: pathlib.Path, environment: str, *arguments: str, frames: int = 600
) -> dict[str, int]:
    """Trains and returns the checkpoint's counters."""
    summary = runs.train(
        tmp_path,
        "cartpole",
        f"--frames={frames}",
        f"--set=actor.environment=tests.e2e.environments:{environment}",
        *SMALL,
        *arguments,
    )
    assert frames <= summary["frames"] < frames + 2 * 8
    log = (pathlib.Path(summary["run"]) / "actor-0.log").read_text()
    assert "is being replaced" not in log, log
    values = runs.all_scalars(summary["run"])
    assert {"training/loss", "training/entropy", "training/gradient_norm"} <= values.keys()
    wrong = {name: v for name, v in values.items() if not all(map(math.isfinite, v))}
    assert wrong == {}
    assert values["training/gradient_norm"][-1] > 0
    counters = runs.counters(summary["run"])
    assert counters["updates"] == summary["updates"] >= frames // 16
    return counters


@pytest.mark.parametrize("environment", ["dictionary", "tuples", "boxes"])
def test_gymnasium_spaces(environment: str, tmp_path: pathlib.Path) -> None:
    trains(tmp_path, environment, "--set=learner.network.arguments={sizes: [16]}")


def test_two_agents_with_stacked_images(tmp_path: pathlib.Path) -> None:
    journal = tmp_path / "journal"
    counters = trains(
        tmp_path,
        "StackedPair",
        f"--set=actor.environment_arguments={{journal: {journal}}}",
        "--set=learner.network={name: impala_shallow, arguments: {lstm_size: 16}}",
        frames=200,
    )
    # A step of the environment is two agents' steps and one frame.
    assert counters["frames"] == counters["steps"] // 2
    stepped = journal.stat().st_size
    # What lies beyond: two unrolls, and the one being made, of 8 steps in 4 environments.
    assert counters["frames"] <= stepped <= counters["frames"] + 3 * 8 * 4 + 8


def self_play(tmp_path: pathlib.Path, environment: str) -> pathlib.Path:
    """Trains the first agent against the second and returns the checkpoint."""
    counters = trains(
        tmp_path,
        environment,
        f"--set=actor.environment_arguments={{journal: {tmp_path / 'journal'}}}",
        "--set=learner.network={name: impala_shallow, arguments: {lstm_size: 16}}",
        "--set=learner.self_play={newest_share: 0.2, pool_size: 2, snapshot_period: 4}",
        frames=200,
    )
    # What the opponent sees is not trained on, so a step of the environment is one agent's step.
    assert counters["frames"] == counters["steps"]
    (newest,) = (runs.folder(tmp_path) / "checkpoints").glob("checkpoint-*")
    return newest


def test_the_second_agent_may_be_a_past_policy(tmp_path: pathlib.Path) -> None:
    evaluation = runs.evaluate(str(self_play(tmp_path, "StackedPair")), "--episodes=8")
    # Each game counts once: 9 steps, with a reward of 1 for each agent.
    assert (evaluation["episodes"], evaluation["mean_return"]) == (8, 9.0)


def test_an_evaluation_may_name_the_opponent(tmp_path: pathlib.Path) -> None:
    newest = self_play(tmp_path, "Copied")
    saved = checkpoint.read(newest)
    # One always does the same; what the other one likes best it would draw in 48 % of steps.
    for always, logit, greedy in ((1, 1e3, ()), (3, 1.0, ("--greedy",))):
        changed = saved.variables()
        changed["network/head/policy/kernel"] *= 0
        changed["network/head/policy/bias"] = np.eye(4, dtype=np.float32)[always] * logit
        kind, spec = saved.experiment, saved.environment_spec
        opponent = checkpoint.save(tmp_path / str(always), changed, {"updates": 1}, spec, kind, 1)
        options = (f"--opponent={opponent}", *greedy)
        evaluation = runs.evaluate(str(newest), "--episodes=8", *options)
        # 9 steps, rewarded with what the opponent does in all of them.
        assert (evaluation["episodes"], evaluation["mean_return"]) == (8, 9.0 * always)
        assert (evaluation["standard_error"], evaluation["opponent"]) == (0, str(opponent))


def test_an_unsupported_space_ends_the_run_by_name(tmp_path: pathlib.Path) -> None:
    process = runs.start(
        tmp_path, "cartpole", "--set=actor.environment=tests.e2e.environments:text"
    )
    errors = runs.fail(process)
    assert "UnsupportedSpaceError: observation 'words/first' has space Text(" in errors
    assert "a Text; allowed: Box, Discrete, MultiDiscrete, MultiBinary" in errors
    assert runs.processes(tmp_path) == {}
