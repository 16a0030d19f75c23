"""The direct path must not be told from gfootball's own wrappers, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.actor.environments.football import FootballEnvironment
from services.actor.environments.football.representation import SMM_SIZES, make
from services.shared.specs import TensorSpec


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
