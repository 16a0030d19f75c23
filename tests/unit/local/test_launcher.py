from __future__ import annotations

import concurrent.futures
import fcntl
import os
import pathlib
import socket

import pytest

from services.learner import checkpoint
from services.learner.checkpoint import CheckpointError
from services.local import launcher
from services.local.process import LaunchError
from services.shared import config
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(
    tmp_path: pathlib.Path,
) -> None:
    directory = tmp_path / "not" / "there"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: launcher.new_run(directory, "cartpole"), range(16)))
    assert len(set(runs)) == 16
    assert set(directory.iterdir()) == set(runs)


def test_the_newest_run_is_of_the_experiment_and_was_run_last(tmp_path: pathlib.Path) -> None:
    for age, name in enumerate(
        (
            "football-smm-20261129-193804",
            "football-11v11-20261129-193804",
            "football-20261129-190000",
            "football-20261129-193804-1",
            "football-20261129-193804",
        )
    ):
        run = tmp_path / name
        run.mkdir()
        (run / "experiment.yaml").write_text("")
        os.utime(run / "experiment.yaml", (1e9 - age, 1e9 - age))
    (tmp_path / "football-20261129-200000").mkdir()  # never began
    newest = launcher.newest_run(tmp_path, "football")
    assert newest.name == "football-20261129-190000"
    with pytest.raises(LaunchError, match=r"no run of 'cartpole' in .*/"):
        launcher.newest_run(tmp_path, "cartpole")


def test_an_opponent_is_for_self_play(tmp_path: pathlib.Path) -> None:
    spec = EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (3,)),), DiscreteActionSpec((2,)))
    experiment = config.dump(config.load("cartpole"))
    saved = checkpoint.save(tmp_path, {}, {"updates": 1}, spec, experiment, keep=1)
    with pytest.raises(CheckpointError, match=r"checkpoint-.*: learner\.self_play is null"):
        launcher.evaluate(saved, 1, False, [], opponent_path=saved)
    with pytest.raises(CheckpointError, match=r"elsewhere/meta\.json: cannot be read"):
        launcher.evaluate(saved, 1, False, [], opponent_path=tmp_path / "elsewhere")
    # Before anything starts.
    overrides = ["learner.self_play={}", "learner.network.arguments.activation=relu"]
    with pytest.raises(CheckpointError, match=r"has the network mlp with .* with .*relu"):
        launcher.evaluate(saved, 1, False, overrides, opponent_path=saved)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["local.learners=3"], "1 actors have 2 workers, allowed with local.learners 3"),
        (["learner.max_slots=31"], "need 32 env slots, learner.max_slots is 31"),
        (["local.learners=2", "learner.max_slots=15"], "max_slots is 15 of each of 2 learners"),
        # What comes next: there is room in two learners.
        (["local.learners=2", "learner.max_slots=16"], "another seedpod runs in this folder"),
    ],
)
def test_workers_have_a_learner_each_and_learners_a_worker(
    tmp_path: pathlib.Path, settings: list[str], message: str
) -> None:
    common = ["actor.workers=2", "actor.groups=2", "actor.environments_per_group=8"]
    experiment = config.load("cartpole", [*common, *settings])
    assert experiment.local.evaluation_environments == 0
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LaunchError, match=message):
            launcher.train(experiment, tmp_path)


def test_each_agent_needs_a_slot(tmp_path: pathlib.Path) -> None:
    settings = ["actor.workers=2", "actor.environments_per_group=8", "learner.max_slots=95"]
    experiment = config.load("football-3vs1", settings)
    message = r"of 8 environments, and 0 for evaluation, of 3 agents each, need 96 env slots"
    with pytest.raises(LaunchError, match=message):
        launcher.train(experiment, tmp_path)
    players = "actor.environment_arguments={scenario: 11_vs_11_stochastic, right_players: two}"
    assert config.load("football", [players]).actor.agents == 1


def test_a_folder_in_use_is_refused(tmp_path: pathlib.Path) -> None:
    experiment = config.load("cartpole")
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LaunchError, match="another seedpod runs in this folder"):
            launcher.train(experiment, tmp_path)
    assert not (tmp_path / "experiment.yaml").exists()


def test_a_page_that_cannot_be_served_leaves_the_run_as_it_is(tmp_path: pathlib.Path) -> None:
    (tmp_path / "experiment.yaml").write_text("as before")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        setting = f"local.page_port={other.getsockname()[1]}"
        with pytest.raises(LaunchError, match="the page cannot be served"):
            launcher.train(config.load("cartpole", [setting]), tmp_path)
    assert (tmp_path / "experiment.yaml").read_text() == "as before"
