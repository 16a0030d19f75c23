"""Steps one game on the engine: what gfootball's own environment does, without its detours.

gfootball copies every observation four times, mirrors it for agents that do not exist and keeps a
trace of the last hundred for dumps; in short scenarios that is a third of its time. `Game` reads
the engine's state once per step into a `View`, and mirrors it only if a right player is controlled.
Its rules are those of `gfootball.env.football_env_core`, and the tests compare step by step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from services.actor.environments.football import engine as engine_module
from services.actor.environments.football import rendering

# Whoever does not restart the game (a free kick, say) for this many steps is made to.
_LONGEST_WAIT_STEPS = 20
_LEFT, _RIGHT = 0, 1


@dataclasses.dataclass(slots=True)
class View:
    """The state of the game as one team sees it: it plays from left to right.

    Positions and directions are flat lists x, y, x, y, ... in the field's coordinates: x from -1 to
    1, y from -0.42 to 0.42; directions are per step. The ball's height z is in metres.

    Attributes:
      left_team: Positions of the own team's players.
      left_direction: Their movements.
      left_tired: Their tiredness, 0 to 1.
      right_team: Positions of the other team's players.
      right_direction: Their movements.
      right_tired: Their tiredness.
      ball: x, y, z.
      ball_direction: x, y, z.
      ball_owned_team: -1 nobody, 0 the own team, 1 the other one.
      ball_owned_player: Index in its team, or -1.
      active: For each controlled player of the own team its index in the team, -1 for none.
      game_mode: 0 normal, 1 to 6 kick-off, goal kick, free kick, corner, throw-in, penalty.
      score: Goals of the own and of the other team.
      steps_left: Until the game's duration is over.
      duration_steps: The game's duration.
    """

    left_team: list[float]
    left_direction: list[float]
    left_tired: list[float]
    right_team: list[float]
    right_direction: list[float]
    right_tired: list[float]
    ball: list[float]
    ball_direction: list[float]
    ball_owned_team: int
    ball_owned_player: int
    active: list[int]
    game_mode: int
    score: tuple[int, int]
    steps_left: int
    duration_steps: int

    def rotated(self, active: list[int]) -> View:
        """The same state as the other team sees it, the field rotated by 180 degrees.

        Args:
          active: For each controlled player of the other team its index in the team.
        """
        x, y, z = self.ball
        dx, dy, dz = self.ball_direction
        return View(
            left_team=[-value for value in self.right_team],
            left_direction=[-value for value in self.right_direction],
            left_tired=self.right_tired,
            right_team=[-value for value in self.left_team],
            right_direction=[-value for value in self.left_direction],
            right_tired=self.left_tired,
            ball=[-x, -y, z],
            ball_direction=[-dx, -dy, dz],
            ball_owned_team=1 - self.ball_owned_team if self.ball_owned_team != -1 else -1,
            ball_owned_player=self.ball_owned_player,
            active=active,
            game_mode=self.game_mode,
            score=(self.score[1], self.score[0]),
            steps_left=self.steps_left,
            duration_steps=self.duration_steps,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What one step of the game gave.

    Attributes:
      score_change: Change of the left team's lead in goals.
      done: The game is over.
      out_of_time: It is over for no other reason than its duration.
    """

    score_change: int
    done: bool
    out_of_time: bool


