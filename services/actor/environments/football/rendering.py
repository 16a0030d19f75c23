"""The engine's own pictures, on an OpenGL display or off-screen through EGL, in software too.

`FootballEnvironment` asks for them with `pictures="engine"`. A process can have one engine that
renders. One that cannot render ends the process, so `check` lets another process try.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from services.actor.environments.base import PictureError
from services.actor.environments.football import engine

# Starting to render takes 10 s in software on an idle machine.
_CHECK_SECONDS = 240.0
_RESOLUTION = (800, 450)
_SHOWN_CHARACTERS = 400


def check() -> None:
    """Renders a picture in a process of its own.

    Raises:
      PictureError: It cannot be done here.
    """
    try:
        result = subprocess.run(
            [sys.executable, "-c", f"import {__name__} as here; raise SystemExit(here.main())"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CHECK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        said = f"it had not begun within {_CHECK_SECONDS:.0f} s"
    else:
        if result.returncode == 0:
            return
        # The engine writes its stack, too: lines with the paths of libraries.
        lines = (result.stderr + result.stdout).splitlines()
        said = " ".join(line for line in lines if not line.startswith("/"))[:_SHOWN_CHARACTERS]
    raise PictureError(
        "the football engine cannot render here, which takes a display, or OpenGL in software"
        " (Debian: libegl1, libgl1-mesa-dri); actor.recording.football=drawn needs neither."
        f" It said: {said}"
    )


def start() -> Any:
    """An engine that can render, which it does when it is asked for a frame."""
    return engine.start(_RESOLUTION, renders=True)


def reset(instance: Any, settings: Any) -> None:
    """Begins a game that can be rendered: what that takes is prepared here, or never."""
    instance.game_config.render = True
    instance.reset(settings, False)
    instance.game_config.render = False


def render(instance: Any) -> npt.NDArray[np.uint8]:
    """The engine's picture of the game as it stands: uint8 [height, width, 3]."""
    width, height = _RESOLUTION
    instance.game_config.render = True
    instance.render(True)
    data = np.frombuffer(instance.get_frame(), np.uint8)
    instance.game_config.render = False
    # Planes of red, green and blue, of interleaved pixels that lie upside down.
    planes = data.reshape(-1, 3).T.reshape(3, height, width)
    return np.ascontiguousarray(planes.transpose(1, 2, 0)[::-1])


def main() -> int:
    """What `check` runs: renders a game; what cannot be done ends the process."""
    from services.actor.environments.football.game import Game

    game = Game("academy_empty_goal_close", 1, 0, 0, renders=True)
    game.reset(1)
    return 0 if game.render().any() else 1
