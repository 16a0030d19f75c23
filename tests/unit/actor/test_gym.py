"""gymnasium spaces as tensor and action specs."""

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from services.actor import environments
from services.actor.environments.base import PictureError
from services.actor.environments.gym import GymEnvironment, UnsupportedSpaceError
from services.shared.specs import ContinuousActionSpec, DataType, DiscreteActionSpec, TensorSpec


class _Scripted(gymnasium.Env[Any, Any]):
    """Shows what it is told to show, and remembers the actions."""

    def __init__(self, observation_space: Any, action_space: Any, shows: list[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.shows = shows
        self.actions: list[Any] = []
        self.ends: list[tuple[bool, bool]] = []

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.shows[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        terminated, truncated = self.ends.pop(0) if self.ends else (False, False)
        return self.shows[len(self.actions)], 0.5, terminated, truncated, {}


def _adapt(space: Any, shows: list[Any], action: Any = None) -> tuple[GymEnvironment, _Scripted]:
    scripted = _Scripted(space, action or spaces.Discrete(2), shows)
    return GymEnvironment(scripted, seed=0), scripted


def test_nested_spaces() -> None:
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
            "body": spaces.Dict(
                {
                    "joints": spaces.Box(-np.inf, np.inf, (2,), np.float64),
                    "pair": spaces.Tuple([spaces.Discrete(5, start=-2), spaces.MultiBinary(9)]),
                }
            ),
            "goal": spaces.MultiDiscrete([3, 7], start=[1, 1]),
            "count": spaces.Box(0, 1000, (), np.int64),
        }
    )
    image = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    value = {
        "image": image,
        "body": {
            "joints": np.array([0.5, -1.5]),
            "pair": (np.int64(-1), np.array([1, 0, 0, 0, 0, 0, 0, 1, 1], np.int8)),
        },
        "goal": np.array([3, 7]),
        "count": np.array(12),
    }
    environment, _ = _adapt(space, [value])
    assert {t.name: t for t in environment.spec.observation} == {
        t.name: t
        for t in (
            TensorSpec("image", DataType.UINT8, (2, 3, 1)),
            TensorSpec("body/joints", DataType.FLOAT32, (2,)),
            TensorSpec("body/pair/0", DataType.INT32, (), num_values=5),
            TensorSpec("body/pair/1", DataType.BIT, (9,)),
            TensorSpec("goal", DataType.INT32, (2,), num_values=7),
            TensorSpec("count", DataType.INT32, ()),
        )
    }
    names = [t.name for t in environment.spec.observation]
    observation = dict(zip(names, environment.reset(), strict=True))
    for tensor in environment.spec.observation:
        assert observation[tensor.name].shape == (1, *tensor.storage_shape)
        assert observation[tensor.name].dtype == tensor.storage_dtype
    np.testing.assert_array_equal(observation["image"][0], image)
    np.testing.assert_array_equal(observation["body/joints"][0], [0.5, -1.5])
    assert observation["body/pair/0"][0] == 1  # counted from the start
    assert observation["body/pair/1"][0].tolist() == [0b10000001, 0b10000000]
    assert observation["goal"][0].tolist() == [2, 6]
    assert observation["count"][0] == 12


def test_a_single_space_is_named_observation() -> None:
    environment, scripted = _adapt(spaces.Box(0, 1, (3,), np.float32), [np.ones(3, np.float32)] * 4)
    assert environment.spec.observation == (TensorSpec("observation", DataType.FLOAT32, (3,)),)
    scripted.ends = [(False, False), (True, False), (False, True)]
    environment.reset()
    ends = []
    for _ in range(3):
        transition = environment.step(np.zeros((1, 1), np.int32))
        ends.append((transition.terminated, transition.truncated))
        assert transition.reward.tolist() == [0.5]
    assert ends == [(False, False), (True, False), (False, True)]


@pytest.mark.parametrize("shown", [np.ones(2), np.float32(1), np.ones((1, 3))])
def test_an_observation_of_another_shape_is_an_error(shown: Any) -> None:
    environment, _ = _adapt(spaces.Box(0, 1, (3,), np.float32), [shown])
    with pytest.raises(ValueError, match="the space has"):
        environment.reset()


@pytest.mark.parametrize(
    ("space", "shown", "message"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), np.array([300, -1]), "from -1 to 300"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.1, 1.0]), "element type float64"),
        (spaces.Box(0, 9, (), np.int32), 2**40, "from 1099511627776"),
        (spaces.Discrete(3, start=-1), 0.5, "element type float64"),
    ],
)
def test_values_that_would_change_are_an_error(space: Any, shown: Any, message: str) -> None:
    environment, _ = _adapt(space, [shown])
    with pytest.raises(ValueError, match=message):
        environment.reset()


@pytest.mark.parametrize(
    ("space", "shown"),
    [
        (spaces.Box(0, 255, (2,), np.uint8), [3, 255]),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([3, 255])),
        (spaces.Box(0, 255, (), np.uint8), True),
        (spaces.Box(-5, 9, (2,), np.int64), (3, -5)),
        (spaces.Box(0, 1, (2,), np.float32), [0, 1]),
        (spaces.Discrete(3), 2),
    ],
)
def test_python_values_that_fit(space: Any, shown: Any) -> None:
    environment, _ = _adapt(space, [shown])
    assert environment.reset()[0][0].tolist() == np.asarray(shown).tolist()


