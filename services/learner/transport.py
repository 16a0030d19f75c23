"""The learner's end of its front ends: starts them, grants leases, wakes the inference loop.

The control thread owns the front-end processes and answers their rare questions; the inference
thread calls `wait`, `take` and `answer`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable

import grpc
from google.protobuf.message import DecodeError

from services.learner import control, roles
from services.learner.control import Message, Method
from services.learner.fair_lock import FairLock
from services.learner.leases import Group, LeaseTable
from services.learner.step_store import COUNTERS, StepStore
from services.shared import rpc
from services.shared.config import LearnerConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.status import StatusError

JoinHandler = Callable[[inference_pb2.JoinRequest], None]
StatusHandler = Callable[[], inference_pb2.GetStatusResponse]
RecordingHandler = Callable[[], pathlib.Path]

_STOP_SECONDS = 5.0
# A front end that dies so often without a minute between cannot live here.
_MAX_DEATHS_IN_A_ROW = 8
_CALM_SECONDS = 60.0
# A front end is given up like any other silent peer, but not for a machine that is busy.
_LEAST_PATIENCE_SECONDS = 5.0
# A control thread that was away for longer has been stopped, and has heard of nobody meanwhile.
_AWAY_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass
class _FrontEnd:
    process: subprocess.Popen[bytes]
    control: socket.socket
    started: float
    # When it was last heard of; None before the first time, which its start delays.
    heard: float | None = None


class Transport:
    """Front ends, leases and queues.

    Attributes:
      lock: Guards the leases; held while a batch is processed, so that no group changes hands
        under it.
      leases: Who holds which slots.
      address: host:port that the front ends serve on.
    """

    def __init__(
        self,
        config: LearnerConfig,
        check_join: JoinHandler,
        status: StatusHandler,
        recording_folder: RecordingHandler,
        failed: Callable[[Exception], None],
    ) -> None:
        """Claims the port.

        Args:
          config: The learner's settings.
          check_join: Called with each JoinRequest; raises StatusError to refuse it. It may
            take long (the first one makes the learner build its network).
          status: Makes the answer to GetStatus.
          recording_folder: Says where recordings go; raises StatusError if nowhere.
          failed: Called if the control thread, and the front ends with it, has to end.

        Raises:
          OSError: Another process serves on the port, or a certificate cannot be read.
        """
        self.lock = FairLock()
        self.leases = LeaseTable(
            config.max_slots,
            config.lease_grace_seconds,
            opponent_agents=config.opponent_agents,
        )
        self._config = config
        self._check_join = check_join
        self._status = status
        self._recording_folder = recording_folder
        self._failed = failed
        rpc.check_files(config.tls)
        self._port_holder, self.address = _claim_port(config.address)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._wake_fd, select.POLLIN)
        self._front_ends: list[_FrontEnd] = []
        # One for each front end, in the order of their numbers; its successor gets the same.
        self._answer_fds: list[int] = []
        self._deaths: collections.Counter[int] = collections.Counter()
        self._store: StepStore | None = None
        self._finished = False
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Starts the front ends."""
        self._thread.start()
        self._started.wait()

    def publish(self, store: StepStore) -> None:
        """Gives the step store to the front ends; leases can be granted from then on."""
        with self.lock:
            self._store = store
            for front_end in self._front_ends:
                self._send_store(front_end, store)

    def finish(self) -> None:
        """Tells all actors, at their next request or Join, that training is over."""
        with self.lock:
            self._finished = True
            if self._store is not None:
                self._store.finished[0] = 1
        self.wake()

    def stop(self) -> None:
        """Ends the front ends and the control thread."""
        self._stopping.set()
        self._thread.join(timeout=_STOP_SECONDS + 5)
        self._port_holder.close()

    def wake(self) -> None:
        """Wakes the inference thread."""
        os.eventfd_write(self._wake_fd, 1)

    def wait(self, timeout_seconds: float) -> None:
        """Waits until something arrived, `wake` was called or the time is over."""
        if self._poll.poll(max(0.0, timeout_seconds * 1000)):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake_fd)

    @property
    def live_groups(self) -> int:
        """Groups that have a stream, so that a request can be expected of them."""
        return self.leases.live_groups

    @property
    def live_training_groups(self) -> int:
        """Those of them that are trained on."""
        return self.leases.live_training_groups

    def is_current(self, group: Group, epoch: int) -> bool:
        """Whether the group is still leased and its stream is still the same."""
        return group.epoch == epoch and self.leases.groups.get(group.number) is group

    def take(self) -> list[Group]:
        """Groups whose requests have arrived since the last call; call it with `lock` held."""
        if self._store is None:
            return []
        return [
            group
            for queue in self._store.requests
            for number, epoch in queue.take()
            if (group := self.leases.groups.get(number)) is not None and group.epoch == epoch
        ]

    def answer(self, groups: Iterable[Group]) -> None:
        """Lets the front ends answer these groups; call it with `lock` held."""
        assert self._store is not None
        touched = set()
        for group in groups:
            self._store.group_answered[group.number] += 1
            if group.front_end is not None:
                self._store.answers[group.front_end].put(group.number, group.epoch)
                touched.add(group.front_end)
        for index in touched:
            os.eventfd_write(self._answer_fds[index], 1)

    def _run(self) -> None:
        try:
            self._control()
        except Exception as error:  # nobody could join or open a stream any more
            _log.exception("the control thread failed")
            self._started.set()
            self._failed(error)
        finally:
            self._terminate()

    def _control(self) -> None:
        with selectors.DefaultSelector() as selector:
            for index in range(self._config.front_ends):
                front_end = self._spawn(index)
                self._front_ends.append(front_end)
                selector.register(front_end.control, selectors.EVENT_READ, index)
            self._started.set()
            restarts: dict[int, float] = {}
            looked = time.monotonic()
            while not self._stopping.is_set():
                if self.leases.expired():  # GetStatus shall not wait for a batch without need
                    with self.lock:
                        self.leases.expire()
                gone = [
                    key.data for key, _ in selector.select(timeout=0.2) if not self._serve(key.data)
                ]
                away, looked = time.monotonic() - looked, time.monotonic()
                gone += [i for i in self._silent(away) if i not in gone and i not in restarts]
                for index in gone:
                    selector.unregister(self._front_ends[index].control)
                    restarts[index] = time.monotonic() + self._bury(index)
                for index in [i for i, at in restarts.items() if at <= time.monotonic()]:
                    del restarts[index]
                    self._revive(index)
                    control_end = self._front_ends[index].control
                    selector.register(control_end, selectors.EVENT_READ, index)

    def _silent(self, away_seconds: float) -> list[int]:
        """Front ends that were not heard of for too long.

        Args:
          away_seconds: Since this was last asked.
        """
        patience = max(_LEAST_PATIENCE_SECONDS, 2 * self._config.keepalive_seconds)
        silent = []
        for index, front_end in enumerate(self._front_ends):
            if front_end.heard is None:
                continue
            if away_seconds > _AWAY_SECONDS:
                front_end.heard = time.monotonic()
            if time.monotonic() - front_end.heard > patience:
                _log.error("front end %d has been silent for %.0f s", index, patience)
                silent.append(index)
        return silent

    def _spawn(self, index: int) -> _FrontEnd:
        while len(self._answer_fds) <= index:
            self._answer_fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        ours, theirs = control.pair()
        # The learner answers with a deadline of its own, rather than hang on a stopped process.
        ours.settimeout(5.0)
        tls = self._config.tls
        fds = {
            "control": theirs.fileno(),
            "wake": self._wake_fd,
            "answer": self._answer_fds[index],
        }
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "services.learner.front_end",
                f"--index={index}",
                f"--address={self.address}",
                f"--keepalive-seconds={self._config.keepalive_seconds}",
                f"--tls={'' if tls is None else tls.model_dump_json()}",
                *(f"--{name}-fd={fd}" for name, fd in fds.items()),
            ],
            pass_fds=tuple(fds.values()),
            stdin=subprocess.DEVNULL,
            # Ctrl-C in a terminal goes to the learner, which then ends its front ends.
            process_group=0,
        )
        theirs.close()
        return _FrontEnd(process, ours, time.monotonic())

    def _bury(self, index: int) -> float:
        """Takes a dead front end out of service; returns the seconds to wait before the next."""
        front_end = self._front_ends[index]
        front_end.heard = None
        front_end.process.kill()
        status = front_end.process.wait()
        with self.lock:  # no answer is under way to it
            for group in list(self.leases.groups.values()):
                if group.front_end == index:
                    self.leases.close(group.number, group.epoch)
            if self._store is not None:
                self._store.counters[index, COUNTERS.index("streams")] = 0
            front_end.control.close()
        if time.monotonic() - front_end.started > _CALM_SECONDS:
            self._deaths[index] = 0
        self._deaths[index] += 1
        if self._deaths[index] > _MAX_DEATHS_IN_A_ROW:
            raise RuntimeError(
                f"front end {index} ended with status {status}, the"
                f" {self._deaths[index]}th time in a row"
            )
        wait: float = min(10.0, 0.1 * 2 ** self._deaths[index])
        _log.warning(
            "front end %d ended with status %d; starting another in %.1f s", index, status, wait
        )
        return wait

    def _revive(self, index: int) -> None:
        front_end = self._spawn(index)
        with self.lock:
            # The same eventfd: the inference thread may write to it at any time.
            self._front_ends[index] = front_end
            if self._store is not None:
                self._store.answers[index].take()
                self._send_store(front_end, self._store)

    def _serve(self, index: int) -> bool:
        end = self._front_ends[index].control
        try:
            received = control.receive(end)
        except OSError:
            received = None
        if received is None:
            return False
        message, _ = received
        self._front_ends[index].heard = time.monotonic()
        status, payload = 0, b""
        if message.method is Method.ALIVE:
            return True
        if message.method is Method.JOIN:
            # A thread of its own: the first Join waits for the network to be built.
            threading.Thread(
                target=self._answer_join, args=(end, message), name="join", daemon=True
            ).start()
            return True
        try:
            if message.method is Method.OPEN:
                payload = self._open(index, json.loads(message.payload))
            elif message.method is Method.STATUS:
                payload = self._status().SerializeToString()
            elif message.method is Method.RECORDING:
                payload = self._place_recording(json.loads(message.payload))
            elif message.method is Method.CLOSE:
                document = json.loads(message.payload)
                with self.lock:
                    self.leases.close(document["group"], document["epoch"])
                self.wake()
                return True
            elif message.method is Method.ABANDON:
                response = inference_pb2.JoinResponse.FromString(message.payload)
                with self.lock:
                    self.leases.abandon(response.lease_token)
                return True
        except StatusError as error:
            status, payload = error.code.value[0], error.message.encode()
        with contextlib.suppress(OSError):
            control.send(end, Message(message.identifier, message.method, status, payload))
        return True

    def _answer_join(self, end: socket.socket, message: Message) -> None:
        status = 0
        try:
            request = inference_pb2.JoinRequest.FromString(message.payload)
            payload = self._join(request).SerializeToString()
        except StatusError as error:
            status, payload = error.code.value[0], error.message.encode()
        except DecodeError as error:
            status = grpc.StatusCode.INVALID_ARGUMENT.value[0]
            payload = f"not a JoinRequest: {error}".encode()
        except Exception as error:  # whatever it is, the actor shall hear of it
            _log.exception("Join failed")
            status, payload = grpc.StatusCode.INTERNAL.value[0], str(error).encode()
        with contextlib.suppress(OSError):
            control.send(end, Message(message.identifier, message.method, status, payload))

    def _join(self, request: inference_pb2.JoinRequest) -> inference_pb2.JoinResponse:
        if self._finished:
            return inference_pb2.JoinResponse(finished=True)
        self._check_join(request)
        store = self._store
        assert store is not None
        spec = store.layout.spec
        slots_per_group = request.environments_per_group * spec.agents
        with self.lock:
            lease = self.leases.join(
                request.actor_name,
                request.groups,
                slots_per_group,
                request.lease_token,
                roles.from_proto(request.role),
                spec.agents,
            )
            for group in lease.groups:
                store.group_epoch[group.number] = group.epoch
                store.group_answered[group.number] = 0
                store.slot_incarnation[group.slots] = 0
                store.episode_info_bytes[group.slots] = 0
        _log.info(
            "%s has %d slots from %d on, for %s", lease.actor_name or "an actor",
            request.groups * slots_per_group, lease.groups[0].slots[0], lease.role.name,
        )  # fmt: skip
        return inference_pb2.JoinResponse(
            lease_token=lease.token,
            slots=[slot for group in lease.groups for slot in group.slots.tolist()],
            observation_bytes=slots_per_group * sum(t.storage_bytes for t in spec.observation),
            action_bytes=slots_per_group * spec.action.size * spec.action.dtype.itemsize,
            lease_grace_seconds=self._config.lease_grace_seconds,
        )

    def _open(self, index: int, document: dict[str, object]) -> bytes:
        store = self._store
        if store is None:
            raise StatusError(grpc.StatusCode.NOT_FOUND, "no lease yet; join first")
        with self.lock:
            group = self.leases.open(str(document["lease"]), int(str(document["group"])), index)
            store.group_epoch[group.number] = group.epoch
            reply = {"group": group.number, "epoch": group.epoch}
            revoke = Message(0, Method.REVOKE, 0, json.dumps(reply).encode())
            for front_end in self._front_ends:
                with contextlib.suppress(OSError):
                    control.send(front_end.control, revoke)
        return json.dumps({**reply, "slots": group.slots.tolist()}).encode()

    def _place_recording(self, document: dict[str, object]) -> bytes:
        with self.lock:
            self.leases.check(str(document["lease"]))
        return json.dumps({"folder": str(self._recording_folder())}).encode()

    def _send_store(self, front_end: _FrontEnd, store: StepStore) -> None:
        payload = json.dumps(store.layout.to_json()).encode()
        with contextlib.suppress(OSError):
            control.send(front_end.control, Message(0, Method.STORE, 0, payload), (store.fd,))

    def _terminate(self) -> None:
        for front_end in self._front_ends:
            front_end.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        for front_end in self._front_ends:
            try:
                front_end.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                front_end.process.kill()
                front_end.process.wait()
            front_end.control.close()


def _claim_port(address: str) -> tuple[socket.socket, str]:
    """Holds the port for the front ends, which share it, and refuses it to another learner."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ValueError(
            f"learner.address is {address!r}, must look like localhost:50051, with a port of at"
            " most 65535"
        )
    family, kind, _, _, where = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
            probe.listen()
        except OSError as error:
            raise OSError(
                error.errno, f"{address}: {error.strerror}: is a learner running?"
            ) from None
        where = probe.getsockname()
    holder = socket.socket(family, kind)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(where)
    return holder, f"{host}:{where[1]}"
