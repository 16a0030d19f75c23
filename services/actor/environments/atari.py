"""Atari 2600 games on the Arcade Learning Environment, with the usual preprocessing.

`services.actor.environments.make` builds it for `atari`. One grey screen travels for each step;
the learner stacks four. Machado et al. 2018 (arXiv 1709.06009) describe the choices that the
arguments stand for; Mnih et al. 2015 (Nature 518, "Preprocessing") introduced most of them.
"""

from __future__ import annotations

import math

import ale_py
import numpy as np
import numpy.typing as npt
from ale_py import roms

from services.actor.environments.base import Environment, EpisodeInfo, Observation, Transition
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec

_SIZE = 84
_STACK = 4
_LARGEST_SEED = 2**31 - 1


class AtariEnvironment(Environment):
    """One agent that plays one game.

    A step repeats its action for `frame_skip` frames. The observation is the pixelwise maximum of
    the last two, in grey, because sprites may be drawn in every other frame only; it is averaged
    down to 84 x 84. Rewards are the game's scores, added up and neither clipped nor scaled.

    A game that runs out of time is truncated. With `terminal_on_life_loss` an episode, and so its
    return, is one life: what earlier lives led to is then not part of the task.
    """

    def __init__(
        self,
        *,
        game: str = "pong",
        frame_skip: int = 4,
        noop_max: int = 30,
        repeat_action_probability: float = 0.0,
        terminal_on_life_loss: bool = False,
        full_action_set: bool = True,
        max_game_frames: int = 108_000,
        seed: int = 0,
    ) -> None:
        """Loads the game.

        Args:
          game: A game that ale-py brings along: `pong`, `ms_pacman`.
          frame_skip: Frames that one action lasts.
          noop_max: A game begins with 1 to so many frames without action, drawn uniformly; 0:
            none. Counted in no step.
          repeat_action_probability: Sticky actions: at each frame the emulator goes on with the
            action before with this probability. Machado et al. recommend 0.25.
          terminal_on_life_loss: A lost life terminates the episode, but not the game: the next
            episode begins where it stands.
          full_action_set: All 18 actions, as Machado et al. recommend and SEED RL trains R2D2.
            Else those that do something in this game, as for IMPALA's single-game agents
            (arXiv 1802.01561, appendix G).
          max_game_frames: A game is truncated at this frame, its no-ops counted: 30 minutes.
          seed: Of no-ops and sticky actions, in [0, 2^31).

        Raises:
          ValueError: A value is not allowed; the message says which are.
        """
        _check(game, frame_skip, noop_max, repeat_action_probability, max_game_frames, seed)
        self._ale = _emulator(game, repeat_action_probability, max_game_frames, seed)
        self._game = game
        self._frame_skip = frame_skip
        self._noop_max = noop_max
        self._terminal_on_life_loss = terminal_on_life_loss
        self._random = np.random.default_rng(seed)
        self._actions = (
            self._ale.getLegalActionSet() if full_action_set else self._ale.getMinimalActionSet()
        )
        height, width = self._ale.getScreenDims()
        self._resize = AreaResize(height, width, _SIZE)
        self._screen = np.zeros((height, width), np.uint8)
        self._earlier_screen = np.zeros((height, width), np.uint8)
        self._observation = (np.zeros((1, _SIZE, _SIZE, 1), np.uint8),)
        self._reward = np.zeros(1, np.float32)
        self._lives = 0
        self._life_lost = False
        self._spec = EnvironmentSpec(
            observation=(TensorSpec("screen", DataType.UINT8, (_SIZE, _SIZE, 1), stack=_STACK),),
            action=DiscreteActionSpec((len(self._actions),)),
            frames_per_step=frame_skip,
        )

    @property
    def spec(self) -> EnvironmentSpec:
        """One uint8 screen [84, 84, 1], of which the networks see four; one discrete action."""
        return self._spec

    def reset(self) -> Observation:
        """Begins a game, or only an episode where the last one ended with a lost life."""
        if not self._life_lost or self._ale.game_over():
            self._begin_game()
        self._life_lost = False
        self._lives = self._ale.lives()
        self._ale.getScreenGrayscale(self._screen)
        return self._observe()

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        """Repeats action [1, 1], an index into the action set."""
        self._reward[0] = self._repeat(self._actions[int(action[0, 0])])
        lives = self._ale.lives()
        # 0 counts as well: in some games, Bank Heist for one, the last life is played at 0. In
        # others, Wizard of Wor for one, an episode of a few steps may follow before it is over.
        self._life_lost = self._terminal_on_life_loss and lives < self._lives
        self._lives = lives
        terminated = self._life_lost or self._ale.game_over(with_truncation=False)
        truncated = not terminated and self._ale.game_truncated()
        return Transition(self._observe(), self._reward, terminated, truncated)

    @property
    def action_names(self) -> tuple[str, ...]:
        """The emulator's, `up fire` for example."""
        return tuple(_spaced(action.name) for action in self._actions)

    def picture(self) -> npt.NDArray[np.uint8]:
        """The screen, uint8 [height, width, 3]."""
        screen: npt.NDArray[np.uint8] = self._ale.getScreenRGB()
        return screen

    def episode_info(self) -> EpisodeInfo:
        """The game."""
        return EpisodeInfo(({},), level=self._game)

    def _begin_game(self) -> None:
        self._ale.reset_game()
        noops = int(self._random.integers(1, self._noop_max + 1)) if self._noop_max else 0
        for _ in range(noops):
            self._ale.act(ale_py.Action.NOOP)

    def _repeat(self, action: ale_py.Action) -> int:
        """Returns the score of all frames, and leaves the last two's maximum in `_screen`."""
        # Once a game is over, `act` does nothing and scores 0: no need to look after each frame.
        score = 0
        for _ in range(self._frame_skip - 1):
            score += self._ale.act(action)
        self._ale.getScreenGrayscale(self._earlier_screen)
        score += self._ale.act(action)
        self._ale.getScreenGrayscale(self._screen)
        np.maximum(self._screen, self._earlier_screen, out=self._screen)
        return score

    def _observe(self) -> Observation:
        self._resize(self._screen, out=self._observation[0])
        return self._observation


