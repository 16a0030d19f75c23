"""One worker process of the actor: its environments, and the threads that serve them.

`python -m services.actor.worker` is what the supervisor starts. The main thread only watches:
it finds hung environments, reports to the supervisor and ends the worker; the pilot's thread
steps the environments and talks to the learner.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
import types
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from services.actor import descendants, environments, supervision
from services.actor.environments.base import Environment, PictureError
from services.actor.groups import CpuMeter, Group
from services.actor.learner_client import Finished, LearnerClient, Membership
from services.actor.pilot import Pilot
from services.actor.seats import Seat, Starter, close_all
from services.actor.supervision import Heartbeat, WorkerExit, WorkerSettings
from services.actor.waiting import SAY_EVERY_SECONDS, Waiting
from services.actor.watchdog import Watchdog
from services.shared import processes, profiling, wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2

if TYPE_CHECKING:
    from services.actor.pictures.camera import Camera

_TICK_SECONDS = 0.1
# Together they leave time before the supervisor kills the worker.
_STOP_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
_CLOSE_ONE_SECONDS = 0.5
_LAST_WORD_SECONDS = 0.5
_NAME_CHARACTERS = 256

_log = logging.getLogger(__name__)


class _End(Exception):
    """The worker has to end."""

    def __init__(self, status: WorkerExit) -> None:
        super().__init__(status)
        self.status = status


class Worker:
    """Starts environments, keeps a pilot at work and watches both."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Prepares a worker; `run` does everything."""
        self._settings = settings
        config = settings.config
        self._watchdog = Watchdog()
        self._starter = Starter(
            self._make,
            self._watchdog,
            config.start_timeout_seconds,
            config.start_attempts,
            arrived=self._wake_up,
            failed=self._hopeless,
        )
        self._seats = [
            [self._seat(group, at) for at in range(config.environments_per_group)]
            for group in range(config.groups)
        ]
        self._camera = self._make_camera()
        self._groups: list[Group] = []
        self._membership = Membership(token=settings.lease_token)
        self._pilot: Pilot | None = None
        self._restarts = 0
        self._reported = 0.0
        self._answers = Waiting()
        self._wake = threading.Event()
        # The first reason to end; written by any thread, `setdefault` is atomic.
        self._end: dict[str, WorkerExit] = {}

    def run(self) -> int:
        """Works until there is a reason to end.

        Returns:
          The exit status, see `WorkerExit`.
        """
        try:
            self._start_environments()
            self._report()
            self._start_pilot()
            while True:
                self._tick()
        except _End as end:
            return end.status
        finally:
            self._starter.stop()
            stopped = self._pilot is None or self._pilot.stop(_STOP_SECONDS)
            close_all(self._idle(stopped), _CLOSE_SECONDS, _CLOSE_ONE_SECONDS)

    def terminate(self) -> None:
        """Makes `run` return soon; for signal handlers.

        Nothing here takes a lock: the handler's own thread may hold it.
        """
        self._end.setdefault("status", WorkerExit.TERMINATED)

    def _finish(self, status: WorkerExit) -> None:
        """Makes `run` return; the first status counts."""
        self._end.setdefault("status", status)
        self._wake_up()

    def _idle(self, stopped: bool) -> Iterator[Environment]:
        """The environments that are in no call; the pilot has one of them if it hangs."""
        busy = [] if stopped else [group.busy for group in self._groups]
        for seat in (seat for seats in self._seats for seat in seats):
            if seat.environment is not None and seat not in busy:
                yield seat.environment
            if seat.arrived is not None:
                yield seat.arrived[0]
        yield from list(self._starter.retired)

    def _wake_up(self) -> None:
        self._wake.set()

    def _hopeless(self, reason: str) -> None:
        if not self._end:
            _log.error("this actor cannot go on: %s", reason)
        self._finish(WorkerExit.HOPELESS)

    def _tick(self) -> None:
        self._wake.wait(_TICK_SECONDS)
        self._wake.clear()
        self._watchdog.check()
        if self._end:
            self._report(_LAST_WORD_SECONDS)  # without it the supervisor takes it for a crash
            raise _End(self._end["status"])
        if time.monotonic() - self._reported >= supervision.HEARTBEAT_SECONDS:
            self._report()

    def _report(self, patience_seconds: float = 0.0) -> None:
        now = self._reported = time.monotonic()
        member = self._membership
        heartbeat = Heartbeat(
            running=bool(self._groups),
            connected=0 < len(self._groups) == len(member.connected),
            lease_token=member.token,
            environments=sum(map(len, self._seats)),
            absent=sum(group.absent for group in self._groups),
            steps=sum(group.steps for group in self._groups),
            restarts=self._restarts,
            reconnects=member.reconnects,
            recordings=self._camera.recorded if self._camera is not None else 0,
            recording_failures=self._camera.failures if self._camera is not None else 0,
            end=self._end.get("status"),
        )
        try:
            supervision.send(self._settings.heartbeat_fd, heartbeat, patience_seconds)
        except BrokenPipeError:
            raise _End(WorkerExit.TERMINATED) from None
        silent = [g.asked for g in self._groups if g.index in member.connected and g.request]
        if silent and now - min(silent) > SAY_EVERY_SECONDS:
            self._answers.still(f"the learner has not answered for {now - min(silent):.0f} s")
        else:
            self._answers.over("the learner answers again")

    def _seat(self, group: int, at: int) -> Seat:
        return Seat(
            name=f"environment {at} of group {group}",
            number=group * self._settings.config.environments_per_group + at,
            incarnation=self._settings.launch * supervision.INCARNATIONS_PER_LAUNCH,
        )

    def _make(self, seat: Seat) -> Environment:
        settings, config = self._settings, self._settings.config
        # No two environments of a run get the same seed, nor does a seat twice.
        entropy = [
            config.seed % (1 << 63),
            zlib.crc32(settings.actor_name.encode()),
            settings.worker,
            settings.launch,
            seat.number,
            seat.starts,
        ]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1
        if self._camera is None or seat.number > 0:
            return environments.make(config.environment, config.environment_arguments, seed)
        try:
            environment = environments.make(
                config.environment, config.environment_arguments, seed, config.recording.football
            )
            # Now, not in the middle of the first episode.
            environment.reset()
            environment.picture()
        except PictureError as error:
            self._hopeless(f"nothing can be recorded: {error}")
            raise
        return environment

    def _make_camera(self) -> Camera | None:
        """The actor's first environment is recorded, if any is."""
        settings, config = self._settings, self._settings.config
        records = config.role == "evaluation" and config.recording.every_episodes > 0
        if not records or settings.worker > 0:
            return None
        # Imported only to record: an actor that trains needs no Pillow.
        from services.actor.pictures.camera import Camera

        return Camera(settings.actor_name, config.recording)

    def _start_environments(self) -> None:
        # One after the other: some libraries cannot start two at once, and memory is measured
        # by its peak.
        for seat in (seat for seats in self._seats for seat in seats):
            self._starter.start(seat)
            while seat.arrived is None:
                self._tick()
        assert self._starter.spec is not None, "every seat has an environment"
        meter = CpuMeter()
        self._groups = [
            Group(
                index,
                seats,
                self._starter.spec,
                self._watchdog,
                self._settings.config.step_timeout_seconds,
                meter,
                self._lost,
                evaluates=self._settings.config.role == "evaluation",
                camera=self._camera if index == 0 else None,
            )
            for index, seats in enumerate(self._seats)
        ]

    def _lost(self, group: Group, seat: Seat, environment: Environment | None, reason: str) -> None:
        """Replaces an environment; called by the pilot, or by this thread if the pilot hangs."""
        self._restarts += 1
        where = f"{seat.name} (incarnation {seat.incarnation})"
        if environment is None:
            _log.error("%s is being replaced: %s; it hangs here:\n%s", where, reason, self._stack())
            self._start_pilot()
        else:
            _log.error("%s is being replaced: %s", where, reason)
        self._report()  # from now on the supervisor allows for a start
        self._starter.replace(seat, environment, reason)

    def _stack(self) -> str:
        thread_id = self._pilot.thread_id if self._pilot is not None else None
        frame = sys._current_frames().get(thread_id) if thread_id is not None else None
        return "".join(traceback.format_stack(frame)) if frame is not None else "unknown"

    def _start_pilot(self) -> None:
        self._membership.connected.clear()
        self._pilot = Pilot(self._connect, self._groups, self._pilot_ended)

    def _pilot_ended(self, end: Exception | str) -> None:
        if isinstance(end, Finished):
            _log.info("training is finished")
            self._finish(WorkerExit.FINISHED)
        elif isinstance(end, Exception):
            self._hopeless(str(end))
        else:
            _log.error("the pilot crashed:\n%s", end)
            self._finish(WorkerExit.CRASHED)

    def _connect(self) -> LearnerClient:
        settings, config = self._settings, self._settings.config
        assert self._starter.spec is not None, "environments were started"
        request = inference_pb2.JoinRequest(
            api_version=wire.API_VERSION,
            actor_name=f"{settings.actor_name}/{settings.worker}",
            environment=wire.environment_spec_to_proto(self._starter.spec),
            environments_per_group=config.environments_per_group,
            groups=config.groups,
            role=f"ACTOR_ROLE_{config.role.upper()}",
            environment_name=_printable(config.environment_name),
        )
        return LearnerClient(
            config,
            settings.worker,
            settings.keepalive_seconds,
            request,
            self._joined,
            self._membership,
        )

    def _joined(self, lease: inference_pb2.JoinResponse) -> None:
        group = self._groups[0]
        given = (lease.observation_bytes, lease.action_bytes)
        if given != (group.observation_bytes, group.action_bytes):
            raise ValueError(
                f"the learner expects (observation, action) of {given} bytes, this actor's have"
                f" {(group.observation_bytes, group.action_bytes)}"
            )
        # Before any step: if one kills the process, its successor gets the lease.
        self._report()


def _printable(name: str) -> str:
    """As much of a name as the learner takes into its log."""
    return "".join(c if c.isprintable() else "?" for c in name)[:_NAME_CHARACTERS]


def main() -> int:
    """Runs a worker with the settings on standard input."""
    processes.die_with_parent()
    descendants.adopt_orphans()
    settings = WorkerSettings.load(sys.stdin.buffer.read())
    if os.getppid() != settings.supervisor_pid:  # it ended before the line above
        return WorkerExit.TERMINATED
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {settings.actor_name}/{settings.worker}: %(message)s",
    )
    # Says where an environment crashed the process, or held up all of its threads: the
    # supervisor sends SIGABRT first.
    faulthandler.enable()
    os.set_blocking(settings.heartbeat_fd, False)
    worker = Worker(settings)

    def terminate(signum: int, frame: types.FrameType | None) -> None:
        worker.terminate()

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, terminate)
    with profiling.trace(settings.profile, f"{settings.actor_name}-{settings.worker}"):
        return worker.run()


if __name__ == "__main__":
    sys.exit(main())
