"""A whole system of real processes that faults are done to: started, tended, looked at, ended.

What a cluster does, restarting what dies, `tend` does here; every wait calls it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import psutil

from services.local.ports import free_port
from services.shared import rpc
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.chaos import environment, network, sequences
from tests.e2e import runs

UNROLL = 20
BATCH = 8
_RESTART_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_END_SECONDS = 40.0
_MARK = "SEEDPOD_TEST_RUNS"


class ChaosError(AssertionError):
    """The system did not do what it must; the message says what was waited for."""


@dataclasses.dataclass
class Books:
    """Frames, from what environments, learners and audits counted independently.

    Attributes:
      stepped: By the environments.
      trained: Of distinct records, by the audits of all learner processes.
      lost: Trained by a learner that was killed, after its last checkpoint.
      wrong: Trained twice or out of order, mixed incarnations, or counted otherwise than trained;
        of R2D2, the same of what replay took.
    """

    stepped: int
    trained: int
    lost: int
    wrong: int


class Process:
    """One service, in one process after the other."""

    def __init__(self, name: str, command: list[str], folder: pathlib.Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.output = folder / f"{name}.out"
        self.is_wanted = True
        self.restarts = 0
        self._command = command
        self._environment = {**os.environ, _MARK: str(folder), "TMPDIR": str(folder / "tmp")}
        self._start_at = 0.0
        self.popen = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("a") as log, self.output.open("a") as output:
            return subprocess.Popen(
                self._command, stdout=output, stderr=log, env=self._environment, process_group=0
            )

    def tend(self) -> None:
        if not self.is_wanted or self.popen.poll() is None:
            return
        if not self._start_at:
            self._start_at = time.monotonic() + _RESTART_SECONDS
        elif time.monotonic() >= self._start_at:
            self._start_at = 0.0
            self.restarts += 1
            self.popen = self._start()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.is_wanted = False
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        return self.popen.wait(_END_SECONDS)


class System:
    """Learner, actors and, for R2D2, replay, under an audit.

    Attributes:
      processes: By name: `learner`, `replay`, `actor-0`, ...
      folder: Of logs, checkpoints, audits and the environments' counts.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        r2d2: bool = False,
        host: str = "127.0.0.1",
        replay_host: str | None = None,
        keepalive_seconds: float = 5.0,
        grace_seconds: float = 20.0,
        prefixes: dict[str, list[str]] | None = None,
        **learner: Any,
    ) -> None:
        """Writes the experiment; `start` starts.

        Args:
          folder: For everything; must exist.
          r2d2: With replay and an audit of each sequence in its log; without, V-trace and an
            audit of each unroll.
          host: Where learner and replay listen.
          replay_host: Where replay listens, if elsewhere.
          keepalive_seconds: Half of the time in which a silent peer is noticed.
          grace_seconds: Of leases.
          prefixes: Put before the commands of services by kind, `ip netns exec NAME` for example.
          learner: Further settings of it.
        """
        self.folder = folder
        self.r2d2 = r2d2
        self.keepalive_seconds, self.grace_seconds = keepalive_seconds, grace_seconds
        self.address = f"{host}:{free_port()}"
        self.replay_address = f"{replay_host or host}:{free_port()}"
        self.metrics_port = free_port()
        self.processes: dict[str, Process] = {}
        self.checkpoints = pathlib.Path(learner.get("checkpoint_directory", folder / "checkpoints"))
        self._prefixes = prefixes or {}
        self._frames: list[tuple[float, int]] = []
        self._looked = 0.0
        self._sent = 0
        (folder / "tmp").mkdir(exist_ok=True)
        self._document = folder / "experiment.yaml"
        self._document.write_text(json.dumps(self._experiment(learner)))
        self._channel = rpc.channel(self.address, keepalive_seconds=1.0)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)

    def _experiment(self, learner: dict[str, Any]) -> dict[str, Any]:
        name = "SlottedNetwork" if self.r2d2 else "AuditedNetwork"
        arguments: dict[str, Any] = {"sizes": [16]}
        if not self.r2d2:
            arguments["folder"] = str(self.folder)
        settings: dict[str, Any] = {
            "address": self.address,
            "threads": 1,
            "max_slots": 256,
            "unroll_length": UNROLL,
            "batch_size": BATCH,
            "inference_batch_size": 16,
            "metrics_port": self.metrics_port,
            "checkpoint_directory": str(self.checkpoints),
            "checkpoint_interval_seconds": 2.0,
            "lease_grace_seconds": self.grace_seconds,
            "keepalive_seconds": self.keepalive_seconds,
            "network": {"name": f"tests.chaos.network:{name}", "arguments": arguments},
            **learner,
        }
        if self.r2d2:
            settings["algorithm"] = "r2d2"
            settings["r2d2"] = {
                "replay_addresses": [self.replay_address],
                "burn_in": UNROLL,
                "replay_period": UNROLL,
                "n_steps": 3,
                "dueling_size": 16,
            }
        return {
            "name": "chaos",
            "actor": {
                "environment": "tests.chaos.environment:counted",
                "environment_arguments": {"folder": str(self.folder)},
                "learner_address": self.address,
                "workers": 1,
                "environments_per_group": 4,
                "step_timeout_seconds": 10.0,
            },
            "learner": settings,
            "replay": {
                "address": self.replay_address,
                "keepalive_seconds": self.keepalive_seconds,
                "persistence": {"directory": str(self.folder / "replay")},
                "tables": {
                    "sequences": {
                        # Nothing leaves before it was audited.
                        "max_items": 1 << 19,
                        "min_size_to_sample": 50,
                        "samples_per_insert": 4.0,
                        "error_buffer": 200.0,
                    }
                },
            },
        }

    # Processes.

    def start(self, actors: int = 2) -> System:
        """Starts everything and waits until it trains."""
        if self.r2d2:
            self._add("replay", "replay")
        self._add("learner", "learner")
        self.scale(actors)
        self.wait_for_frames(500, "training to begin", timeout=120)
        return self

    @property
    def actors(self) -> int:
        """Number of actors that shall run."""
        return sum(name.startswith("actor-") for name in self.processes)

    def scale(self, actors: int) -> None:
        """Starts actors, or ends the newest, as a deployment does."""
        running = [name for name in self.processes if name.startswith("actor-")]
        for i in range(len(running), actors):
            self.add_actor(f"actor-{i}")
        ending = [self.processes.pop(name) for name in running[actors:]]
        for process in ending:
            process.is_wanted = False
            process.popen.terminate()
        for process in ending:
            process.end()

    def add_actor(self, name: str, *arguments: str) -> None:
        self._add(name, "actor", f"--name={name}", *arguments)

    def _add(self, name: str, service: str, *arguments: str) -> None:
        command = [
            *self._prefixes.get(service, []),
            *(sys.executable, "-m", f"services.{service}", "--child"),
            *(f"--experiment={self._document}", *arguments),
        ]
        self.processes[name] = Process(name, command, self.folder)

    def find(self, kind: str) -> psutil.Process:
        """A process by kind: `learner`, `front_end`, `actor`, `worker` or `replay`."""
        if kind in ("learner", "replay"):
            return psutil.Process(self.processes[kind].popen.pid)
        if kind == "actor":
            return psutil.Process(self.processes["actor-0"].popen.pid)
        parent, module = {
            "front_end": ("learner", "services.learner.front_end"),
            "worker": ("actor-0", "services.actor.worker"),
        }[kind]
        pid = self.processes[parent].popen.pid
        found = self.wait(lambda: runs.descendants(pid, module), f"a {kind}")
        return psutil.Process(found[0].pid)

    def tend(self) -> None:
        """Restarts what died, and looks at the learner."""
        for process in self.processes.values():
            process.tend()
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._look()

    def _look(self) -> None:
        self._looked = time.monotonic()
        if (status := self.status()) is not None:
            self._frames.append((time.monotonic(), status.frames))

    # Looking.

    def status(self, timeout: float = 1.0) -> inference_pb2.GetStatusResponse | None:
        """What the learner says; None if it does not answer in time."""
        try:
            answer: inference_pb2.GetStatusResponse = self._stub.GetStatus(
                inference_pb2.GetStatusRequest(), timeout=timeout
            )
        except grpc.RpcError:
            return None
        return answer

    def frames(self) -> int:
        """Frames that the learner has counted."""
        status = self.wait(self.status, "the learner to answer", 120)
        return int(status.frames)

    def metrics(self) -> dict[tuple[str, str], float]:
        """The learner's metrics, see `runs.scrape`."""
        return runs.read_metrics(f"http://127.0.0.1:{self.metrics_port}/metrics")

    def metric(self, name: str) -> float:
        """One of them, without labels."""
        return self.metrics()[f"seedpod_{name}", ""]

    def wait(self, condition: Callable[[], Any], what: str, timeout: float = 60) -> Any:
        """Waits until the condition is true and returns its value, tending the system."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise ChaosError(f"waited {timeout} s for {what}:\n{self.logs()}")
            self.tend()
            time.sleep(0.05)
        return value

    def sleep(self, seconds: float) -> None:
        """Lets time pass, tending the system."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.tend()
            time.sleep(0.05)

    def wait_for_frames(self, more: int, what: str, timeout: float = 60) -> float:
        """Waits for so many more frames than there are; returns the seconds that it took."""
        started = time.monotonic()
        before: int | None = None

        def have_come() -> bool:
            nonlocal before
            status = self.status()
            if status is None:
                return False
            # A learner that resumes may begin below.
            before = status.frames if before is None else min(before, status.frames)
            return bool(status.frames >= before + more)

        self.wait(have_come, what, timeout)
        return time.monotonic() - started

    def longest_pause(self, since: float) -> float:
        """Seconds without a new frame, the longest since that time of the monotonic clock."""
        self._look()
        longest, last_time, last_frames = 0.0, since, -1
        for at, frames in self._frames:
            if at < since:
                last_frames = frames
            elif frames != last_frames:
                longest = max(longest, at - last_time)
                last_time, last_frames = at, frames
        return longest

    def logs(self) -> str:
        """The ends of all logs."""
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{p.name}:\n{p.read_text(errors='replace')[-2000:]}" for p in paths)

    # The end.

    def end(self, status: int = 0) -> dict[str, Any]:
        """Ends everything in order; returns the summary of the learner, which has that status."""
        if self.r2d2:
            self._settle()
        for process in self.processes.values():
            process.is_wanted = False
        ended_with = self.processes["learner"].end()
        if ended_with != status:
            raise ChaosError(f"the learner ended with status {ended_with}:\n{self.logs()}")
        for name in [*(n for n in self.processes if n.startswith("actor-")), "replay"]:
            if name in self.processes:
                self.processes[name].end()
        lines = self.processes["learner"].output.read_text().splitlines()
        return dict(json.loads(lines[-1]))

    def kill(self) -> None:
        """Ends whatever is left, however."""
        self._channel.close()
        for process in self.processes.values():
            process.is_wanted = False
        for pid in runs.processes(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def leftovers(self) -> list[str]:
        """Processes, shared memory, sockets and temporary files that should be gone."""
        deadline = time.monotonic() + 5
        while (left := runs.processes(self.folder)) and time.monotonic() < deadline:
            time.sleep(0.1)
        found = [f"process {pid}: {command}" for pid, command in left.items()]
        found += [f"shared memory {path}" for path in pathlib.Path("/dev/shm").glob("seedpod*")]
        ports = {int(a.rpartition(":")[2]) for a in (self.address, self.replay_address)}
        found += [
            f"socket {c.laddr}"
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN
            and c.laddr
            and c.laddr.port in {*ports, self.metrics_port}
        ]
        found += [f"temporary {path}" for path in (self.folder / "tmp").iterdir()]
        if self.checkpoints.is_dir():
            names = re.compile(r"checkpoint-\d{12}|\.lock|\.owner")
            found += [
                f"checkpoint directory: {path.name}"
                for path in self.checkpoints.iterdir()
                if not names.fullmatch(path.name)
            ]
        return found

    def books(self, summary: dict[str, Any]) -> Books:
        """Holds what was counted in different places against each other, after `end`."""
        stepped = sum(environment.steps_taken(self.folder).values())
        steps = summary["steps"]
        wrong = abs(steps["error"]) + max(0, steps["received"] - stepped)
        resumed = re.compile(r"resumed from \S+ at (\d+) frames")
        starts = [0, *map(int, resumed.findall(self.processes["learner"].text()))]
        if self.r2d2:
            return self._books_of_sequences(stepped, wrong, summary["frames"], starts[-1])
        audits = network.read_audit(self.folder)
        rows = [row for audit in audits.values() for row in audit.tolist()]
        wrong += _repeated([row for row in rows if row[4]]) + sum(not row[4] for row in rows)
        lost = sum(int(audit[:, 3].sum()) for audit in audits.values()) - summary["frames"]
        # The last process's own count begins where it resumed, and is its audit's.
        last = self.processes["learner"].popen.pid
        trained = int(audits[last][:, 3].sum()) if last in audits else 0
        wrong += abs(starts[-1] + trained - summary["frames"])
        return Books(stepped, sum(row[3] for row in rows), lost, wrong)

    def audit(self) -> sequences.Audit:
        """Of all sequences that replay has taken so far; its log may grow meanwhile."""
        return sequences.read(self.folder / "replay" / "sequences", 2 * UNROLL + 1)

    def _books_of_sequences(self, stepped: int, wrong: int, frames: int, start: int) -> Books:
        """Of R2D2, from the log of replay; `start`: frames from which the last learner resumed."""
        audit = self.audit()
        wrong += audit.mixed() + audit.repeated(UNROLL)
        learners = np.unique(audit.learner)
        steps = {learner: audit.steps(learner) for learner in learners}
        last = audit.learner[-1]
        mine = audit.learner == last
        wrong += abs(int(np.count_nonzero(mine)) - self._sent)
        # The first run of an environment that was not there for a second one is in no sequence.
        oldest = audit.instance[mine].min()
        runs_alone = sum(number >= oldest for number in environment.steps_taken(self.folder))
        missing = frames - start - steps[last]
        wrong += max(0, -missing) + max(0, missing - UNROLL * runs_alone)
        total = sum(steps.values())
        return Books(stepped, total, max(0, total - frames), wrong)

    def _settle(self) -> None:
        """Ends the actors and waits until replay has taken all sequences."""
        self.scale(0)

        def has_all() -> bool:
            before = self._sent
            self.sleep(0.5)
            metrics = self.metrics()
            self._sent = int(metrics["seedpod_sequences_sent_total", ""])
            acknowledged = metrics["seedpod_sequences_acknowledged_total", ""]
            return before == self._sent == acknowledged

        self.wait(has_all, "replay to have all sequences", 120)


def _repeated(rows: list[list[int]]) -> int:
    """Transitions that are in two unrolls: those of one instance may share a record, no more."""
    count, ends = 0, dict[int, int]()
    for instance, first, last, _, _ in sorted(rows):
        count += max(0, min(last, ends.get(instance, 0)) - first)
        ends[instance] = max(last, ends.get(instance, 0))
    return count
