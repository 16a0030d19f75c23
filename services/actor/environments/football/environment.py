"""The football environment that the actor's workers step."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.actor.environments.base import (
    Environment,
    EpisodeInfo,
    Observation,
    Positions,
    Transition,
)
from services.actor.environments.football import engine, rendering, representation, reward
from services.actor.environments.football.game import Game, Outcome
from services.shared.specs import DiscreteActionSpec, EnvironmentSpec

if TYPE_CHECKING:
    from services.actor.environments.football.pitch import Pitch

_PICTURES = ("drawn", "engine")
_ACTION_NAMES = (
    *("idle", "left", "top left", "top", "top right", "right", "bottom right", "bottom"),
    *("bottom left", "long pass", "high pass", "short pass", "shot", "sprint"),
    *("release direction", "release sprint", "sliding", "dribble", "release dribble"),
)
_ACTIONS = len(_ACTION_NAMES)
_IDLE = 0
_LARGEST_SEED = 2_000_000_000


class FootballEnvironment(Environment):
    """Google Research Football (Kurach et al., arXiv 1907.11180), stepped on its engine.

    The agents are the controlled players, those of the left team first. Each sees the field as if
    its team played from left to right, and acts accordingly, with the 19 default actions.

    The end of a scenario's duration (400 steps in the academy, 3,000 in a full game) terminates the
    episode like a goal does: the match is over, nothing more can be scored, and published results
    were obtained so. With `time_limit_truncates` it counts as a truncation, which suits drills
    whose observations do not tell how much time is left.
    """

    def __init__(
        self,
        *,
        scenario: str = "academy_empty_goal_close",
        representation: str = "smm",
        smm_size: str = "96x72",
        stack: int | None = None,
        rewards: str = "scoring",
        frame_skip: int = 1,
        left_players: int = 1,
        right_players: int = 0,
        time_limit_truncates: bool = False,
        seed: int = 0,
        pictures: str = "drawn",
    ) -> None:
        """Loads the engine and prepares the scenario.

        Args:
          scenario: A scenario of gfootball, `academy_empty_goal_close` or `11_vs_11_stochastic`;
            or the import path of a module like those in `drills`, with `build_scenario(builder)`.
          representation: `smm`, `simple115v2`, `simple115`, `float` or `egocentric`.
          smm_size: Width and height of the super mini map: `96x72`, `120x90` or `144x108`.
          stack: Frames that the networks see. Default: 4 of the super mini map, else 1.
          rewards: `scoring`; with `scoring,checkpoints` each agent is also rewarded for bringing
            the ball nearer to the goal, with `scoring,team_checkpoints` its team is.
          frame_skip: Steps of the game that one action lasts: it is pressed in the first, then
            nothing is; directions and the like stay on by themselves. Rewards are added up.
          left_players: Players of the left team that agents control.
          right_players: Players of the right team that agents control.
          time_limit_truncates: The end of the duration is a truncation, not a termination.
          seed: Two environments with the same seed and actions go the same way, episode by
            episode; the episodes of one differ.
          pictures: How `picture` shows the game: `drawn`, or as the `engine` renders it.

        Raises:
          EngineMissingError: The engine is not installed.
          PictureError: The engine cannot render here.
          ValueError: A value is not allowed; the message says which are.
        """
        _check(scenario, rewards, frame_skip, left_players, right_players, seed)
        if pictures not in _PICTURES:
            raise ValueError(f"pictures is {pictures!r}, allowed: {' or '.join(_PICTURES)}")
        self._renders = pictures == "engine"
        if self._renders:
            rendering.check()
        self._representation = _representation(representation, smm_size, stack)
        self._scenario = scenario
        self._players = (left_players, right_players)
        self._frame_skip = frame_skip
        self._time_limit_truncates = time_limit_truncates
        self._seeds = random.Random(seed)
        self._game = Game(
            scenario, left_players, right_players, self._next_seed(), renders=self._renders
        )
        self._pitch: Pitch | None = None
        agents = left_players + right_players
        self._idle = [_IDLE] * agents
        self._checkpoints: reward.Checkpoints | None = None
        if "checkpoints" in rewards:
            self._checkpoints = reward.Checkpoints(agents, shared="team_checkpoints" in rewards)
        self._spec = EnvironmentSpec(
            observation=(self._representation.spec,),
            action=DiscreteActionSpec((_ACTIONS,)),
            agents=agents,
            frames_per_step=frame_skip,
        )

    @property
    def spec(self) -> EnvironmentSpec:
        """What the environment shows and takes."""
        return self._spec

    def reset(self) -> Observation:
        """Begins an episode."""
        self._game.reset(self._next_seed())
        if self._pitch is not None:
            self._pitch.begin()
        if self._checkpoints is not None:
            self._checkpoints.reset(self._game.views())
        return (self._representation.encode(self._game),)

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        """Steps the game, `frame_skip` times or to its end.

        Args:
          action: int32 [agents, 1], 0 to 18.

        Returns:
          The transition.

        Raises:
          ValueError: An action is out of range, or not one for each agent.
        """
        actions = action.ravel().tolist()
        if len(actions) != self._spec.agents or not all(0 <= a < _ACTIONS for a in actions):
            raise ValueError(
                f"actions are {actions}, allowed: {self._spec.agents} numbers from 0 to"
                f" {_ACTIONS - 1}"
            )
        rewards = np.zeros(self._spec.agents, np.float32)
        for repeat in range(self._frame_skip):
            outcome = self._game.step(actions if repeat == 0 else self._idle)
            rewards += self._rewards(outcome)
            if outcome.done:
                break
        truncated = outcome.out_of_time and self._time_limit_truncates
        return Transition(
            observation=(self._representation.encode(self._game),),
            reward=rewards,
            terminated=outcome.done and not truncated,
            truncated=truncated,
        )

    def _rewards(self, outcome: Outcome) -> npt.NDArray[np.float32]:
        rewards = reward.scoring(outcome.score_change, *self._players)
        if self._checkpoints is not None:
            self._checkpoints.add(rewards, self._game.views())
        return rewards

    def episode_info(self) -> EpisodeInfo:
        """The lead in goals as each agent's team sees it, and whether that is a win."""
        left, right = self._players
        lead = self._game.lead
        leads = [lead] * left + [-lead] * right
        return EpisodeInfo(
            tuple(
                {
                    "goal_difference": float(value),
                    "win": float(value > 0),
                    "draw": float(value == 0),
                    "loss": float(value < 0),
                }
                for value in leads
            ),
            level=self._scenario,
        )

    @property
    def action_names(self) -> tuple[str, ...]:
        """Those of the default action set."""
        return _ACTION_NAMES

    def picture(self) -> npt.NDArray[np.uint8]:
        """The game from above; or the engine's own picture.

        Raises:
          PictureError: Pillow is not installed.
        """
        if self._renders:
            return self._game.render()
        if self._pitch is None:
            # Imported only to draw: an actor that trains needs no Pillow.
            from services.actor.environments.football.pitch import Pitch

            self._pitch = Pitch(self._scenario)
        return self._pitch.draw(self._game.view, self._game.right_active)

    def positions(self) -> Positions:
        """The ball, and the players of both teams, as the left one sees the field."""
        view = self._game.view
        return {
            "ball": [_share(*view.ball[:2])],
            "left team": [_share(*place) for place in _pairs(view.left_team)],
            "right team": [_share(*place) for place in _pairs(view.right_team)],
        }

    def close(self) -> None:
        """Gives the engine back for the next environment of this process."""
        self._game.close()

    def _next_seed(self) -> int:
        return self._seeds.randint(0, _LARGEST_SEED)


def _pairs(flat: list[float]) -> zip[tuple[float, float]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _share(x: float, y: float) -> tuple[float, float]:
    """The engine's coordinates as shares of the field."""
    return (x + 1.0) / 2.0, (y + 0.42) / 0.84


# In the constructor the argument `representation` hides the module.
_representation = representation.make


def _check(
    scenario: str, rewards: str, frame_skip: int, left_players: int, right_players: int, seed: int
) -> None:
    engine.load_scenario(scenario)
    if rewards not in reward.REWARDS:
        allowed = " or ".join(map(repr, reward.REWARDS))
        raise ValueError(f"rewards is {rewards!r}, allowed: {allowed}")
    for name, value, least in (
        ("frame_skip", frame_skip, 1),
        ("left_players", left_players, 0),
        ("right_players", right_players, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}, allowed: a number of {least} or more")
    if left_players + right_players == 0:
        raise ValueError(
            "left_players and right_players are both 0, allowed: one controlled player or more"
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed is {seed!r}, allowed: a whole number")
