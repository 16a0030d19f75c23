"""Checks that the football engine is installed and works: `make selftest`, and in the image.

Exits with 1 and says what is missing if it does not.
"""

from __future__ import annotations

import sys

import numpy as np

from services.actor.environments.football.engine import EngineMissingError
from services.actor.environments.football.environment import FootballEnvironment

_STEPS = 20
_SHOOT = 12


def main() -> int:
    """Steps a game; returns the exit status."""
    try:
        environment = FootballEnvironment()
    except EngineMissingError as error:
        print(f"seedpod selftest: FAILED: {error}", file=sys.stderr)
        return 1
    environment.reset()
    marked = 0
    for _ in range(_STEPS):
        transition = environment.step(np.array([[_SHOOT]], np.int32))
        marked = int(np.count_nonzero(transition.observation[0]))
        if transition.terminated or transition.truncated:
            environment.reset()
    environment.close()
    if not marked:
        print("seedpod selftest: FAILED: the engine shows an empty field", file=sys.stderr)
        return 1
    print(f"seedpod selftest: the football engine works ({_STEPS} steps)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
