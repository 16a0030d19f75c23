"""What the actor costs beside its environments: `make bench-actor`.

A whole actor, its supervisor and one worker of two groups, plays against the learner's serving
path without a network, which answers every request at once with action 0. In turn with it, twelve
times, the same number of environments, and one alone, are stepped in a loop with the same actions.
Resets count as steps in all of them: an actor sends a record of either.

The difference between one and many environments in a loop is the caches' and not the actor's: so
the actor is to be held against as many as it has. Its CPU time is its worker's process clock, as
the requests tell it, and the supervisor's. What the requests tell of the environments' part of it
includes what a group does around each of their calls. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

from services.actor import environments
from services.learner.step_store import COUNTERS
from services.shared.config import LearnerConfig
from tests.benchmarks import clock, inference_server

SYNTHETIC = "tests.benchmarks.synthetic:Synthetic"
ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "football, empty goal, 115 floats": (
        "football",
        {"scenario": "academy_empty_goal_close", "representation": "simple115v2"},
    ),
    "football, 11 against 11, map": (
        "football",
        {"scenario": "11_vs_11_easy_stochastic", "representation": "smm"},
    ),
    "2 ms of CPU, 115 floats": (SYNTHETIC, {"cpu_milliseconds": 2}),
    "Atari pong": ("atari", {"game": "pong"}),
    "CartPole": ("CartPole-v1", {}),
    "nothing, 115 floats": (SYNTHETIC, {}),
}
_WARM_UP_REQUESTS = 20
_ROUNDS = 12
# What is under way at a stop is served, and its counters are read.
_SETTLE_SECONDS = 0.1


class Loop:
    """Environments that are stepped in turn, without an actor."""

    def __init__(self, name: str, arguments: dict[str, Any], count: int) -> None:
        """Makes so many."""
        self._environments = [environments.make(name, arguments, seed) for seed in range(count)]
        spec = self._environments[0].spec
        self._action = np.zeros((spec.agents, spec.action.size), spec.action.dtype)
        self._ended = [False] * count
        for environment in self._environments:
            environment.reset()

    def run(self, seconds: float, count: int) -> tuple[int, float]:
        """Steps the first `count` of them for so long; returns steps and CPU seconds."""
        steps, began, started = 0, time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            for i, environment in enumerate(self._environments[:count]):
                if self._ended[i]:
                    environment.reset()
                    self._ended[i] = False
                else:
                    transition = environment.step(self._action)
                    self._ended[i] = transition.terminated or transition.truncated
            steps += count
        return steps, time.process_time() - started

    def close(self) -> None:
        """Closes them all."""
        for environment in self._environments:
            environment.close()


@contextlib.contextmanager
def running_actor(
    learner_address: str, name: str, arguments: dict[str, Any], k: int, groups: int
) -> Iterator[subprocess.Popen[bytes]]:
    """An actor of one worker; yields its supervisor."""
    settings = {
        "environment": name,
        "environment_arguments": arguments,
        "learner_address": learner_address,
        "workers": 1,
        "groups": groups,
        "environments_per_group": k,
    }
    with tempfile.TemporaryDirectory() as folder:
        experiment = pathlib.Path(folder) / "experiment.yaml"
        experiment.write_text(json.dumps({"actor": settings}))
        command = [sys.executable, "-m", "services.actor", "--child", f"--experiment={experiment}"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()  # it may stand still; its workers end with it
            process.wait()


class Actor:
    """A whole actor at the learner's serving path, which stands still but for `run`."""

    def __init__(self, supervisor: psutil.Process, counts: inference_server.Counts, k: int) -> None:
        """Stops it."""
        self._supervisor = supervisor
        self._workers = supervisor.children(recursive=True)
        self._counts = counts
        self._k = k
        self._stop()
        self._began = self._look()
        self._seconds = 0.0

    def run(self, seconds: float) -> None:
        """Lets it play for so long."""
        started = time.monotonic()
        for process in (*self._workers, self._supervisor):
            process.resume()
        time.sleep(seconds)
        self._seconds += time.monotonic() - started
        self._stop()

    def spent(self) -> dict[str, float]:
        """Steps, and seconds: of the clock, of CPU, and what it tells of its environments'."""
        now = self._look()
        return {
            **{key: value - self._began[key] for key, value in now.items()},
            "wall": self._seconds,
        }

    def _stop(self) -> None:
        # The supervisor, too: it would think that its worker hangs.
        for process in (self._supervisor, *self._workers):
            process.suspend()
        time.sleep(_SETTLE_SECONDS)

    def _look(self) -> dict[str, float]:
        told = dict(zip(COUNTERS, self._counts.store, strict=True))
        environment = told["environment_cpu_seconds"]
        return {
            "steps": told["requests"] * self._k,
            "environment": environment,
            "cpu": environment
            + told["actor_cpu_seconds"]
            + clock.cpu_seconds(self._supervisor.pid),
        }


