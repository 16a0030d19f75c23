"""Kills and stops of every process, and actors that come and go."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import psutil

from tests.chaos import sequences, streams
from tests.chaos.outcome import Outcome
from tests.chaos.system import ChaosError, System

VTRACE_KINDS = ("actor", "worker", "front_end", "learner")
R2D2_KINDS = ("replay", *VTRACE_KINDS)
NAMES = {
    "actor": "an actor",
    "worker": "an environment worker",
    "front_end": "a front end",
    "learner": "the learner",
    "replay": "the replay service",
}
# After a fault, so many frames show that all is well again: more than were on their way.
_MORE_FRAMES = 500
# TensorFlow's start, on a machine that others use too.
_PATIENCE_SECONDS = 180.0
_UPDATES = 20
# A learner that waited for actors which are gone would wait for as long as they are.
_STALL_SECONDS = 10.0


def kill_each(system: System, kinds: Sequence[str]) -> list[Outcome]:
    """SIGKILL of each kind in turn."""
    return [_fault(system, f"SIGKILL of {NAMES[kind]}", kind, _kill) for kind in kinds]


def kill_at_random(system: System, kinds: Sequence[str], seconds: float, seed: int) -> Outcome:
    """SIGKILL of any kind at any time, for so long, whether the system is well again or not."""
    choose = random.Random(seed)
    outcome = Outcome(f"SIGKILL at random for {seconds:.0f} s")
    began = time.monotonic()
    # The learner rarely: it needs its start to be killed while it trains.
    weights = [1 if kind == "learner" else 6 for kind in kinds]
    while time.monotonic() - began < seconds:
        (kind,) = choose.choices(kinds, weights)
        _kill(system, kind)
        outcome.injected += 1
        system.sleep(choose.uniform(1.0, 15.0))
    system.wait_for_frames(_MORE_FRAMES, "training to go on", _PATIENCE_SECONDS)
    outcome.recovered = outcome.injected
    outcome.longest_pause_seconds = system.longest_pause(began)
    return outcome


def stop_each(system: System, kinds: Sequence[str], seconds: float) -> list[Outcome]:
    """SIGSTOP of each kind for so long, then SIGCONT."""

    def stop(system: System, kind: str) -> None:
        with _stopped(system.find(kind)):
            system.sleep(seconds)

    return [
        _fault(system, f"SIGSTOP of {NAMES[kind]} for {seconds:.0f} s", kind, stop)
        for kind in kinds
    ]


def notice_a_stopped_actor(system: System) -> Outcome:
    """A stopped actor's streams end within the deadline, and its slots after the grace period."""
    outcome = Outcome("SIGSTOP of an actor with its worker, beyond the lease's grace", injected=1)
    before = system.metric("streams")
    leased = system.metric("leased_slots")
    began = time.monotonic()
    # Its supervisor would replace the worker alone, under the same lease.
    with _stopped(system.find("actor")), _stopped(system.find("worker")):
        deadline = 2 * system.keepalive_seconds
        system.wait(
            lambda: system.metric("streams") < before,
            f"its streams to end within {deadline} s (and a little)",
            deadline + 5,
        )
        noticed = time.monotonic() - began
        system.wait(
            lambda: system.metric("leased_slots") < leased,
            "its slots to be free",
            system.grace_seconds + 5,
        )
    system.wait(lambda: system.metric("streams") == before, "it to come back", _PATIENCE_SECONDS)
    outcome.recovered = 1
    outcome.longest_pause_seconds = system.longest_pause(began)
    outcome.note = f"noticed after {noticed:.1f} s"
    return outcome


def scale(system: System, counts: Sequence[int], explore_seconds: float = 0.0) -> Iterator[Outcome]:
    """Numbers of actors, one after the other: each has slots of its own, and training goes on.

    With R2D2 each number stays for `explore_seconds`, and slots must explore as their places
    say. An evaluation slot, which training never holds back, asks all the time: its longest wait
    is the longest stall.
    """
    outcome = Outcome("actors scaled " + " -> ".join(map(str, counts)))
    began = time.monotonic()
    stages = []
    with streams.Probe(system.address) as probe:
        for count in counts:
            system.scale(count)
            outcome.injected += 1
            slots = 8 * count  # two groups of four
            names = ("live_slots", "leased_slots") if system.r2d2 else ("live_slots",)
            system.wait(
                lambda slots=slots, names=names: all(  # type: ignore[misc]
                    system.metric(name) == slots + 1 for name in names
                ),
                f"{slots} slots and the probe's",
                _PATIENCE_SECONDS,
            )
            system.wait_for_frames(_MORE_FRAMES, "training to go on", _PATIENCE_SECONDS)
            outcome.recovered += 1
            if system.r2d2:
                first = int(system.metric("updates_total"))
                system.sleep(explore_seconds)
                # Training may have begun just now.
                system.wait(
                    lambda first=first: system.metric("updates_total") > first + _UPDATES,  # type: ignore[misc]
                    f"{_UPDATES} updates",
                    _PATIENCE_SECONDS,
                )
                stages.append(sequences.Stage(slots, first, int(system.metric("updates_total"))))
    outcome.longest_pause_seconds = system.longest_pause(began)
    if max(probe.seconds) > _STALL_SECONDS:
        raise ChaosError(f"a request waited for {max(probe.seconds):.1f} s")
    outcome.note = (
        f"of {len(probe.seconds)} answers the slowest took {max(probe.seconds):.2f} s, the median"
        f" {np.median(probe.seconds) * 1e3:.1f} ms"
    )
    yield outcome
    if stages:
        system.wait(
            lambda: sequences.is_over(system.audit(), stages[-1]),
            "replay to have what all slots did",
            _PATIENCE_SECONDS,
        )
        yield sequences.epsilons(system.audit(), stages)


@contextlib.contextmanager
def _stopped(process: psutil.Process) -> Iterator[None]:
    """SIGSTOP, then SIGCONT, unless it was replaced meanwhile."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _kill(system: System, kind: str) -> None:
    try:
        system.find(kind).send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        raise ChaosError(f"{kind} ended before it was killed:\n{system.logs()}") from None


def _fault(system: System, name: str, kind: str, do: Callable[[System, str], None]) -> Outcome:
    began = time.monotonic()
    do(system, kind)
    system.wait_for_frames(_MORE_FRAMES, f"training after {name}", _PATIENCE_SECONDS)
    return Outcome(name, 1, 1, system.longest_pause(began))