class Game:
    """One game of a scenario on an engine of its own."""

    def __init__(
        self,
        scenario: str,
        left_players: int,
        right_players: int,
        first_seed: int,
        renders: bool = False,
    ) -> None:
        """Takes an engine.

        Args:
          scenario: One of the engine's scenarios.
          left_players: Controlled players of the left team.
          right_players: Controlled players of the right team.
          first_seed: Decides which team the engine processes first, for all episodes.
          renders: The engine shall be able to `render`.

        Raises:
          ValueError: The scenario has fewer players that can be controlled.
        """
        self._api = engine_module.load()
        # Both seeds are given from the start: the settings would otherwise draw them from Python's
        # global random state.
        self._config = self._api.config.Config(
            {
                "level": scenario,
                "players": [f"agent:left_players={left_players},right_players={right_players}"],
                "game_engine_random_seed": first_seed,
                "reverse_team_processing": bool(first_seed % 2),
            }
        )
        self._agents = [(_LEFT, i) for i in range(left_players)]
        self._agents += [(_RIGHT, i) for i in range(right_players)]
        self._num_controlled = (left_players, right_players)
        self._check_players(scenario)
        self._normal_mode = int(self._api.libgame.e_GameMode.e_GameMode_Normal)
        self._renders = renders
        self._engine = rendering.start() if renders else engine_module.acquire()

    def _check_players(self, scenario: str) -> None:
        settings = self._config.ScenarioConfig()
        controllable = (settings.controllable_left_players, settings.controllable_right_players)
        for side, given, allowed in zip(
            ("left", "right"), self._num_controlled, controllable, strict=True
        ):
            if given > allowed:
                raise ValueError(
                    f"{side}_players is {given}, allowed in scenario {scenario!r}: 0 to {allowed}"
                )

    def close(self) -> None:
        """Gives the engine back."""
        if self._engine is not None:
            if not self._renders:  # no other game shall pay for what it has prepared
                engine_module.release(self._engine)
            self._engine = None

    def reset(self, seed: int) -> None:
        """Begins a game whose course follows from `seed` and the actions."""
        self._config["game_engine_random_seed"] = seed
        self._config.NewScenario()
        settings = self._config.ScenarioConfig()
        self._duration_steps: int = settings.game_duration
        self._ends_on_score: bool = settings.end_episode_on_score
        self._ends_on_out_of_play: bool = settings.end_episode_on_out_of_play
        self._ends_on_possession_change: bool = settings.end_episode_on_possession_change
        self._engine.state = self._api.libgame.GameState.game_running
        if self._renders:
            rendering.reset(self._engine, settings)
        else:
            self._engine.reset(settings, False)
        self._waited_steps = 0
        self._lead = 0
        self._previous_mode = -1
        self._previous_owner = -1
        self._read_until_in_play(step_first=False)

    def step(self, actions: Sequence[int]) -> Outcome:
        """Steps the game.

        Args:
          actions: For each controlled player, left ones first, an action from 0 to 18.
        """
        perform = self._engine.perform_action
        for (side, index), action in zip(self._agents, actions, strict=True):
            if self._waited_steps < _LONGEST_WAIT_STEPS:
                perform(self._api.actions[side][action], side == _LEFT, index)
            else:
                perform(self._forced_action(side, index), side == _LEFT, index)
        self._read_until_in_play(step_first=True)
        return self._judge()

    def _forced_action(self, side: int, index: int) -> int:
        """What restarts a game that a controlled player has kept waiting: a pass, else a move."""
        if self._waited_steps == _LONGEST_WAIT_STEPS:
            return self._api.short_pass
        active = self.view.active if side == _LEFT else self._right_active
        owner = self.view.ball_owned_player
        if self.view.ball_owned_team != side or active[index] != owner:
            return self._api.idle
        early = self._waited_steps < _LONGEST_WAIT_STEPS + 10
        return self._api.left if early != (side == _LEFT) else self._api.right

    def _judge(self) -> Outcome:
        view = self.view
        done = self._ends_on_score and (view.score[0] > 0 or view.score[1] > 0)
        out_of_play = view.game_mode != self._normal_mode
        if out_of_play and self._previous_mode == self._normal_mode:
            done = done or self._ends_on_out_of_play
        self._previous_mode = view.game_mode
        owner = view.ball_owned_team
        if owner != -1:
            if self._previous_owner not in (-1, owner):
                done = done or self._ends_on_possession_change
            self._previous_owner = owner
        lead = view.score[0] - view.score[1]
        change = lead - self._lead
        self._lead = lead
        self._waited_steps = self._waited_steps + 1 if out_of_play else 0
        out_of_time = view.steps_left <= 0
        return Outcome(change, done or out_of_time, out_of_time and not done)

    def _read_until_in_play(self, step_first: bool) -> None:
        step, get_info = self._engine.step, self._engine.get_info
        if step_first:
            step()
        # The engine answers for the game that this thread stepped last: ask right after stepping.
        while not (info := get_info()).is_in_play:
            step()
        self.view = self._read(info)

    def render(self) -> npt.NDArray[np.uint8]:
        """The engine's picture of the game: uint8 [height, width, 3]."""
        return rendering.render(self._engine)

    @property
    def right_active(self) -> list[int]:
        """For each controlled player of the right team its index in the team."""
        return self._right_active

    @property
    def lead(self) -> int:
        """The left team's goals in this game, less the right team's."""
        return self._lead

    def views(self) -> tuple[View, ...]:
        """The state as each team with controlled players sees it, the left one first."""
        left, right = self._num_controlled
        views = [self.view] if left else []
        return tuple([*views, self.view.rotated(self._right_active)] if right else views)

    def sticky_actions(self) -> list[list[bool]]:
        """For each controlled player which of the ten sticky actions are on.

        The first eight are directions, clockwise from left; a right player's are rotated like its
        view.
        """
        states = []
        for side, index in self._agents:
            state = [
                self._engine.sticky_action_state(action, side == _LEFT, index)
                for action in self._api.sticky_actions
            ]
            states.append(state if side == _LEFT else state[4:8] + state[:4] + state[8:])
        return states

    def _read(self, info: Any) -> View:
        left_team, left_direction, left_tired = _read_team(info.left_team)
        right_team, right_direction, right_tired = _read_team(info.right_team)
        ball, direction = info.ball_position, info.ball_direction
        left, right = self._num_controlled
        controllers = info.right_controllers
        self._right_active = [controllers[i].controlled_player for i in range(right)]
        controllers = info.left_controllers
        return View(
            left_team=left_team,
            left_direction=left_direction,
            left_tired=left_tired,
            right_team=right_team,
            right_direction=right_direction,
            right_tired=right_tired,
            ball=[ball[0], ball[1], ball[2]],
            ball_direction=[direction[0], direction[1], direction[2]],
            ball_owned_team=info.ball_owned_team,
            ball_owned_player=info.ball_owned_player,
            active=[controllers[i].controlled_player for i in range(left)],
            game_mode=int(info.game_mode),
            score=(info.left_goals, info.right_goals),
            steps_left=self._duration_steps - info.step,
            duration_steps=self._duration_steps,
        )


def _read_team(players: Any) -> tuple[list[float], list[float], list[float]]:
    positions: list[float] = []
    directions: list[float] = []
    tired: list[float] = []
    for player in players:
        position, direction = player.position, player.direction
        positions += (position[0], position[1])
        directions += (direction[0], direction[1])
        tired.append(player.tired_factor)
    return positions, directions, tired
