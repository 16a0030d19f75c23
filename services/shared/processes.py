"""What processes of seedpod do about their parent, an early end, and large arrays."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# What a process ends with that shall be started again: EX_TEMPFAIL of sysexits.h.
START_AGAIN = 75
_PR_SET_PDEATHSIG = 1
# Huge pages; and what was freed is kept: messages of some megabytes come and go all the time.
LARGE_ARRAYS = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"
    f":glibc.malloc.mmap_threshold={32 << 20}:glibc.malloc.trim_threshold={256 << 20}"
}


def exit_on_sigterm() -> None:
    """Makes SIGTERM end this process with status 0, until another handler is set.

    The first process of a container ignores signals that it does not handle: asked to end while
    it still imports, it would go on until it is killed. So services call this before they import
    what takes long. At once, without an exception: raised inside an import, that of some
    extension module, it would become another one.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends, however it ends.

    The parent counts as ended when the thread that started this process ends.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def restart_for_large_arrays(module: str) -> None:
    """Starts this process anew, as `python -m MODULE`, with memory set up for large arrays.

    Without it page faults take half the time of what copies and decodes them. The C library
    reads its settings at the start of a process only. Does nothing if they are set already.
    """
    if not LARGE_ARRAYS.keys() <= os.environ.keys():
        os.environ.update(LARGE_ARRAYS)
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
