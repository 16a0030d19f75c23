"""Which environment a name stands for, and the memory task."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from services.actor import environments
from services.actor.environments.gym import GymEnvironment
from services.actor.environments.memory import MemoryEnvironment
from services.shared import specs


class _Seeded(gymnasium.Env[Any, Any]):
    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)

    def __init__(self, size: int = 1, seed: int = -1) -> None:
        self.size, self.seed = size, seed


def seeded(size: int, seed: int) -> _Seeded:
    return _Seeded(size, seed)


def unseeded(size: int) -> environments.Environment:
    return MemoryEnvironment(cues=size)


def wrong() -> str:
    return "not an environment"


def needs_a_missing_module() -> None:
    import a_module_that_is_not_installed  # type: ignore[import-not-found]  # noqa: F401


def test_factories() -> None:
    made = environments.make(f"{__name__}:seeded", {"size": 4}, 7)
    assert isinstance(made, GymEnvironment)
    inner = made._environment
    assert isinstance(inner, _Seeded)
    assert (inner.size, inner.seed) == (4, 7)
    assert isinstance(environments.make(f"{__name__}:unseeded", {"size": 3}, 7), MemoryEnvironment)
    with pytest.raises(TypeError, match="returned a str"):
        environments.make(f"{__name__}:wrong", {}, 7)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_installed"):
        environments.make(f"{__name__}:needs_a_missing_module", {}, 7)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Cartpole-v1", "environment 'Cartpole-v1' is unknown .*CartPole"),
        ("no such thing", "environment 'no such thing' is unknown"),
        ("nowhere.at_all:make", "there is no module 'nowhere'"),
        (f"{__name__}:nothing", "has no callable 'nothing'"),
        ("nowhere:Thing-v0", "there is no module 'nowhere'"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(environments.UnknownEnvironmentError, match=message) as error:
        environments.make(name, {}, 0)
    assert "allowed: `atari`, `football`, `memory`, `module:factory`" in str(error.value)


def test_gymnasium_id_with_module() -> None:
    made = environments.make("gymnasium.envs:CartPole-v1", {}, 0)
    assert made.spec.action == specs.DiscreteActionSpec((2,))


def _cartpole(seed: int) -> list[bytes]:
    environment = environments.make("CartPole-v1", {}, seed)
    return [environment.reset()[0].tobytes() for _ in range(2)]


def test_seeds_of_gymnasium_environments() -> None:
    first, second = _cartpole(1)
    assert first != second  # only the first reset is seeded
    assert [first, second] == _cartpole(1)
    assert first != _cartpole(2)[0]


@pytest.mark.parametrize("delay", [0, 3])
def test_memory(delay: int) -> None:
    environment = MemoryEnvironment(cues=3, delay=delay, seed=5)
    seen = set()
    for episode in range(30):
        (signal,) = environment.reset()
        assert signal.shape == (1, 4)
        cue = int(signal[0].argmax())
        assert cue < 3
        assert signal.sum() == 1
        seen.add(cue)
        for step in range(delay + 1):
            action = np.array([[(cue + 1) % 3]], np.int32)  # answers nobody asked for
            transition = environment.step(action)
            assert transition.reward[0] == 0
            assert not transition.terminated
            asked = step == delay
            assert transition.observation[0][0].tolist() == [0, 0, 0, float(asked)]
        answer = cue if episode % 2 else (cue + 1) % 3
        transition = environment.step(np.array([[answer]], np.int32))
        assert transition.terminated
        assert not transition.truncated
        assert transition.reward[0] == episode % 2
        assert not transition.observation[0].any()
    assert seen == {0, 1, 2}


def test_memory_limits() -> None:
    with pytest.raises(ValueError, match="cues is 1"):
        MemoryEnvironment(cues=1)
