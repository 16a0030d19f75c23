"""Which faults are done to which system, in what order.

`make chaos` runs all of it, the tests a shorter form of the same. Each function yields an
`Outcome` for each kind of fault as it is found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

from tests.chaos import checkpoints, links, processes, streams, training
from tests.chaos.outcome import Outcome
from tests.chaos.system import System


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and how much.

    Attributes:
      keepalive_seconds: Of all connections; peers that are stopped are noticed within twice that.
      grace_seconds: Of leases.
      stop_seconds: Of each SIGSTOP, and of the trainer.
      cut_seconds: Of short cuts of the network; long ones outlast the lease's grace.
      random_seconds: Of kills at random; 0: none.
      watch_seconds: Of what is watched for its rate.
      actors: To scale to, one after the other.
      r2d2_actors: The same of R2D2.
      explore_seconds: How long each of these numbers is watched.
      streams: Of light clients; 0: none.
      seed: Of kills at random.
    """

    keepalive_seconds: float = 5.0
    grace_seconds: float = 20.0
    stop_seconds: float = 60.0
    cut_seconds: float = 5.0
    random_seconds: float = 600.0
    watch_seconds: float = 60.0
    actors: tuple[int, ...] = (4, 12, 4, 12, 2)
    r2d2_actors: tuple[int, ...] = (4, 12, 4, 12, 2)
    explore_seconds: float = 30.0
    streams: int = 2000
    seed: int = 0


SHORT = Settings(
    keepalive_seconds=1.0,
    grace_seconds=4.0,
    stop_seconds=5.0,
    cut_seconds=3.0,
    random_seconds=0.0,
    watch_seconds=3.0,
    actors=(3, 1, 3, 2),
    r2d2_actors=(1, 2),
    explore_seconds=3.0,
    streams=0,
)


def vtrace(folder: pathlib.Path, settings: Settings) -> Iterator[Outcome]:
    """Faults of all but replay: processes, the network to the actors, checkpoints, numbers."""
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(_link())
        disk = stack.enter_context(_disk(folder))
        directory = {} if disk is None else {"checkpoint_directory": str(disk / "checkpoints")}
        system = stack.enter_context(_system(folder, settings, link, "actor", **directory))
        system.start()
        yield from processes.kill_each(system, processes.VTRACE_KINDS)
        yield from processes.stop_each(system, processes.VTRACE_KINDS, settings.stop_seconds)
        yield processes.notice_a_stopped_actor(system)
        yield from processes.scale(system, settings.actors)
        if settings.random_seconds:
            yield processes.kill_at_random(
                system, processes.VTRACE_KINDS, settings.random_seconds, settings.seed
            )
        yield from _links(system, link, "actors and learner", settings)
        yield links.slow_link(system, settings.watch_seconds)
        yield from _disks(system, disk)
        yield training.stop_the_trainer(system, settings.stop_seconds)
        yield training.huge_rewards(system)
        yield training.poisoned_gradients(system)
        yield training.poison_to_the_end(system)
        yield _books(system, "books of the V-trace run", failed=True)


def r2d2(folder: pathlib.Path, settings: Settings) -> Iterator[Outcome]:
    """Faults of all processes, and of the network between learner and replay."""
    with _link() as link, _system(folder, settings, link, "replay", r2d2=True) as system:
        system.start()
        yield from processes.scale(system, settings.r2d2_actors, settings.explore_seconds)
        yield from processes.kill_each(system, processes.R2D2_KINDS)
        yield from processes.stop_each(
            system, ("replay", "learner", "worker"), settings.stop_seconds
        )
        if settings.random_seconds:
            yield processes.kill_at_random(
                system, processes.R2D2_KINDS, settings.random_seconds / 2, settings.seed
            )
        yield from _links(system, link, "learner and replay", settings)
        yield _books(system, "books of the R2D2 run")


def damaged(folder: pathlib.Path, settings: Settings) -> Iterator[Outcome]:
    """A newest checkpoint that is not what was saved."""
    with _system(folder, settings, None, "") as system:
        system.start(actors=1)
        saved = system.checkpoints.glob
        system.wait(lambda: len(list(saved("checkpoint-*"))) > 1, "two checkpoints")
        system.processes["learner"].end()
        yield checkpoints.refuse_a_damaged_checkpoint(system)
        yield _books(system, "books after a damaged checkpoint")


def old_learner(folder: pathlib.Path, settings: Settings) -> Iterator[Outcome]:
    """A learner that comes back after its directory was taken over."""
    yield checkpoints.fence_off_an_old_learner(folder)


def crowd(folder: pathlib.Path, settings: Settings) -> Iterator[Outcome]:
    """Thousands of streams."""
    yield streams.many(folder, settings.streams)


ALL = {
    "vtrace": vtrace,
    "r2d2": r2d2,
    "damaged": damaged,
    "old_learner": old_learner,
    "crowd": crowd,
}


def _links(
    system: System, link: links.Link | None, between: str, settings: Settings
) -> Iterator[Outcome]:
    if link is None:
        yield Outcome(f"network between {between}", note="SKIPPED: needs root and `ip netns`")
        return
    yield links.cut(system, link, between, settings.cut_seconds)
    yield links.cut(system, link, between, settings.grace_seconds + 2 * settings.cut_seconds)
    yield links.lose_packets(system, link, between, 0.1, settings.watch_seconds)


def _disks(system: System, disk: pathlib.Path | None) -> Iterator[Outcome]:
    if disk is None:
        yield Outcome("checkpoint disk", note="SKIPPED: needs root and loop devices")
    else:
        yield checkpoints.full(system, disk)
        yield checkpoints.read_only(system, disk)
        yield checkpoints.frozen(system, disk)
    yield checkpoints.refuse_a_second_learner(system)


def _books(system: System, name: str, failed: bool = False) -> Outcome:
    """Ends the system and compares what was counted.

    Args:
      system: Whose learner has ended by itself if `failed`.
      name: Of the row.
      failed: Whether it has failed, as it must.
    """
    summary = system.end(status=1 if failed else 0)
    books = system.books(summary)
    steps = summary["steps"]
    note = (
        f"{books.stepped} frames stepped, {books.trained} trained; of the last learner"
        f" {steps['received']} received, {steps['dropped']} dropped, {steps['unfinished']}"
        " unfinished"
    )
    return Outcome(name, 0, 0, 0.0, books.lost, books.wrong, system.leftovers(), note)


@contextlib.contextmanager
def _link() -> Iterator[links.Link | None]:
    try:
        link = links.Link()
    except OSError:
        yield None
        return
    try:
        yield link
    finally:
        link.close()


@contextlib.contextmanager
def _disk(folder: pathlib.Path) -> Iterator[pathlib.Path | None]:
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(checkpoints.small_disk(folder))
        except OSError:
            disk = None
        yield disk


@contextlib.contextmanager
def _system(
    folder: pathlib.Path, settings: Settings, link: links.Link | None, far: str, **arguments: object
) -> Iterator[System]:
    """A system whose services of kind `far` are at the other end of the link."""
    replay_is_far = far == "replay"
    system = System(
        folder,
        host="127.0.0.1" if link is None else link.here,
        replay_host=link.there if link is not None and replay_is_far else None,
        prefixes={} if link is None else {far: link.prefix},
        keepalive_seconds=settings.keepalive_seconds,
        grace_seconds=settings.grace_seconds,
        **arguments,  # type: ignore[arg-type]
    )
    try:
        yield system
    finally:
        system.kill()
