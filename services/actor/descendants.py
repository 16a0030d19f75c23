"""Finds and ends what a dead worker's environments left running.

A simulator that an environment started may have a process group and a session of its own; what
always holds is that an orphan goes to the next subreaper above it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pathlib
import signal
import time

_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 2.0
_POLL_SECONDS = 0.01

_log = logging.getLogger(__name__)


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants whose own parents end.

    Workers call it too: what a living environment detached stays below its worker, so that an
    orphan that reaches the supervisor belongs to no living worker.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Family:
    """The supervisor's children.

    Attributes:
      workers: Process ids of the workers; all other children are strays, except those that
        were there before.
    """

    def __init__(self) -> None:
        """Takes the children that are there as none of the actor's."""
        self.workers: set[int] = set()
        # A container's entry point may have started others before it became the actor.
        self._spared = _children()

    def end_strays(self) -> None:
        """Kills what dead workers left behind, and waits for it."""
        deadline = time.monotonic() + _KILL_SECONDS
        # Level by level: the children of what is killed come here next.
        while strays := _children() - self._spared - self.workers:
            for pid in strays:
                _kill(pid)
            if time.monotonic() > deadline:
                _log.warning("processes %s do not end", sorted(strays))
                return
            time.sleep(_POLL_SECONDS)


def _kill(pid: int) -> None:
    # Whatever is a child here keeps its id until it has been waited for: no other is hit.
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    own = os.getpid()
    return {pid for pid in _processes() if _parent(pid) == own}


def _processes() -> list[int]:
    return [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return None
    # The name before it is in parentheses and may contain anything.
    return int(stat.rpartition(")")[2].split()[1])
