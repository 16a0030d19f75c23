"""Checkpoint directories that are full, read-only, frozen, damaged or somebody else's."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from tests.chaos.outcome import Outcome
from tests.chaos.system import ChaosError, System

_DISK_BYTES = 2 << 20
_LEARNER = [sys.executable, "-m", "services.learner", "--child"]


@contextlib.contextmanager
def small_disk(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of 2 MB of its own; needs root and loop devices.

    Raises:
      OSError: It cannot be had.
    """
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    _run("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image))
    _run("mount", "-o", "loop", str(image), str(mount))
    try:
        yield mount
    finally:
        _run("umount", "--lazy", str(mount))


def full(system: System, disk: pathlib.Path) -> Outcome:
    """The disk fills up: training goes on, the failure is counted, and nothing partial is left."""
    filler = disk / "filler"

    def begin() -> None:
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()

    return _cannot_write(system, "checkpoint disk full", begin, filler.unlink)


def read_only(system: System, disk: pathlib.Path) -> Outcome:
    """The same, of a directory that takes nothing any more."""
    directory = str(disk / "checkpoints")

    def begin() -> None:
        _run("mount", "--bind", directory, directory)
        _run("mount", "-o", "remount,bind,ro", directory)

    return _cannot_write(
        system, "checkpoint directory read-only", begin, lambda: _run("umount", directory)
    )


def frozen(system: System, disk: pathlib.Path) -> Outcome:
    """The same, of a disk that answers nobody: the slowest there is."""
    return _cannot_write(
        system,
        "checkpoint disk without an answer",
        lambda: _run("fsfreeze", "--freeze", str(disk)),
        lambda: _run("fsfreeze", "--unfreeze", str(disk)),
    )


def _cannot_write(
    system: System, fault: str, begin: Callable[[], None], end: Callable[[], None]
) -> Outcome:
    before = system.metric("checkpoint_failures_total")
    began = time.monotonic()
    begin()
    try:
        system.wait(
            lambda: system.metric("checkpoint_failures_total") > before + 1, "a failure", 60
        )
        system.wait_for_frames(500, f"training with {fault}", 60)
    finally:
        end()
    saved = time.time()
    system.wait(
        lambda: system.metric("checkpoint_timestamp_seconds") > saved, "a checkpoint again", 60
    )
    return Outcome(fault, 1, 1, system.longest_pause(began))


def refuse_a_second_learner(system: System) -> Outcome:
    """A second learner on the directory ends at once with status 2, and names it."""
    began = time.monotonic()
    command = [*_LEARNER, f"--experiment={system.folder / 'experiment.yaml'}"]
    port = ["--set=learner.address=127.0.0.1:0", "--set=learner.metrics_port=0"]
    second = subprocess.Popen([*command, *port], stderr=subprocess.PIPE, text=True)
    system.wait(lambda: second.poll() is not None, "the second learner to end", 120)
    _, errors = second.communicate()
    if second.returncode != 2 or "another learner writes to it" not in errors:
        raise ChaosError(f"the second learner ended with {second.returncode}:\n{errors}")
    system.wait_for_frames(100, "the first to train on")
    return Outcome("a second learner on the directory", 1, 1, system.longest_pause(began))


def refuse_a_damaged_checkpoint(system: System) -> Outcome:
    """Of a system whose learner has ended: the newest is cut off, named, and the one before taken.

    The learner is started again and trains on.
    """
    *_, good, newest = sorted(system.checkpoints.glob("checkpoint-*"))
    file = newest / "variables.npz"
    file.write_bytes(file.read_bytes()[:-1])
    command = [*_LEARNER, f"--experiment={system.folder / 'experiment.yaml'}"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    offer = f"the newest good one before it is {good}: move {newest} away"
    if refused.returncode != 2 or str(file) not in refused.stderr or offer not in refused.stderr:
        raise ChaosError(f"status {refused.returncode}:\n{refused.stderr}")
    newest.rename(system.folder / newest.name)
    system.processes["learner"].is_wanted = True
    system.wait_for_frames(100, "training from the one before", 180)
    if f"resumed from {good}" not in system.processes["learner"].text():
        raise ChaosError(system.logs())
    return Outcome("a checkpoint that is cut off", 1, 1, note="refused; the one before was taken")


def fence_off_an_old_learner(folder: pathlib.Path) -> Outcome:
    """A learner stands still, loses its lock, and comes back while its successor trains."""
    (folder / "old").mkdir()
    (folder / "new").mkdir()
    old = System(folder / "old", checkpoint_interval_seconds=1.0)
    new = System(
        folder / "new",
        checkpoint_interval_seconds=1.0,
        checkpoint_directory=str(old.checkpoints),
    )
    try:
        old.start(actors=1)
        old.wait(lambda: list(old.checkpoints.glob("checkpoint-*")), "a checkpoint")
        stopped = old.processes["learner"]
        stopped.is_wanted = False
        stopped.popen.send_signal(signal.SIGSTOP)
        (old.checkpoints / ".lock").unlink()  # as a lease of NFS runs out
        new.start(actors=1)
        newest = max(old.checkpoints.glob("checkpoint-*"))
        stopped.popen.send_signal(signal.SIGCONT)
        status = new.wait(stopped.popen.poll, "the old learner to end", 60)
        if status != 1 or "another learner has taken it over" not in stopped.text():
            raise ChaosError(f"the old learner ended with {status}:\n{old.logs()}")
        new.wait(lambda: max(old.checkpoints.glob("checkpoint-*")) > newest, "a newer checkpoint")
        books = new.books(new.end())
        return Outcome("an old learner comes back", 1, 1, frames_wrong=books.wrong)
    finally:
        old.kill()
        new.kill()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except subprocess.CalledProcessError as error:
        raise OSError(f"{' '.join(command)}: {error.stderr.strip()}") from None
