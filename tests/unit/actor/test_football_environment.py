"""What the football environment promises, apart from being gfootball (see test_football)."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.actor.environments.base import PictureError
from services.actor.environments.football import FootballEnvironment, engine, stand_ins
from services.shared.specs import DataType, DiscreteActionSpec, TensorSpec

ROOT = pathlib.Path(__file__).parents[3]


def play(environment: FootballEnvironment, episodes: int) -> list[npt.NDArray[np.float64]]:
    """Random episodes: for each, the observations of all its steps."""
    rng = np.random.default_rng(1)
    trajectories = []
    for _ in range(episodes):
        frames = [environment.reset()[0].copy()]
        done = False
        while not done:
            transition = environment.step(rng.integers(0, 19, (1, 1)).astype(np.int32))
            frames.append(transition.observation[0].copy())
            done = transition.terminated or transition.truncated
        trajectories.append(np.concatenate(frames).astype(np.float64))
    environment.close()
    return trajectories


def test_an_action_lasts_for_frame_skip_frames() -> None:
    def make_environment(frame_skip: int) -> FootballEnvironment:
        return FootballEnvironment(
            scenario="academy_3_vs_1_with_keeper",
            representation="simple115v2",
            rewards="scoring,team_checkpoints",
            left_players=3,
            frame_skip=frame_skip,
            seed=2,
        )

    single, skipping = make_environment(1), make_environment(3)
    assert (single.spec.frames_per_step, skipping.spec.frames_per_step) == (1, 3)
    rng, idle = np.random.default_rng(1), np.zeros((3, 1), np.int32)
    lengths = []
    for _ in range(3):
        np.testing.assert_array_equal(single.reset()[0], skipping.reset()[0])
        frames, done = 0, False
        while not done:
            action = rng.integers(0, 19, (3, 1)).astype(np.int32)
            reward = np.zeros(3, np.float32)
            for pressed in (action, idle, idle):
                transition = single.step(pressed)
                reward += transition.reward
                frames += 1
                if done := transition.terminated:
                    break
            skipped = skipping.step(action)
            np.testing.assert_array_equal(skipped.observation[0], transition.observation[0])
            np.testing.assert_array_equal(skipped.reward, reward)
            assert skipped.terminated == done
        lengths.append(frames)
    # An episode has ended within a step: the frames after its end were not played.
    assert any(frames % 3 for frames in lengths)
    single.close()
    skipping.close()


def test_seed_decides_the_course_of_every_episode() -> None:
    def make_environment(seed: int) -> FootballEnvironment:
        return FootballEnvironment(
            scenario="academy_run_to_score", representation="float", seed=seed
        )

    # The second one runs on an engine that has played other games before.
    first, again, other = (play(make_environment(seed), 3) for seed in (4, 4, 5))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first[0], other[0])
    # The same action in episodes of one environment: their engine seeds differ.
    environment = make_environment(4)
    courses = []
    for _ in range(3):
        environment.reset()
        frames = [environment.step(np.array([[5]])).observation[0] for _ in range(40)]
        courses.append(np.concatenate(frames))
    assert not np.array_equal(courses[0], courses[1])
    assert not np.array_equal(courses[1], courses[2])
    environment.close()


def test_environments_of_one_process_do_not_disturb_each_other() -> None:
    alone = play(FootballEnvironment(representation="simple115v2", seed=8), 1)[0]
    one, two = (FootballEnvironment(representation="simple115v2", seed=seed) for seed in (8, 9))
    rng = np.random.default_rng(1)
    frames = [one.reset()[0]]
    two.reset()
    for _ in range(len(alone) - 1):
        frames.append(one.step(rng.integers(0, 19, (1, 1)).astype(np.int32)).observation[0])
        if two.step(np.array([[0]])).terminated:
            two.reset()
    np.testing.assert_array_equal(np.concatenate(frames), alone)
    one.close()
    two.close()


@pytest.mark.parametrize("truncates", [False, True])
def test_end_of_the_duration(truncates: bool) -> None:
    environment = FootballEnvironment(
        scenario="academy_run_to_score",
        representation="simple115v2",
        time_limit_truncates=truncates,
    )
    environment.reset()
    # Whoever does nothing keeps the ball until the time is over.
    for _ in range(400):
        transition = environment.step(np.array([[0]]))
        assert not transition.terminated
        assert not transition.truncated
    transition = environment.step(np.array([[0]]))
    assert (transition.terminated, transition.truncated) == (not truncates, truncates)
    environment.close()


def test_a_scenario_of_ones_own() -> None:
    """The ball and two attackers where tests/unit/actor/football_scenario.py puts them."""
    scenario = "tests.unit.actor.football_scenario"
    environment = FootballEnvironment(scenario=scenario, left_players=2)
    environment.reset()
    view = environment._game.view
    assert view.ball[:2] == pytest.approx([0.25, 0.125], abs=0.01)
    assert view.left_team[2:] == pytest.approx([0.2, 0.125, -0.5, -0.25], abs=0.01)
    assert view.duration_steps == 30
    assert environment.episode_info().level == scenario
    environment.close()
    with pytest.raises(ValueError, match=f"left_players is 4, allowed in scenario '{scenario}'"):
        FootballEnvironment(scenario=scenario, left_players=4)


def test_spec() -> None:
    environment = FootballEnvironment(smm_size="120x90", left_players=1, right_players=1)
    assert environment.spec.observation == (TensorSpec("smm", DataType.BIT, (90, 120, 4), 4),)
    assert environment.spec.action == DiscreteActionSpec((19,))
    assert environment.spec.agents == 2
    assert environment.reset()[0].shape == (2, 90 * 120 * 4 // 8)
    environment.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": "academy_moon"}, "scenario is 'academy_moon', allowed: 11_vs_11_comp"),
        ({"scenario": "academy_moon"}, "there is no module 'academy_moon'"),
        ({"scenario": "./academy_moon"}, "scenario is './academy_moon', allowed: 11_vs_11_comp"),
        ({"scenario": 5}, "scenario is 5, allowed: 11_vs_11_comp"),
        ({"scenario": "json.decoder"}, "'json.decoder', a module without build_scenario"),
        ({"representation": "pixels"}, "representation is 'pixels', allowed: smm, simple115v2"),
        ({"smm_size": "96x73"}, "smm_size is '96x73', allowed: 96x72, 120x90, 144x108"),
        ({"rewards": "checkpoints"}, "rewards is 'checkpoints', allowed: 'scoring' or"),
        ({"left_players": 0}, "left_players and right_players are both 0"),
        ({"left_players": -1}, "left_players is -1, allowed"),
        ({"frame_skip": 0}, "frame_skip is 0, allowed: a number of 1 or more"),
        ({"left_players": 5}, "left_players is 5, allowed in scenario .*: 0 to 2"),
        ({"right_players": 1.0}, "right_players is 1.0, allowed"),
        ({"stack": 0}, "stack is 0, allowed: 1 or more"),
        ({"seed": "a"}, "seed is 'a', allowed: a whole number"),
    ],
)
def test_refuses_what_is_not_allowed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FootballEnvironment(**arguments)


@pytest.mark.parametrize("action", [[[19]], [[-1]], [[0], [0]]])
def test_refuses_wrong_actions(action: list[list[int]]) -> None:
    environment = FootballEnvironment()
    environment.reset()
    with pytest.raises(ValueError, match="allowed: 1 numbers from 0 to 18"):
        environment.step(np.array(action))
    environment.close()


@pytest.mark.parametrize("name", ["gym", "cv2"])
def test_stand_ins_are_seen_by_nobody_else(name: str) -> None:
    engine.load()
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        pytest.skip(f"the real {name} is installed")
    with stand_ins.installed():
        assert importlib.import_module(name).__name__ == name
    assert name not in sys.modules


SELFTEST = "from services.actor.environments.football import selftest; sys.exit(selftest.main())"


@pytest.mark.parametrize(
    ("hidden", "files", "message"),
    [
        (True, {}, "the Python package gfootball_engine is missing"),
        (False, {"__init__.py": ""}, "gfootball_engine/_gameplayfootball.so is missing"),
        (
            False,
            {"__init__.py": "import libSDL2", "_gameplayfootball.so": ""},
            "does not load: No module named 'libSDL2'",
        ),
    ],
)
def test_selftest_names_what_is_missing(
    tmp_path: pathlib.Path, hidden: bool, files: dict[str, str], message: str
) -> None:
    package = tmp_path / "gfootball_engine"
    package.mkdir()
    for name, content in files.items():
        (package / name).write_text(content)
    hide = "sys.modules['gfootball_engine'] = None; " if hidden else ""
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; {hide}{SELFTEST}"],
        cwd=ROOT,
        # The broken package is found before the installed one.
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 1, result.stderr
    assert message in result.stderr


def test_view_is_its_own_double_rotation() -> None:
    environment = FootballEnvironment(left_players=1)
    environment.reset()
    view = environment._game.view
    rotated = view.rotated([]).rotated(view.active)
    assert dataclasses.asdict(rotated) == dataclasses.asdict(view)
    environment.close()


def test_the_end_of_a_game_is_told_as_each_team_sees_it() -> None:
    environment = FootballEnvironment(scenario="11_vs_11_stochastic", right_players=1)
    environment.reset()
    environment._game._lead = 2
    info = environment.episode_info()
    environment.close()
    assert info.level == "11_vs_11_stochastic"
    won = {"goal_difference": 2.0, "win": 1.0, "draw": 0.0, "loss": 0.0}
    lost = {"goal_difference": -2.0, "win": 0.0, "draw": 0.0, "loss": 1.0}
    assert info.values == (won, lost)


def test_a_game_can_be_seen() -> None:
    environment = FootballEnvironment(scenario="academy_3_vs_1_with_keeper")
    environment.reset()
    first = environment.picture()
    assert first.shape == (440, 600, 3)
    assert first.dtype == np.uint8
    for _ in range(5):
        environment.step(np.array([[5]], np.int32))
    assert (environment.picture() != first).any()
    positions = environment.positions()
    assert {name: len(places) for name, places in positions.items()} == {
        "ball": 1,
        "left team": 4,
        "right team": 2,
    }
    # The attackers stand near the right goal.
    assert all(x > 0.6 for x, _ in positions["left team"][1:])
    environment.close()
    assert len(environment.action_names) == 19


def test_an_engine_that_cannot_render_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_DIRS", "/nonexistent")
    with pytest.raises(PictureError, match=r"cannot render here.*EGL Display"):
        FootballEnvironment(pictures="engine")
