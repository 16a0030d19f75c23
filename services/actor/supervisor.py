"""Keeps the actor's workers alive; touches neither environments nor the learner itself.

`services.actor.__main__` runs it. Workers report by heartbeats; one that dies or falls silent is
started again under its old lease, so that only its unfinished unrolls are lost. Why a worker
ended is what it said in its last heartbeat: its exit status may be an environment's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
import types

from services.actor.descendants import Family, adopt_orphans
from services.actor.metrics import ActorMetrics
from services.actor.supervision import Heartbeat, Receiver, WorkerExit, WorkerSettings
from services.shared.config import ActorConfig
from services.shared.profiling import Profile
from services.shared.rpc import Backoff

# An actor may take 10 s to end, and Kubernetes gives a spot pod 15.
_TERMINATE_SECONDS = 5.0
_FINISH_SECONDS = 10.0
_POLL_SECONDS = 0.2
# A heartbeat may be late by this much beyond the longest call that is allowed.
_SLACK_SECONDS = 5.0
_STACK_DUMP_SECONDS = 0.5
_AWAY_SECONDS = 3.0
# A worker that ran so long does not belong to the row of failures before it.
_HEALTHY_SECONDS = 60.0

# A worker is one core's share; libraries that start a thread for each core would fight for it.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_log = logging.getLogger(__name__)


class Hopeless(Exception):
    """Starting workers again would not help; the message says why."""


class WorkerProcess:
    """One worker, in one process after the other.

    Attributes:
      heartbeat: The newest one of the running process.
      is_finished: It said that training is over.
    """

    def __init__(
        self, settings: WorkerSettings, selector: selectors.BaseSelector, family: Family
    ) -> None:
        """Prepares a worker; `launch` starts it.

        Args:
          settings: For its first process.
          selector: Where its heartbeats are waited for.
          family: The supervisor's children.
        """
        self._family = family
        self._settings = settings
        self._config = settings.config
        self._selector = selector
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._receiver = Receiver()
        self._heard = self._launched = 0.0
        self._next_launch = 0.0
        self._failures = 0
        self._backoff = Backoff()
        self.heartbeat = Heartbeat()
        self.is_finished = False

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Starts the process."""
        self._pipe, write_end = os.pipe()
        os.set_blocking(self._pipe, False)
        settings = self._settings.model_copy(
            update={"heartbeat_fd": write_end, "supervisor_pid": os.getpid()}
        )
        # A process group of its own: a Ctrl-C in the terminal reaches the supervisor only, and
        # what an environment left behind can be killed with it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.actor.worker"],
            stdin=subprocess.PIPE,
            pass_fds=[write_end],
            process_group=0,
            env={**dict.fromkeys(_ONE_THREAD, "1"), **os.environ},
        )
        self._family.workers.add(self._process.pid)
        os.close(write_end)
        assert self._process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(settings.dump())
        self._receiver = Receiver()
        self._selector.register(self._pipe, selectors.EVENT_READ, self)
        self._heard = self._launched = time.monotonic()
        self.heartbeat = Heartbeat()

    def read(self) -> None:
        """Reads the heartbeats that have arrived."""
        try:
            data = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:  # it closed the pipe: `check` finds the process dead
            self._selector.unregister(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
            return
        heartbeat = self._receiver.feed(data)
        if heartbeat is None:
            return
        self._heard = time.monotonic()
        self.heartbeat = heartbeat
        if heartbeat.running:
            self._failures = 0
        if heartbeat.lease_token:
            self._settings = self._settings.model_copy(
                update={"lease_token": heartbeat.lease_token}
            )

    def pardon(self, seconds: float) -> None:
        """Does not hold a silence against the worker in which nobody listened."""
        self._heard += seconds

    def check(self, is_wanted: bool) -> None:
        """Looks after the process.

        Args:
          is_wanted: Whether a dead one is to be started again.

        Raises:
          Hopeless: It says that it cannot go on, or never gets as far as running.
        """
        if self._process is None:
            if is_wanted and not self.is_finished and time.monotonic() >= self._next_launch:
                self.launch()
            return
        status = self._process.poll()
        silent = time.monotonic() - self._heard
        if status is None and silent > self._patience():
            _log.error("%s has been silent for %.0f s: killing it", self._name, silent)
            self._dump_stack()
            status = self._kill()
        if status is not None:
            self._ended(status)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the worker itself."""
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the process and everything that it has started, if it still exists."""
        if self._process is not None:
            self._kill()
            self._forget()

    @property
    def _name(self) -> str:
        return f"worker {self._settings.worker} (process {self.pid})"

    def _patience(self) -> float:
        if self.heartbeat.end is not None:  # only to close its environments
            return _TERMINATE_SECONDS
        busy = self._config.step_timeout_seconds
        if not self.heartbeat.running or self.heartbeat.absent:
            busy = max(busy, self._config.start_timeout_seconds)
        return busy + _SLACK_SECONDS

    def _dump_stack(self) -> None:
        self.signal(signal.SIGABRT)  # its faulthandler prints where it is, then it dies
        assert self._process is not None, "it was running"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STACK_DUMP_SECONDS)

    def _kill(self) -> int:
        assert self._process is not None, "there is a process"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _forget(self) -> None:
        if self._process is not None:
            self._family.workers.discard(self._process.pid)
            self._family.end_strays()  # they came here when it died
        self._process = None
        if self._pipe >= 0:
            self._selector.unregister(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def _ended(self, status: int) -> None:
        while self._pipe >= 0:  # its last words: the lease
            before = self._heard
            self.read()
            if self._heard == before:
                break
        name, ran, end = self._name, self.heartbeat.running, self.heartbeat.end
        self.kill()  # what its environments left behind
        if end is WorkerExit.FINISHED:
            self.is_finished = True
            return
        if end is WorkerExit.HOPELESS:
            raise Hopeless(f"{name} cannot go on, for the reason above")
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._failures += not ran
        if self._failures >= self._config.start_attempts:
            raise Hopeless(
                f"{name} ended with {how} before its environments had started,"
                f" {self._failures} times in a row"
            )
        if time.monotonic() - self._launched > _HEALTHY_SECONDS:
            self._backoff.reset()
        delay = self._backoff.next()
        self._next_launch = time.monotonic() + delay
        self._settings = self._settings.model_copy(update={"launch": self._settings.launch + 1})
        _log.warning("%s ended with %s; another one starts in %.1f s", name, how, delay)


class Supervisor:
    """All workers of an actor."""

    def __init__(
        self,
        config: ActorConfig,
        name: str,
        workers: int,
        keepalive_seconds: float,
        profile: Profile | None = None,
    ) -> None:
        """Prepares the workers.

        Args:
          config: The experiment's actor section.
          name: Of the actor, for logs; seeds derive from it.
          workers: How many.
          keepalive_seconds: Of the connections to the learner.
          profile: Of each worker, see `services.shared.profiling`.
        """
        adopt_orphans()
        self._family = Family()
        self._selector = selectors.DefaultSelector()
        self._workers = [
            WorkerProcess(
                WorkerSettings(
                    actor_name=name,
                    worker=worker,
                    launch=0,
                    lease_token="",
                    heartbeat_fd=-1,
                    supervisor_pid=os.getpid(),
                    keepalive_seconds=keepalive_seconds,
                    profile=profile,
                    config=config,
                ),
                self._selector,
                self._family,
            )
            for worker in range(workers)
        ]
        self._metrics = ActorMetrics(config.metrics_port, config.metrics_host)
        self._stop: signal.Signals | None = None

    def run(self) -> int:
        """Runs until training is finished, a signal arrives or there is no hope.

        Returns:
          The exit status: 0 unless there is no hope.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        finish_by = float("inf")
        polled = time.monotonic()
        try:
            while self._stop is None and time.monotonic() < finish_by:
                self._poll()
                away, polled = time.monotonic() - polled, time.monotonic()
                if away > _AWAY_SECONDS:  # this process stood still, and perhaps all of them
                    for worker in self._workers:
                        worker.pardon(away)
                finished = [worker.is_finished for worker in self._workers]
                if all(finished):
                    break
                if any(finished) and finish_by == float("inf"):
                    # The others hear of it too; but the learner may end before it told them.
                    finish_by = time.monotonic() + _FINISH_SECONDS
                for worker in self._workers:
                    worker.check(is_wanted=not any(finished))
                self._metrics.update([worker.heartbeat for worker in self._workers])
        except Hopeless as error:
            _log.error("%s", error)
            return 1
        finally:
            self._end()
        _log.info("ended: %s", "training is finished" if self._stop is None else self._stop.name)
        return 0

    def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
        self._stop = signal.Signals(number)

    def _poll(self) -> None:
        for key, _ in self._selector.select(_POLL_SECONDS):
            key.data.read()

    def _end(self) -> None:
        """Ends all workers, within `_TERMINATE_SECONDS` and what a kill takes."""
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        deadline = time.monotonic() + _TERMINATE_SECONDS
        while time.monotonic() < deadline and any(w.is_running for w in self._workers):
            time.sleep(0.02)
        for worker in self._workers:
            worker.kill()
        self._metrics.close()
