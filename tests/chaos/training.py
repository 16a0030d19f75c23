"""A trainer that stands still, and numbers that are not finite."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Iterator

import numpy as np
import psutil

from services.learner import checkpoint
from tests.chaos.environment import HUGE_FILE
from tests.chaos.network import POISON_FILE, STOP_FILE
from tests.chaos.outcome import Outcome
from tests.chaos.system import ChaosError, System
from tests.e2e import runs

_SKIPPED = 4
_MAX_GROWTH_BYTES = 16 << 20


def stop_the_trainer(system: System, seconds: float) -> Outcome:
    """Actors are held back, memory stays as it is, and the lag afterwards is within its bound."""
    outcome = Outcome(f"trainer stopped for {seconds:.0f} s", injected=1)
    began = time.monotonic()
    with _file(system.folder / STOP_FILE):
        groups = system.metric("streams")
        system.wait(
            lambda: system.metric("held_groups") == groups, "all groups to be held back", 60
        )
        before, received = _memory(system), system.metric("steps_received_total")
        system.sleep(seconds)
        growth = max(_memory(system)[pid] - size for pid, size in before.items())
        if growth > _MAX_GROWTH_BYTES:
            raise ChaosError(f"a process has grown by {growth} bytes while training stood still")
        if system.metric("steps_received_total") != received:
            raise ChaosError("groups that are held back were answered")
    bound, lags = system.metric("policy_lag_bound"), []
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        lags.append(system.metric("policy_lag"))
        system.sleep(0.1)
    if max(lags) > bound:
        raise ChaosError(f"policy lag {max(lags)}, bound {bound}")
    system.wait_for_frames(500, "training to go on")
    outcome.recovered = 1
    outcome.longest_pause_seconds = system.longest_pause(began)
    outcome.note = f"largest growth {growth >> 10} KiB; lag {max(lags):.1f} of {bound:.1f}"
    return outcome


def huge_rewards(system: System) -> Outcome:
    """Rewards that overflow: updates are skipped and counted, and training goes on."""
    return _skip(system, "rewards that overflow", HUGE_FILE)


def poisoned_gradients(system: System) -> Outcome:
    """The same with a network that gives NaN in training."""
    return _skip(system, "gradients that are NaN", POISON_FILE)


def _skip(system: System, fault: str, name: str) -> Outcome:
    before = system.metric("skipped_updates_total")
    began = time.monotonic()
    with _file(system.folder / name):
        system.wait(
            lambda: system.metric("skipped_updates_total") >= before + _SKIPPED, "skipped updates"
        )
    system.wait_for_frames(1000, f"training after {fault}", 120)
    skipped = system.metric("skipped_updates_total")
    system.wait_for_frames(500, "training without skipped updates")
    if system.metric("skipped_updates_total") != skipped:
        raise ChaosError("updates are still skipped")
    note = f"{skipped - before:.0f} updates skipped"
    return Outcome(fault, 1, 1, system.longest_pause(began), note=note)


def poison_to_the_end(system: System) -> Outcome:
    """Nothing but NaN: the run ends with status 1 and a checkpoint of finite weights."""
    learner = system.processes["learner"]
    learner.is_wanted = False
    with _file(system.folder / POISON_FILE):
        status = system.wait(learner.popen.poll, "the learner to end", 120)
    if status != 1 or "20 updates in a row were not finite" not in learner.text():
        raise ChaosError(f"status {status}:\n{system.logs()}")
    newest = checkpoint.latest(system.checkpoints)
    assert newest is not None, "it has saved before"
    arrays = checkpoint.read(newest).variables()
    bad = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if bad:
        raise ChaosError(f"{newest}: {bad} are not finite")
    return Outcome("NaN twenty times in a row", 1, 1, note="ended with the last good weights")


@contextlib.contextmanager
def _file(path: pathlib.Path) -> Iterator[None]:
    path.touch()
    try:
        yield
    finally:
        path.unlink()


def _memory(system: System) -> dict[int, int]:
    """Resident bytes of each process."""
    return {pid: psutil.Process(pid).memory_info().rss for pid in runs.processes(system.folder)}
