"""Atari games against a slow reference."""

from __future__ import annotations

import fractions
import math
from typing import Any

import ale_py
import numpy as np
import numpy.typing as npt
import pytest
from ale_py import roms

from services.actor import environments
from services.actor.environments.atari import AreaResize, AtariEnvironment
from services.shared.specs import (
    DataType,
    DiscreteActionSpec,
    EnvironmentSpec,
    TensorSpec,
)

Screen = npt.NDArray[np.uint8]
Fraction = fractions.Fraction
NOOP, FIRE = 0, 1  # in every action set


def _atari(**arguments: Any) -> AtariEnvironment:
    made = environments.make("atari", arguments, 3)
    assert isinstance(made, AtariEnvironment)
    return made


def _action(index: int) -> npt.NDArray[np.int32]:
    return np.array([[index]], np.int32)


def _area_average(picture: Screen, size: int = 84) -> Screen:
    """With exact fractions, a pixel at a time; halves up."""

    def parts(source: int, target: int) -> list[tuple[int, Fraction]]:
        """Source pixels, and how much of each lies in the target pixel."""
        ratio = Fraction(source, size)
        start, end = target * ratio, (target + 1) * ratio
        inside = range(math.floor(start), math.ceil(end))
        return [(i, (min(end, Fraction(i + 1)) - max(start, Fraction(i))) / ratio) for i in inside]

    height, width = picture.shape
    columns = [parts(width, x) for x in range(size)]
    result = np.zeros((size, size), np.uint8)
    for y in range(size):
        for x in range(size):
            mean = sum(
                (
                    down * across * int(picture[i, j])
                    for i, down in parts(height, y)
                    for j, across in columns[x]
                ),
                Fraction(0),
            )
            result[y, x] = math.floor(mean + Fraction(1, 2))
    return result


def _emulator(game: str, probability: float = 0.0) -> ale_py.ALEInterface:
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", probability)
    ale.setInt("random_seed", 3)
    ale.loadROM(str(roms.get_rom_path(game)))
    return ale


def _screen(ale: ale_py.ALEInterface) -> Screen:
    return np.array(ale.getScreenGrayscale())


