"""Atari steps per CPU-second: the bare emulator against the environment.

`make bench-atari` prints one line of JSON. Both are stepped in turns, with the same random actions,
in one process of one thread, like an actor's worker, so that a change in the machine's load meets
both.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import ale_py
import numpy as np
from ale_py import roms

from services.actor.environments.atari import AtariEnvironment

_TURN_STEPS = 100
_FRAME_SKIP = 4


class Emulator:
    """The emulator alone: its frames, and no look at the screen."""

    def __init__(self, game: str) -> None:
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("random_seed", 0)
        self._ale.loadROM(str(roms.get_rom_path(game)))
        self._ale.reset_game()
        self._actions = self._ale.getLegalActionSet()

    def run(self, actions: list[int]) -> None:
        """Steps it."""
        for action in actions:
            choice = self._actions[action]
            for _ in range(_FRAME_SKIP):
                self._ale.act(choice)
            if self._ale.game_over():
                self._ale.reset_game()


class Whole:
    """The environment as an actor's worker steps it."""

    def __init__(self, game: str) -> None:
        self._environment = AtariEnvironment(game=game, frame_skip=_FRAME_SKIP, noop_max=0)
        self._environment.reset()

    def run(self, actions: list[int]) -> None:
        """Steps it."""
        for action in np.array(actions, np.int32).reshape(-1, 1, 1):
            if self._environment.step(action).terminated:
                self._environment.reset()


def measure(game: str, steps: int) -> dict[str, Any]:
    """Steps per CPU-second of both, and the share of the environment's time that is not theirs."""
    rng = np.random.default_rng(0)
    parts: dict[str, Emulator | Whole] = {"emulator": Emulator(game), "environment": Whole(game)}
    seconds = dict.fromkeys(parts, 0.0)
    turns = max(1, steps // _TURN_STEPS)
    for _ in range(turns):
        actions = rng.integers(0, 18, _TURN_STEPS).tolist()
        for name, part in parts.items():
            start = time.process_time()
            part.run(actions)
            seconds[name] += time.process_time() - start
    result: dict[str, Any] = {
        name: round(turns * _TURN_STEPS / spent, 1) for name, spent in seconds.items()
    }
    return result | {
        "preprocessing_share": round(1 - seconds["emulator"] / seconds["environment"], 3)
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000, help="of each game")
    parser.add_argument("--games", nargs="+", default=("pong", "breakout", "seaquest"))
    arguments = parser.parse_args()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    results = {game: measure(game, arguments.steps) for game in arguments.games}
    print(json.dumps({"benchmark": "atari", "unit": "steps/CPU-second", "results": results}))


if __name__ == "__main__":
    main()
