"""How many CPU cores this process may use, container limits included.

Actors start a worker for each of them, the learner sizes TensorFlow's thread pools by them.
"""

from __future__ import annotations

import math
import os
import pathlib

_CGROUP = pathlib.Path("/sys/fs/cgroup")


def usable_cores(cgroup: pathlib.Path = _CGROUP) -> int:
    """The number of cores, at least 1.

    A container's CPU limit is a quota of time that the scheduling affinity does not show; a
    worker or thread for each core of the whole node would only take turns.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroup: pathlib.Path) -> float | None:
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()  # cgroup v2
    except (OSError, ValueError):
        try:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text()  # cgroup v1
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        quota = float(limit) / float(period)
    except (ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return quota if quota > 0 else None
