"""What a worker's supervisor tells it at its start, and what it reports back.

The supervisor writes `WorkerSettings` as YAML to the worker's standard input; the worker writes
one `Heartbeat` a line to a pipe that it inherits.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
from typing import Annotated

import pydantic
import yaml

from services.shared.config import ActorConfig
from services.shared.profiling import Profile

HEARTBEAT_SECONDS = 1.0

# Incarnation numbers of one launch of a worker: those of the next launch lie above, whatever
# was reported before a worker was killed. A uint32 has room for 65,536 launches.
INCARNATIONS_PER_LAUNCH = 1 << 16


class WorkerExit(enum.IntEnum):
    """Why a worker ends, and its exit status.

    The supervisor believes the last heartbeat, not the status: an environment may end the
    process with any.
    """

    FINISHED = 0
    CRASHED = 1
    HOPELESS = 64
    """Another worker would fail in the same way; the reason is on standard error."""
    TERMINATED = 65


class _Message(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class WorkerSettings(_Message):
    """How a worker is to run.

    Attributes:
      actor_name: Of the actor service.
      worker: Number of the worker, from 0.
      launch: How often it was started before.
      lease_token: Of its predecessor, empty if unknown.
      heartbeat_fd: File descriptor to report to.
      supervisor_pid: Its parent.
      keepalive_seconds: Of the learner's connection.
      config: The experiment's actor section.
      profile: Whether and where it is traced.
    """

    actor_name: str
    worker: int
    launch: Annotated[int, pydantic.Field(ge=0, lt=1 << 16)]
    lease_token: str
    heartbeat_fd: int
    supervisor_pid: int
    keepalive_seconds: float
    config: ActorConfig
    profile: Profile | None = None

    def dump(self) -> bytes:
        """For the worker's standard input, see `load`."""
        # YAML like the experiment: JSON has no infinity and no dates, and only strings as keys,
        # all of which may be among an environment's arguments.
        return yaml.safe_dump(self.model_dump()).encode()

    @classmethod
    def load(cls, data: bytes) -> WorkerSettings:
        """Reads what `dump` wrote."""
        return cls.model_validate(yaml.safe_load(data))


class Heartbeat(_Message):
    """What a worker has done since its start.

    Attributes:
      running: All its environments were started.
      connected: All its groups have an open stream.
      lease_token: Of its lease, empty before the first.
      environments: In its groups.
      absent: Environments that are being replaced.
      steps: Environment steps.
      restarts: Environments that were lost.
      reconnects: Streams that were lost.
      recordings: Episodes that were recorded.
      recording_failures: Recordings that were lost.
      end: Why the worker ends; None while it goes on.
    """

    running: bool = False
    connected: bool = False
    lease_token: str = ""
    environments: int = 0
    absent: int = 0
    steps: int = 0
    restarts: int = 0
    reconnects: int = 0
    recordings: int = 0
    recording_failures: int = 0
    end: WorkerExit | None = None


def send(fd: int, heartbeat: Heartbeat, patience_seconds: float = 0.0) -> None:
    """Writes a heartbeat; one that the pipe has no room for is left out.

    Args:
      fd: The pipe, which does not block.
      heartbeat: To be written.
      patience_seconds: How long to wait for room.

    Raises:
      BrokenPipeError: The supervisor is gone.
    """
    if patience_seconds:
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        poll.poll(patience_seconds * 1000)
    line = heartbeat.model_dump_json().encode() + b"\n"
    with contextlib.suppress(BlockingIOError):
        os.write(fd, line)  # shorter than PIPE_BUF: all of it or nothing


class Receiver:
    """Reads the heartbeats of one worker from its pipe."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> Heartbeat | None:
        """Takes what was read; returns the newest whole heartbeat in it, if any."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        return Heartbeat.model_validate_json(lines[-1]) if lines else None