@pytest.mark.parametrize(
    ("space", "spec", "action", "given"),
    [
        (spaces.Discrete(3, start=-1), DiscreteActionSpec((3,)), np.array([2], np.int32), 1),
        (
            spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 0], [10, 0]])),
            DiscreteActionSpec((2, 3, 4, 5)),
            np.array([1, 2, 3, 4], np.int32),
            [[1, 2], [13, 4]],
        ),
        (spaces.MultiBinary(2), DiscreteActionSpec((2, 2)), np.array([1, 0], np.int32), [1, 0]),
        (
            spaces.Box(np.array([[-1.0], [-2.0]]), np.array([[1.0], [np.inf]]), dtype=np.float64),
            ContinuousActionSpec((-1.0, -2.0), (1.0, float("inf"))),
            np.array([0.5, 3.0], np.float32),
            [[0.5], [3.0]],
        ),
    ],
)
def test_actions(space: Any, spec: Any, action: Any, given: Any) -> None:
    environment, scripted = _adapt(spaces.Discrete(2), [0, 0], space)
    assert environment.spec.action == spec
    environment.reset()
    environment.step(action[None])
    assert np.asarray(scripted.actions[0]).tolist() == given
    assert space.contains(scripted.actions[0])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"a": spaces.Dict({"word": spaces.Text(5)})}), "'a/word' has space Text"),
        (spaces.Tuple([spaces.Sequence(spaces.Discrete(2))]), "'0' has space Sequence"),
        (spaces.Box(0, 2**40, (1,), np.int64), "outside those of int32"),
        (spaces.Box(0, 1, (2, 0), np.float32), "dimension below 1"),
        (spaces.Dict({}), "one or more names"),
    ],
)
def test_unsupported_observations(space: Any, message: str) -> None:
    with pytest.raises(UnsupportedSpaceError, match=message):
        _adapt(space, [])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), "action space Dict.* is a Dict"),
        (spaces.Box(0, 9, (2,), np.int32), "a Box of floats"),
        (spaces.Box(1, 1, (2,), np.float32), "not below maximum"),
    ],
)
def test_unsupported_actions(space: Any, message: str) -> None:
    with pytest.raises(UnsupportedSpaceError, match=message):
        _adapt(spaces.Discrete(2), [], space)


def test_mujoco() -> None:
    environment = environments.make("HalfCheetah-v5", {}, 3)
    assert environment.spec.observation == (TensorSpec("observation", DataType.FLOAT32, (17,)),)
    assert environment.spec.action == ContinuousActionSpec((-1.0,) * 6, (1.0,) * 6)
    shown = {environment.reset()[0].tobytes()}
    random = np.random.default_rng(0)
    for _ in range(20):
        transition = environment.step(random.uniform(-1, 1, (1, 6)).astype(np.float32))
        (observation,) = transition.observation
        assert observation.shape == (1, 17)
        assert observation.dtype == np.float32
        assert np.isfinite(observation).all()
        assert np.isfinite(transition.reward).all()
        assert not transition.terminated
        shown.add(observation.tobytes())
    assert len(shown) == 21
    environment.close()


class _Maze(gymnasium.Env[Any, Any]):
    """Tells of its episode, and shows a red square."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        told = {"level": "maze-7", "keys": np.int64(2), "solved": True}
        return 1, 0.0, True, False, {"episode_info": told}

    def render(self) -> Any:
        return np.full((4, 5, 3), (255, 0, 0), np.uint8)


def test_an_episode_is_told_of_by_its_last_step() -> None:
    environment = GymEnvironment(_Maze(), 0)
    environment.reset()
    environment.step(np.array([[0]], np.int32))
    info = environment.episode_info()
    assert info.level == "maze-7"
    assert info.values == ({"keys": 2.0, "solved": 1.0},)


def test_an_id_is_the_level_of_who_tells_nothing() -> None:
    environment = environments.make("CartPole-v1", {}, 0)
    environment.reset()
    environment.step(np.array([[0]], np.int32))
    assert environment.episode_info().level == "CartPole-v1"
    assert environment.episode_info().values == ({},)


def test_pictures_are_what_gymnasium_renders() -> None:
    name = "tests.unit.actor.test_gym:_Maze"
    seen = environments.make(name, {}, 0, pictures="drawn")
    assert seen.picture().shape == (4, 5, 3)
    with pytest.raises(PictureError, match="_Maze has the render mode None, needed"):
        environments.make(name, {}, 0).picture()


@pytest.mark.skipif(importlib.util.find_spec("pygame") is not None, reason="pygame is there")
def test_the_extra_that_cartpole_needs_is_named() -> None:
    environment = environments.make("CartPole-v1", {}, 0, pictures="drawn")
    environment.reset()
    with pytest.raises(PictureError, match=r"pip install -e '.\[classic-control\]'"):
        environment.picture()