class AreaResize:
    """Scales a grey picture down to a square by averaging areas.

    A pixel of the result is the mean of the area that it covers, in which cut pixels count by
    their share; halves are rounded up. Along an axis the shares repeat gcd(source, target) times,
    so one small matrix serves for all repetitions: a third of the time of the full product. The
    shares are whole numbers, which float32 adds without error.
    """

    def __init__(self, height: int, width: int, size: int) -> None:
        """Makes the matrices.

        Args:
          height: Of the source, in pixels.
          width: Of the source, in pixels.
          size: Height and width of the result, in pixels.
        """
        down, across = math.gcd(height, size), math.gcd(width, size)
        self._row_shares = _shares(height // down, size // down)
        self._column_shares = np.ascontiguousarray(_shares(width // across, size // across).T)
        self._area = np.float32((height // down) * (width // across))
        self._source = np.zeros((down, height // down, width), np.float32)
        self._rows = np.zeros((down, size // down, width), np.float32)
        self._sums = np.zeros((size * across, size // across), np.float32)

    def __call__(self, picture: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
        """Scales `picture` [height, width] into `out`, contiguous with size * size elements."""
        self._source[...] = picture.reshape(self._source.shape)
        np.matmul(self._row_shares, self._source, out=self._rows)
        rows = self._rows.reshape(len(self._sums), -1)
        np.matmul(rows, self._column_shares, out=self._sums)
        self._sums += self._area // 2
        # To cast to uint8 is to round down.
        np.divide(self._sums, self._area, out=out.reshape(self._sums.shape), casting="unsafe")


def _shares(source: int, target: int) -> npt.NDArray[np.float32]:
    """How much of each source pixel a target pixel covers, in `target`ths of a source pixel.

    Returns:
      float32 [target, source], each row adding up to `source`.
    """
    pixels, edges = np.arange(source) * target, np.arange(target + 1) * source
    ends = np.minimum(edges[1:, np.newaxis], pixels + target)
    starts = np.maximum(edges[:-1, np.newaxis], pixels)
    shares: npt.NDArray[np.float32] = np.maximum(ends - starts, 0).astype(np.float32)
    return shares


def _spaced(name: str) -> str:
    """UPRIGHTFIRE as `up right fire`."""
    for word in ("UP", "DOWN", "LEFT", "RIGHT", "FIRE"):
        name = name.replace(word, f"{word} ")
    return name.strip().lower()


def _emulator(
    game: str, repeat_action_probability: float, max_game_frames: int, seed: int
) -> ale_py.ALEInterface:
    # First, or it greets on stderr.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", repeat_action_probability)
    ale.setInt("max_num_frames_per_episode", max_game_frames)
    ale.setInt("random_seed", seed)
    ale.loadROM(_rom(game))
    return ale


def _rom(game: str) -> str:
    return str(roms.get_rom_path(game))


def _games() -> list[str]:
    # To load one of the few ROMs that are there, but not supported, ends the process.
    supported = ale_py.ALEInterface.isSupportedROM
    return sorted(game for game in roms.get_all_rom_ids() if supported(_rom(game)))


def _check(
    game: str,
    frame_skip: int,
    noop_max: int,
    repeat_action_probability: float,
    max_game_frames: int,
    seed: int,
) -> None:
    games = _games()
    if game not in games:
        raise ValueError(f"game is {game!r}, allowed: {', '.join(games)}")
    for name, value, least, most in (
        ("frame_skip", frame_skip, 1, 1_000),
        ("noop_max", noop_max, 0, 1_000),
        ("max_game_frames", max_game_frames, 1, _LARGEST_SEED),
        ("seed", seed, 0, _LARGEST_SEED),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}, allowed: whole numbers from {least} to {most}")
    if not 0 <= repeat_action_probability < 1:
        raise ValueError(
            f"repeat_action_probability is {repeat_action_probability}, allowed: 0 or more and"
            " less than 1"
        )
