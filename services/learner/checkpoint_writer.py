"""Who may write checkpoints to a directory, and when: the claim, and the thread that writes.

The learner's service has one `Writer`. Two learners on one directory are kept apart twice. A lock
refuses the second one while the first lives, on one machine and on file systems whose locks reach
further. Where the lock does not reach, or was lost while its holder stood still (a lease of NFS, a
paused machine), the second takes the directory over, and the first is fenced off:

    take over:  1. write one's token over the owner's   2. move away what others are writing
    save:       1. write under a name of one's own      2. check the token      3. rename

Whenever the one that was overtaken goes on, either its token is gone at step 2, or what it wants
to rename is: a checkpoint of the newer learner never loses to one of the older.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pathlib
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from typing import IO

from services.learner import checkpoint
from services.learner.checkpoint import Array, Checkpoint, CheckpointError
from services.shared.specs import EnvironmentSpec

_LOCK = ".lock"
_OWNER = ".owner"
_FENCED_PREFIX = ".fenced-"
_log = logging.getLogger(__name__)


class ClaimLost(CheckpointError):
    """Another learner has taken the directory over: this one has to end."""


class Claim:
    """One learner's claim on a directory, for as long as its process lives.

    Attributes:
      token: Tells this claim from all others.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        """Takes the directory over.

        Args:
          directory: Made if it does not exist.

        Raises:
          CheckpointError: Another learner holds its lock, or it cannot be written to.
        """
        self._directory = directory
        self.token = secrets.token_hex(8)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (directory / _LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take_over()
        except BlockingIOError:
            raise CheckpointError(f"{directory}: another learner writes to it") from None
        except OSError as error:
            raise CheckpointError(f"{directory}: cannot be written to: {error}") from error

    def _take_over(self) -> None:
        new = self._directory / f"{_OWNER}-{self.token}"
        with new.open("w") as file:
            file.write(self.token)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._directory / _OWNER)
        for place, path in enumerate(self._directory.glob(f"{checkpoint.TEMPORARY_PREFIX}*")):
            # Moved at once, then removed: removing takes time, in which half of it could still be
            # renamed.
            path.rename(self._directory / f"{_FENCED_PREFIX}{self.token}-{place}")
        for path in self._directory.glob(f"{_FENCED_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)

    def check(self) -> None:
        """Makes sure that the directory is still this learner's.

        Raises:
          ClaimLost: It is not.
          OSError: The directory cannot be read.
        """
        if (self._directory / _OWNER).read_text() != self.token:
            raise ClaimLost(f"{self._directory}: another learner has taken it over")


class Writer:
    """Saves a run's checkpoints, in the background if asked to.

    Attributes:
      newest: The newest checkpoint's path; None without one.
      saved_at: Unix time of the last success, of the start before the first; None if checkpoints
        go nowhere.
      failures: Checkpoints that could not be written, or not begun in time.
      lost: Set when another learner has the directory: this one has to end.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, keep: int) -> None:
        """Sets where checkpoints go (None: nowhere) and how many are kept."""
        self._directory = None if directory is None else pathlib.Path(directory)
        self._keep = keep
        self._claim: Claim | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.newest = None if directory is None else checkpoint.latest(directory)
        self.saved_at = None if directory is None else time.time()
        self.failures = 0
        self.lost: ClaimLost | None = None

    @property
    def saves(self) -> bool:
        """Whether checkpoints go anywhere."""
        return self._directory is not None

    def claim(self) -> None:
        """Makes the directory this process's own, until it ends, however it ends.

        Raises:
          CheckpointError: Another learner writes to it, or it cannot be written to.
        """
        if self._directory is not None:
            self._claim = Claim(self._directory)
            # What the one before has saved as its last.
            self.newest = checkpoint.latest(self._directory)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None.

        Raises:
          CheckpointError: It is damaged; an older one is not taken silently in its place.
        """
        return None if self.newest is None else checkpoint.read(self.newest)

    def is_late(self) -> bool:
        """Whether the checkpoint before is still being written; logged and counted if so.

        A slow disk shall not hold training up: then a checkpoint is left out.
        """
        if self._thread is None or not self._thread.is_alive():
            return False
        self.failures += 1
        _log.error("%s: the checkpoint before is still being written", self._directory)
        return True

    def save(
        self,
        variables: Mapping[str, Array],
        counters: Mapping[str, int],
        environment_spec: EnvironmentSpec,
        experiment: str,
        *,
        wait: bool,
    ) -> None:
        """Saves a checkpoint; see `checkpoint.save`.

        Args:
          variables: Arrays by name; must not change any more.
          counters: See `checkpoint.save`.
          environment_spec: See `checkpoint.save`.
          experiment: See `checkpoint.save`.
          wait: Return when it is on disk. Otherwise it is written in the background, after the
            one before, and a failure is logged and counted: training need not end because a disk
            is full.

        Raises:
          CheckpointError: It could not be written, and `wait` is set.
        """
        if self._directory is None:
            return
        self._join()
        self._error = None
        arguments = variables, dict(counters), environment_spec, experiment
        self._thread = threading.Thread(
            target=self._write, args=(self._directory, *arguments), name="checkpoint"
        )
        self._thread.start()
        if wait:
            self._join()
            if self._error is not None:
                raise self._error

    def _write(
        self,
        directory: pathlib.Path,
        variables: Mapping[str, Array],
        counters: Mapping[str, int],
        environment_spec: EnvironmentSpec,
        experiment: str,
    ) -> None:
        try:
            self.newest = checkpoint.save(
                directory,
                variables,
                counters,
                environment_spec,
                experiment,
                self._keep,
                self._claim,
            )
            self.saved_at = time.time()
        except Exception as error:  # whatever it is, training goes on
            _log.error("%s", error)
            self.failures += 1
            self._error = error
            if isinstance(error, ClaimLost):
                self.lost = error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