@contextlib.contextmanager
def _playing(name: str, arguments: dict[str, Any], k: int, groups: int) -> Iterator[Actor]:
    """An actor and the path that serves it."""
    config = LearnerConfig.model_validate(
        {
            "address": "localhost:0",
            "max_slots": groups * k * 16,  # whatever number of agents
            "inference_batch_size": k,
            "threads": 1,
        }
    )
    with (
        inference_server.running(config, network=False) as (server, counts),
        running_actor(f"localhost:{counts.port.value}", name, arguments, k, groups) as supervisor,
    ):
        inference_server.wait_for(
            lambda: counts.store[COUNTERS.index("requests")] > _WARM_UP_REQUESTS,
            server.is_alive,
            lambda: supervisor.poll() is None,
        )
        yield Actor(psutil.Process(supervisor.pid), counts, k)


def measure(
    name: str, arguments: dict[str, Any], k: int, groups: int, seconds: float
) -> dict[str, float]:
    """A row's figures."""
    loop = Loop(name, arguments, k * groups)
    sizes = {"one": 1, "many": k * groups}
    spent: dict[str, list[tuple[int, float]]] = {size: [] for size in sizes}
    with _playing(name, arguments, k, groups) as player:
        # In turn: the machine's speed changes from one second to the next.
        for _ in range(_ROUNDS):
            player.run(seconds / _ROUNDS)
            for size, n in sizes.items():
                spent[size].append(loop.run(seconds / _ROUNDS, n))
        actor = player.spent()
    loop.close()
    rates = {
        size: sum(steps for steps, _ in runs) / sum(cpu for _, cpu in runs)
        for size, runs in spent.items()
    }
    rate = actor["steps"] / actor["cpu"]
    return {
        "one_steps_per_cpu_second": rates["one"],
        "many_steps_per_cpu_second": rates["many"],
        "actor_steps_per_cpu_second": rate,
        "share_of_one": rate / rates["one"],
        "share_of_many": rate / rates["many"],
        "added_us": (1 / rate - 1 / rates["many"]) * 1e6,
        "told_environment_share": actor["environment"] / actor["cpu"],
        "steps_per_second": actor["steps"] / actor["wall"],
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(ENVIRONMENTS), default=list(ENVIRONMENTS))
    parser.add_argument("--k", type=int, default=16, help="of a group (%(default)s)")
    parser.add_argument("--groups", type=int, default=2, help="of the worker (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each part (%(default)s)")
    parsed = parser.parse_args()
    many = parsed.k * parsed.groups
    print(
        f"{'steps per CPU-second':32} {'alone':>9} {f'{many} in turn':>10} {'actor':>9}"
        f" {'of alone':>9} {f'of {many}':>7} {'us added':>9} {'steps/s':>9}"
    )
    table = {}
    for name in parsed.only:
        row = measure(*ENVIRONMENTS[name], parsed.k, parsed.groups, parsed.seconds)
        table[name] = {key: round(value, 4) for key, value in row.items()}
        print(
            f"{name:32} {row['one_steps_per_cpu_second']:9,.0f}"
            f" {row['many_steps_per_cpu_second']:10,.0f}"
            f" {row['actor_steps_per_cpu_second']:9,.0f} {row['share_of_one']:9.1%}"
            f" {row['share_of_many']:7.1%} {row['added_us']:9.1f}"
            f" {row['steps_per_second']:9,.0f}",
            flush=True,
        )
    print(json.dumps({"k": parsed.k, "groups": parsed.groups, "rows": table}))


if __name__ == "__main__":
    main()
