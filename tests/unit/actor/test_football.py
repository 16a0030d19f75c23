"""The direct path must not be told from gfootball's own wrappers, step by step."""

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

from services.actor.environments.football import FootballEnvironment, engine, stand_ins
from services.actor.environments.football.representation import SMM_SIZES, make
from services.shared.specs import DataType, DiscreteActionSpec, TensorSpec

ROOT = pathlib.Path(__file__).parents[3]


class Stock:
    """gfootball's own environment, given the engine seeds that the direct path draws."""

    def __init__(
        self,
        direct: FootballEnvironment,
        scenario: str,
        left_players: int,
        right_players: int,
        representation: str = "extracted",
        stacked: bool = True,
        rewards: str = "scoring,checkpoints",
    ) -> None:
        from gfootball.env import create_environment

        self._direct_config = direct._game._config
        self.environment = create_environment(
            env_name=scenario,
            representation=representation,
            stacked=stacked,
            rewards=rewards,
            number_of_left_players_agent_controls=left_players,
            number_of_right_players_agent_controls=right_players,
            other_config_options={
                key: self._direct_config[key]
                for key in ("game_engine_random_seed", "reverse_team_processing")
            },
        )
        self.config = self.environment.unwrapped._config
        self.single = left_players + right_players == 1

    def reset(self) -> npt.NDArray[Any]:
        """Call it after the direct path's reset."""
        seed = self._direct_config["game_engine_random_seed"]
        self.config["game_engine_random_seed"] = seed
        return self._batch(self.environment.reset())

    def step(self, actions: npt.NDArray[np.int32]) -> tuple[npt.NDArray[Any], list[float], bool]:
        observation, reward, done, _ = self.environment.step(actions.ravel().tolist())
        return self._batch(observation), [reward] if self.single else list(reward), done

    def raw(self) -> list[dict[str, Any]]:
        observations: list[dict[str, Any]] = self.environment.unwrapped.observation()
        return observations

    def _batch(self, observation: Any) -> npt.NDArray[Any]:
        return np.asarray(observation)[np.newaxis] if self.single else np.asarray(observation)


