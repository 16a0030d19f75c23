"""What every process of seedpod does about its parent and about an early end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def exit_on_sigterm() -> None:
    """Makes SIGTERM end this process with status 0, until another handler is set.

    The first process of a container ignores signals that it does not handle: asked to end while
    it still imports, it would go on until it is killed. So services call this before they import
    what takes long.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends, however it ends.

    The parent counts as ended when the thread that started this process ends.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)
