"""One service of a local run as a process: started, watched, restarted, ended."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from services.shared import processes, rpc

_LOG_TAIL_LINES = 15
# A process that died so often without a minute between is not started again.
_MAX_DEATHS_IN_A_ROW = 5
_CALM_SECONDS = 60.0
# An actor ends a little before the learner that told it to.
_EARLY_END_SECONDS = 10.0
_log = logging.getLogger(__name__)


class LaunchError(RuntimeError):
    """A run that cannot go on; the message says why and where to look."""


class Service:
    """A process that is started again when it dies, or ends before it may."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log_path: pathlib.Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it.

        Args:
          name: For messages.
          command: Arguments after the Python interpreter.
          log_path: Where its stderr goes, appended; its stdout goes to the same name with
            `.out`, anew. Both are files: an environment that prints must not fill a pipe that
            nobody reads.
          environment: Variables beside this process's own.
        """
        self.name = name
        self.log_path = log_path
        self._output_path = log_path.with_suffix(".out")
        self.restarts = 0
        self._environment = {**os.environ, **(environment or {})}
        self._command = [sys.executable, *command]
        self._backoff = rpc.Backoff(initial=0.5)
        self._deaths_in_a_row = 0
        self._restart_at: float | None = None
        self._ended_at: float | None = None
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started = time.monotonic()
        with self.log_path.open("a") as log, self._output_path.open("w") as output:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                # Ctrl-C in a terminal reaches the launcher alone, which ends the others in order.
                process_group=0,
                env=self._environment,
            )

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def check(self, may_end: bool) -> bool:
        """Starts the process again if a signal killed it, or if it ended before it may.

        Args:
          may_end: Whether status 0 is an end; otherwise it counts as a death after a while.

        Returns:
          Whether it has ended, as it may.

        Raises:
          LaunchError: It ended with an error of its own, or dies again and again.
        """
        now = time.monotonic()
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._restart_at = self._ended_at = None
                self._process = self._start()
            return False
        status = self._process.poll()
        if status is None:
            return False
        if status == processes.START_AGAIN:
            self._died("lost another learner")
            return False
        if status > 0:
            raise LaunchError(
                f"the {self.name} ended with status {status}; the end of {self.log_path}:\n"
                + self._log_tail()
            )
        if status == 0:
            if may_end:
                return True
            self._ended_at = self._ended_at or now
            if now - self._ended_at < _EARLY_END_SECONDS:
                return False
            self._died("ended although training goes on")
        else:
            self._died(f"was killed by {signal.Signals(-status).name}")
        return False

    def _died(self, how: str) -> None:
        if time.monotonic() - self._started > _CALM_SECONDS:
            self._deaths_in_a_row = 0
            self._backoff.reset()
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > _MAX_DEATHS_IN_A_ROW:
            raise LaunchError(f"the {self.name} {how}, {self._deaths_in_a_row} times in a row")
        self.restarts += 1
        wait = self._backoff.next()
        _log.warning("the %s %s; starting it again in %.1f s", self.name, how, wait)
        self._restart_at = time.monotonic() + wait

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines)

    def terminate(self) -> None:
        """Asks it to end."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_seconds: float) -> None:
        """Waits for its end, and kills it after the timeout."""
        try:
            self._process.wait(max(0.1, timeout_seconds))
        except subprocess.TimeoutExpired:
            _log.error("the %s did not end within %.0f s: killed", self.name, timeout_seconds)
            self._process.kill()
            self._process.wait()

    def summary(self) -> dict[str, Any] | None:
        """The JSON object on the last line of its stdout; None if there is none."""
        lines = self._output_path.read_text(errors="replace").splitlines()
        try:
            document = json.loads(lines[-1])
        except (IndexError, ValueError):  # it was killed, or something else has printed
            return None
        return document if isinstance(document, dict) else None