def _play(environment: AtariEnvironment, steps: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Random actions; all that can be seen of each step."""
    choices = np.random.default_rng(seed).integers(0, _actions(environment), steps)
    seen: list[tuple[Any, ...]] = [(environment.reset()[0].tobytes(),)]
    for choice in choices:
        t = environment.step(_action(int(choice)))
        seen.append((t.observation[0].tobytes(), float(t.reward[0]), t.terminated, t.truncated))
        if t.terminated or t.truncated:
            seen.append((environment.reset()[0].tobytes(),))
    return seen


def _actions(environment: AtariEnvironment) -> int:
    action = environment.spec.action
    assert isinstance(action, DiscreteActionSpec)
    return action.num_values[0]


def test_spec() -> None:
    assert _atari().spec == EnvironmentSpec(
        observation=(TensorSpec("screen", DataType.UINT8, (84, 84, 1), stack=4),),
        action=DiscreteActionSpec((18,)),
        frames_per_step=4,
    )
    small = _atari(game="pong", full_action_set=False, frame_skip=2).spec
    assert small.action == DiscreteActionSpec((6,))
    assert small.frames_per_step == 2
    (screen,) = _atari().reset()
    assert screen.shape == (1, 84, 84, 1)
    assert screen.dtype == np.uint8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "pnog"}, "game is 'pnog', allowed: adventure, .*pong, .*zaxxon"),
        ({"game": "combat"}, "game is 'combat', allowed: adventure"),  # for two players
        ({"frame_skip": 0}, "frame_skip is 0, allowed: whole numbers from 1"),
        ({"noop_max": -1}, "noop_max is -1, allowed: whole numbers from 0"),
        ({"max_game_frames": 0}, "max_game_frames is 0, allowed: whole numbers from 1"),
        ({"seed": 1 << 31}, "seed is 2147483648, allowed: whole numbers from 0 to 2147483647"),
        ({"repeat_action_probability": 1.5}, "repeat_action_probability is 1.5, allowed: 0 or"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _atari(**arguments)


@pytest.mark.parametrize("shape", [(210, 160), (250, 160), (214, 160), (7, 5)])
def test_resize_is_the_exact_area_average(shape: tuple[int, int]) -> None:
    size = 84 if shape[0] > 84 else 3
    random = np.random.default_rng(1)
    # Pictures of few values too, so that halves come up.
    for values in (256, 2):
        picture = random.integers(0, values, shape, np.uint8)
        out = np.zeros((1, size, size, 1), np.uint8)
        AreaResize(*shape, size)(picture, out)
        np.testing.assert_array_equal(out[0, :, :, 0], _area_average(picture, size))


def test_resize_by_hand() -> None:
    # Two pixels of 1.5 x 1.5: (4 + 0.5 * (2 + 6) + 0.25 * 8) / 2.25 = 4.44, and a half: rounded up.
    picture = np.array([[4, 2, 0], [6, 8, 0], [0, 0, 0]], np.uint8)
    out = np.zeros((2, 2), np.uint8)
    AreaResize(3, 3, 2)(picture, out)
    # (0 + 0.5 * (2 + 0) + 0.25 * 8) / 2.25 = 1.33; (0.5 * 6 + 2) / 2.25 = 2.22; 2 / 2.25 = 0.89
    assert out.tolist() == [[4, 1], [2, 1]]
    AreaResize(2, 2, 1)(np.array([[1, 0], [1, 0]], np.uint8), out[:1, :1])
    assert out[0, 0] == 1


@pytest.mark.parametrize("frame_skip", [1, 4])
@pytest.mark.parametrize(("game", "probability"), [("breakout", 0.0), ("pong", 0.25)])
def test_steps_are_those_of_the_emulator(game: str, probability: float, frame_skip: int) -> None:
    environment = _atari(
        game=game, noop_max=0, repeat_action_probability=probability, frame_skip=frame_skip
    )
    ale = _emulator(game, probability)
    ale.reset_game()
    (screen,) = environment.reset()
    np.testing.assert_array_equal(screen[0, :, :, 0], _area_average(_screen(ale)))
    scored = pooled = 0
    choices = np.random.default_rng(0).integers(0, 18, 1600 // frame_skip)
    for step, choice in enumerate(choices):
        score, screens = 0, [_screen(ale)]
        for _ in range(frame_skip):
            if not ale.game_over():
                score += ale.act(int(choice))
            screens.append(_screen(ale))
        transition = environment.step(_action(int(choice)))
        assert transition.reward[0] == score
        assert (transition.terminated, transition.truncated) == (ale.game_over(), False)
        pooled += bool((screens[-2] > screens[-1]).any())
        if step % (400 // frame_skip) == 0:  # the reference is slow
            expected = _area_average(np.maximum(screens[-1], screens[-2]))
            np.testing.assert_array_equal(transition.observation[0][0, :, :, 0], expected)
        scored += score != 0
        if transition.terminated:
            environment.reset()
            ale.reset_game()
    assert pooled
    assert scored


def test_seeds() -> None:
    def episodes(seed: int) -> list[tuple[Any, ...]]:
        return _play(
            _atari(game="breakout", seed=seed, repeat_action_probability=0.25), 400, seed=0
        )

    first = episodes(5)
    assert sum(len(step) == 1 for step in first) > 1  # several games
    assert first == episodes(5)
    assert first != episodes(6)


def test_games_begin_with_noops() -> None:
    def beginnings(noop_max: int, seed: int) -> list[int]:
        environment = _atari(game="seaquest", noop_max=noop_max, seed=seed)
        frames = []
        for _ in range(40):
            environment.reset()
            frames.append(environment._ale.getEpisodeFrameNumber())
        return frames

    noops = beginnings(3, 1)
    assert set(noops) == {1, 2, 3}
    assert noops == beginnings(3, 1)
    assert noops != beginnings(3, 2)
    assert set(beginnings(0, 1)) == {0}
    assert max(beginnings(30, 1)) <= 30

    environment, ale = _atari(game="seaquest", noop_max=1), _emulator("seaquest")
    ale.reset_game()
    ale.act(NOOP)
    (screen,) = environment.reset()
    np.testing.assert_array_equal(screen[0, :, :, 0], _area_average(_screen(ale)))


def test_actions_stick_only_on_demand() -> None:
    assert _atari()._ale.getFloat("repeat_action_probability") == 0
    sticky = _atari(repeat_action_probability=0.25)
    assert sticky._ale.getFloat("repeat_action_probability") == 0.25
    # Without them the seed has nothing to decide.
    assert _play(_atari(seed=1, noop_max=0), 50) == _play(_atari(seed=2, noop_max=0), 50)
    assert _play(_atari(seed=1, noop_max=0, repeat_action_probability=0.25), 50) != _play(
        _atari(seed=2, noop_max=0, repeat_action_probability=0.25), 50
    )


def _lives_until_over(environment: AtariEnvironment) -> list[int]:
    """Serves and lets the ball drop: the lives left after each episode until a game is over."""
    left = []
    environment.reset()
    for _ in range(2_000):
        transition = environment.step(_action(FIRE))
        if not transition.terminated:
            continue
        left.append(environment._ale.lives())
        if environment._ale.game_over():
            return left
        before = environment._ale.getEpisodeFrameNumber()
        (screen,) = environment.reset()
        assert environment._ale.getEpisodeFrameNumber() == before  # the game goes on
        assert environment._ale.lives() == left[-1]
        shown = np.zeros((84, 84), np.uint8)
        AreaResize(210, 160, 84)(_screen(environment._ale), shown)
        np.testing.assert_array_equal(screen[0, :, :, 0], shown)
    raise AssertionError("the game did not end")


def test_a_lost_life_ends_the_episode_on_demand() -> None:
    assert _lives_until_over(_atari(game="breakout")) == [0]
    lives = _atari(game="breakout", terminal_on_life_loss=True)
    assert _lives_until_over(lives) == [4, 3, 2, 1, 0]
    # After the last one the next game begins, as it does if an episode is given up.
    for _ in range(2):
        lives.reset()
        assert lives._ale.lives() == 5
        assert lives._ale.getEpisodeFrameNumber() <= 30
        lives.step(_action(FIRE))


def test_the_time_limit_truncates() -> None:
    environment = _atari(max_game_frames=50, noop_max=0)
    for _ in range(2):
        environment.reset()
        ends = []
        for _ in range(13):  # 50 frames: twelve steps of four, and half of one
            transition = environment.step(_action(NOOP))
            assert not transition.terminated
            ends.append(transition.truncated)
        assert ends == [False] * 12 + [True]


def test_the_default_limit_is_half_an_hour() -> None:
    frames_per_second = 60
    limit = _atari()._ale.getInt("max_num_frames_per_episode")
    assert limit == 30 * 60 * frames_per_second


def test_a_game_can_be_seen() -> None:
    environment = AtariEnvironment(game="breakout", full_action_set=False)
    environment.reset()
    picture = environment.picture()
    assert picture.shape == (210, 160, 3)
    assert picture.dtype == np.uint8
    # In color: the rows of bricks.
    assert len({tuple(p) for p in picture[57:93, 80].tolist()}) == 6
    assert environment.action_names == ("noop", "fire", "right", "left")
    assert environment.episode_info().level == "breakout"
    assert AtariEnvironment().action_names[10:12] == ("up fire", "right fire")
