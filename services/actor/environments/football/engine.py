"""Finds and loads the football engine, and lends its instances to `game`.

The engine is a C++ library inside the gfootball wheel; nothing here imports it before `load`, so
that its absence is an error with a message instead of a failed import somewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import pathlib
import sys
from typing import Any

from services.actor.environments.football import stand_ins

LIBRARY = "_gameplayfootball.so"
_PHYSICS_STEPS_PER_FRAME = 10
_RENDER_RESOLUTION = (1280, 720)


class EngineMissingError(ImportError):
    """The football engine cannot be loaded; the message says what is missing."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """What this package uses of gfootball.

    Attributes:
      libgame: The engine's Python binding.
      config: Module that holds a game's settings.
      scenarios: Names of all scenarios.
      actions: What the engine is told for each action, [2][19]: by a player of the left team, and
        by one of the right team, who acts as if the field were rotated by 180 degrees.
      sticky_actions: The engine's numbers of the ten sticky actions.
      idle, left, right, short_pass: The engine's numbers of these actions.
    """

    libgame: Any
    config: Any
    scenarios: tuple[str, ...]
    actions: tuple[tuple[int, ...], tuple[int, ...]]
    sticky_actions: tuple[int, ...]
    idle: int
    left: int
    right: int
    short_pass: int


@functools.cache
def load() -> Engine:
    """Loads the engine.

    Raises:
      EngineMissingError: gfootball, its engine library, or a library that this needs, is missing.
    """
    _require_library()
    try:
        with stand_ins.installed():
            libgame = importlib.import_module("gfootball_engine")
            config = importlib.import_module("gfootball.env.config")
            builder = importlib.import_module("gfootball.env.scenario_builder")
            action_set = importlib.import_module("gfootball.env.football_action_set")
            rotation = importlib.import_module("gfootball.env.observation_rotation")
    except ImportError as error:
        raise EngineMissingError(f"the football engine does not load: {error}") from error
    default = {"action_set": "default"}
    actions = action_set.get_action_set(default)
    rotated = [rotation.flip_single_action(index, default) for index in range(len(actions))]
    return Engine(
        libgame=libgame,
        config=config,
        scenarios=tuple(sorted(set(builder.all_scenarios()) - {"tests"})),
        actions=(
            tuple(action._backend_action for action in actions),
            tuple(action._backend_action for action in rotated),
        ),
        sticky_actions=tuple(
            action._backend_action for action in action_set.get_sticky_actions(default)
        ),
        idle=action_set.action_idle._backend_action,
        left=action_set.action_left._backend_action,
        right=action_set.action_right._backend_action,
        short_pass=action_set.action_short_pass._backend_action,
    )


def load_scenario(name: str) -> None:
    """Makes a scenario known to the engine if it is not one of its own.

    Args:
      name: One of `Engine.scenarios`, or the import path of a module with `build_scenario`.

    Raises:
      ValueError: It is neither.
    """
    known = load().scenarios
    if name in known:
        return
    allowed = f"{', '.join(known)}, or the import path of a module with build_scenario(builder)"
    if not (isinstance(name, str) and all(part.isidentifier() for part in name.split("."))):
        raise ValueError(f"scenario is {name!r}, allowed: {allowed}")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that the user's module misses is the user's bug, with its own traceback.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"scenario is {name!r}, allowed: {allowed}; there is no module {error.name!r}"
        ) from None
    if not callable(getattr(module, "build_scenario", None)):
        raise ValueError(f"scenario is {name!r}, a module without build_scenario(builder)")
    # Where the builder looks for it.
    sys.modules[f"gfootball.scenarios.{name}"] = module


def _require_library() -> None:
    spec = importlib.util.find_spec("gfootball_engine")
    if spec is None or spec.origin is None:
        raise EngineMissingError(
            "the Python package gfootball_engine is missing (it is part of gfootball);"
            " `make setup` builds and installs it"
        )
    library = pathlib.Path(spec.origin).with_name(LIBRARY)
    if not library.is_file():
        raise EngineMissingError(
            f"the football engine library {library} is missing: gfootball was installed without"
            " its engine; `make setup` builds and installs it"
        )


_idle: list[Any] = []


def acquire() -> Any:
    """An engine instance: one that was released, or a new one (50 to 140 MB)."""
    return _idle.pop() if _idle else start(_RENDER_RESOLUTION)


def start(resolution: tuple[int, int], renders: bool = False) -> Any:
    """A new engine instance.

    Args:
      resolution: Width and height of what it would render.
      renders: It prepares to render; see `rendering`.
    """
    instance = load().libgame.GameEnv()
    instance.game_config.physics_steps_per_frame = _PHYSICS_STEPS_PER_FRAME
    instance.game_config.render_resolution_x = resolution[0]
    instance.game_config.render_resolution_y = resolution[1]
    instance.game_config.render = renders
    instance.start_game()
    return instance


def release(instance: Any) -> None:
    """Takes an instance back. The engine never frees its memory, so it is kept for the next."""
    _idle.append(instance)