class Stacker:
    """Stacks unpacked frames as the learner does: the first frame of an episode is repeated."""

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec

    def first(self, packed: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        self._frames = [self._unpack(packed)] * self._spec.stack
        return self._stacked()

    def next(self, packed: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        self._frames = [*self._frames[1:], self._unpack(packed)]
        return self._stacked()

    def _unpack(self, packed: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        assert packed.shape[1:] == self._spec.storage_shape
        assert packed.dtype == np.uint8
        return np.unpackbits(packed, axis=-1).reshape(len(packed), *self._spec.shape) * 255

    def _stacked(self) -> npt.NDArray[np.uint8]:
        return np.concatenate(self._frames, axis=-1)


def assert_all_representations_match(direct: FootballEnvironment, stock: Stock) -> None:
    """Compares what gfootball's converters make of its raw observations."""
    from gfootball.env.observation_preprocessing import generate_smm
    from gfootball.env.wrappers import Simple115StateWrapper

    raw = stock.raw()
    for size in SMM_SIZES:
        width, height = map(int, size.split("x"))
        expected = generate_smm(raw, channel_dimensions=(width, height)).reshape(len(raw), -1)
        actual = make("smm", size, None).encode(direct._game)
        np.testing.assert_array_equal(actual, np.packbits(expected > 0, axis=-1))
    for name in ("simple115v2", "simple115"):
        expected = Simple115StateWrapper.convert_observation(raw, name == "simple115v2")
        np.testing.assert_array_equal(make(name, "96x72", None).encode(direct._game), expected)
    extended = make("float", "96x72", None).encode(direct._game)
    duration = direct._game.view.duration_steps
    for row, observation in zip(extended, raw, strict=True):
        own, other = observation["left_team_tired_factor"], observation["right_team_tired_factor"]
        np.testing.assert_array_equal(row[115:125], observation["sticky_actions"])
        np.testing.assert_array_equal(row[125 : 125 + len(own)], np.float32(own))
        np.testing.assert_array_equal(row[136 : 136 + len(other)], np.float32(other))
        assert row[147] == observation["score"][0] - observation["score"][1]
        assert row[148] == np.float32(observation["steps_left"] / duration)


def run_both(
    direct: FootballEnvironment, stock: Stock, steps: int, idle_out_of_play: bool = False
) -> dict[str, Any]:
    """Steps both at random; what happened is returned, so that a test can judge it."""
    rng = np.random.default_rng(7)
    stacker = Stacker(direct.spec.observation[0])
    seen: dict[str, Any] = {"episodes": 0, "rewards": 0, "longest_wait": 0}
    begin = True
    for step in range(steps):
        if begin:
            observation = stacker.first(direct.reset()[0])
            np.testing.assert_array_equal(observation, stock.reset())
        action = rng.integers(0, 19, (direct.spec.agents, 1), dtype=np.int32)
        if idle_out_of_play and direct._game.view.game_mode != 0:
            action[:] = 0
        transition = direct.step(action)
        expected, reward, done = stock.step(action)
        np.testing.assert_array_equal(stacker.next(transition.observation[0]), expected)
        assert transition.reward.dtype == np.float32
        np.testing.assert_array_equal(transition.reward, reward)
        assert (transition.terminated or transition.truncated) == done
        if step % 50 == 0 or done:
            assert_all_representations_match(direct, stock)
        begin = done
        seen["episodes"] += done
        seen["rewards"] += int(np.any(transition.reward != 0))
        seen["longest_wait"] = max(seen["longest_wait"], direct._game._waited_steps)
    return seen


@pytest.mark.parametrize(
    ("scenario", "left_players", "right_players"),
    [
        ("academy_empty_goal_close", 1, 0),
        ("academy_3_vs_1_with_keeper", 1, 0),
        ("11_vs_11_easy_stochastic", 3, 2),
    ],
)
def test_equals_stock_for_2000_random_steps(
    scenario: str, left_players: int, right_players: int
) -> None:
    direct = FootballEnvironment(
        scenario=scenario,
        rewards="scoring,checkpoints",
        left_players=left_players,
        right_players=right_players,
        seed=11,
    )
    stock = Stock(direct, scenario, left_players, right_players)
    seen = run_both(direct, stock, 2000)
    assert seen["rewards"] > 0
    assert scenario.startswith("11") or seen["episodes"] > 5
    direct.close()


@pytest.mark.parametrize(("left_players", "right_players"), [(2, 2), (0, 1)])
def test_equals_stock_with_players_of_both_teams_and_of_the_right_one(
    left_players: int, right_players: int
) -> None:
    scenario = "academy_counterattack_hard"
    direct = FootballEnvironment(
        scenario=scenario,
        rewards="scoring,checkpoints",
        left_players=left_players,
        right_players=right_players,
        seed=3,
    )
    stock = Stock(direct, scenario, left_players, right_players)
    run_both(direct, stock, 300)
    direct.close()


def test_equals_stock_when_nobody_restarts_the_game() -> None:
    # Whoever waits for too long is made to play on.
    scenario = "11_vs_11_stochastic"
    direct = FootballEnvironment(
        scenario=scenario, rewards="scoring,checkpoints", left_players=11, right_players=11
    )
    stock = Stock(direct, scenario, 11, 11)
    seen = run_both(direct, stock, 200, idle_out_of_play=True)
    assert seen["longest_wait"] > 20
    direct.close()


def test_equals_stock_simple115v2_wrapper_with_scoring() -> None:
    scenario = "academy_empty_goal_close"
    direct = FootballEnvironment(scenario=scenario, representation="simple115v2", seed=5)
    stock = Stock(direct, scenario, 1, 0, "simple115v2", stacked=False, rewards="scoring")
    rng = np.random.default_rng(7)
    done = True
    for action in rng.integers(0, 19, (400, 1, 1), dtype=np.int32):
        if done:
            np.testing.assert_array_equal(direct.reset()[0], stock.reset())
        transition = direct.step(action)
        observation, reward, done = stock.step(action)
        np.testing.assert_array_equal(transition.observation[0], observation)
        assert transition.observation[0].dtype == np.float32
        np.testing.assert_array_equal(transition.reward, reward)
        assert transition.terminated == done
    direct.close()


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
        ({"representation": "pixels"}, "representation is 'pixels', allowed: smm, simple115v2"),
        ({"smm_size": "96x73"}, "smm_size is '96x73', allowed: 96x72, 120x90, 144x108"),
        ({"rewards": "checkpoints"}, "rewards is 'checkpoints', allowed: 'scoring' or"),
        ({"left_players": 0}, "left_players and right_players are both 0"),
        ({"left_players": -1}, "left_players is -1, allowed"),
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
