"""Football steps per CPU-second: gfootball's own wrappers against the direct path.

`make bench-football` prints one line of JSON. Both are stepped in turns, with random actions, in
one process, so that a change in the machine's load meets both.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from services.actor.environments.football import FootballEnvironment, engine

SCENARIOS = ("academy_empty_goal_close", "academy_3_vs_1_with_keeper", "11_vs_11_easy_stochastic")
# The direct path's name, gfootball's name, and whether gfootball stacks four frames (the direct
# path leaves stacking to the learner).
REPRESENTATIONS = (("smm", "extracted", True), ("simple115v2", "simple115v2", False))
_TURN_STEPS = 100


class Measured:
    """An environment, and the CPU time that its steps and resets take."""

    def __init__(self, reset: Callable[[], Any], step: Callable[[int], bool]) -> None:
        self._reset, self._step = reset, step
        self.cpu_seconds = 0.0
        self.steps = 0
        reset()

    def run(self, actions: list[int]) -> None:
        """Steps it; the time of the process includes the engine's."""
        start = time.process_time()
        for action in actions:
            if self._step(action):
                self._reset()
        self.cpu_seconds += time.process_time() - start
        self.steps += len(actions)

    @property
    def steps_per_cpu_second(self) -> float:
        return self.steps / self.cpu_seconds


def make_direct(scenario: str, representation: str) -> Measured:
    environment = FootballEnvironment(scenario=scenario, representation=representation)

    def step(action: int) -> bool:
        return environment.step(np.array([[action]], np.int32)).terminated

    return Measured(environment.reset, step)


def make_stock(scenario: str, representation: str, stacked: bool) -> Measured:
    engine.load()
    from gfootball.env import create_environment

    random.seed(0)
    environment = create_environment(scenario, stacked=stacked, representation=representation)

    def step(action: int) -> bool:
        done: bool = environment.step(action)[2]
        return done

    return Measured(environment.reset, step)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="of each environment")
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    results: dict[str, Any] = {}
    for scenario in arguments.scenarios:
        for ours, theirs, stacked in REPRESENTATIONS:
            stock, direct = make_stock(scenario, theirs, stacked), make_direct(scenario, ours)
            for _ in range(max(1, arguments.steps // _TURN_STEPS)):
                actions = rng.integers(0, 19, _TURN_STEPS).tolist()
                stock.run(actions)
                direct.run(actions)
            results[f"{scenario}/{ours}"] = {
                "stock": round(stock.steps_per_cpu_second, 1),
                "direct": round(direct.steps_per_cpu_second, 1),
                "ratio": round(direct.steps_per_cpu_second / stock.steps_per_cpu_second, 3),
            }
    print(json.dumps({"benchmark": "football", "unit": "steps/CPU-second", "results": results}))


if __name__ == "__main__":
    main()
