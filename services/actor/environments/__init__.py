"""Finds an environment by the name that an experiment gives it.

Workers call `make`; nothing here imports an environment's library before it is asked for.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Container
from typing import Any

from services.actor.environments.base import Environment, EpisodeInfo, Observation, Transition

__all__ = [
    "Environment",
    "EpisodeInfo",
    "Observation",
    "Transition",
    "UnknownEnvironmentError",
    "make",
]

_ALLOWED = "`atari`, `football`, `memory`, `module:factory` or the id of a gymnasium environment"


class UnknownEnvironmentError(ValueError):
    """A name that stands for no environment; the message says what was given and allowed."""


def make(
    name: str, arguments: dict[str, Any], seed: int, pictures: str | None = None
) -> Environment:
    """Makes one environment.

    Args:
      name: `atari`, `football`, `memory`, `module:factory` or a gymnasium id. A factory returns
        an `Environment` or a `gymnasium.Env`; it gets the seed if it has a parameter `seed`.
      arguments: Keyword arguments of the environment's constructor.
      seed: In [0, 2**31); the same seed gives the same episodes, as far as the environment can.
      pictures: It will be asked for pictures; football makes them as this says: `drawn` or
        `engine`. None: it will not.

    Returns:
      The environment, before its first reset.

    Raises:
      UnknownEnvironmentError: The name stands for no environment.
      PictureError: It cannot make the pictures that it will be asked for.
      UnsupportedSpaceError: A gymnasium environment with a space that has no tensor spec.
    """
    if name == "atari":
        from services.actor.environments.atari import AtariEnvironment

        return AtariEnvironment(**{"seed": seed, **arguments})
    if name == "football":
        from services.actor.environments.football import FootballEnvironment

        return FootballEnvironment(**{"seed": seed, "pictures": pictures or "drawn", **arguments})
    if name == "memory":
        from services.actor.environments.memory import MemoryEnvironment

        return MemoryEnvironment(**{"seed": seed, **arguments})
    factory = _find_factory(name) if ":" in name else None
    if factory is not None:
        return _from_factory(name, factory, arguments, seed, pictures is not None)
    return _from_gymnasium(name, arguments, seed, pictures is not None)


def _find_factory(name: str) -> Callable[..., object] | None:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that the user's module misses is the user's bug, with its own traceback.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UnknownEnvironmentError(
            f"environment {name!r}: there is no module {error.name!r} on the import path;"
            f" allowed: {_ALLOWED}"
        ) from None
    factory = getattr(module, attribute, None)
    if callable(factory):
        return factory  # type: ignore[no-any-return]
    if "-v" in attribute:  # gymnasium's own "module:id": the import registers the id
        return None
    raise UnknownEnvironmentError(
        f"environment {name!r}: module {module_name!r} has no callable {attribute!r};"
        f" allowed: {_ALLOWED}"
    )


def _from_factory(
    name: str,
    factory: Callable[..., object],
    arguments: dict[str, Any],
    seed: int,
    pictures: bool,
) -> Environment:
    try:
        parameters: Container[str] = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable without a signature, of an extension module
        parameters = ()
    ours: dict[str, Any] = {"seed": seed}
    if pictures:
        ours["render_mode"] = "rgb_array"
    made = factory(**{key: ours[key] for key in ours if key in parameters} | arguments)
    if isinstance(made, Environment):
        return made
    import gymnasium

    from services.actor.environments.gym import GymEnvironment

    if isinstance(made, gymnasium.Env):
        return GymEnvironment(made, seed)
    raise TypeError(
        f"environment {name!r}: the factory returned a {type(made).__name__}, allowed:"
        " services.actor.environments.Environment or gymnasium.Env"
    )


def _from_gymnasium(name: str, arguments: dict[str, Any], seed: int, pictures: bool) -> Environment:
    import gymnasium

    from services.actor.environments.gym import GymEnvironment

    identifier = name.rpartition(":")[2]  # the module before it has been imported
    try:
        gymnasium.spec(identifier)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UnknownEnvironmentError(
            f"environment {name!r} is unknown ({error}); allowed: {_ALLOWED}"
        ) from None
    # The checker costs several microseconds a step and is for those who write environments.
    if pictures:
        arguments = {"render_mode": "rgb_array", **arguments}
        # MuJoCo's, read when it is imported: without a display it renders through EGL.
        if "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")
    return GymEnvironment(gymnasium.make(identifier, disable_env_checker=True, **arguments), seed)
