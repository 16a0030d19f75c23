"""Runs the images as Kubernetes would, by the `docker` command, and asks what became of them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import uuid
from typing import Any

import grpc
import trustme

from services.shared import config, rpc
from services.shared.generated.seedpod.inference.v1 import inference_pb2, inference_pb2_grpc
from tests.certificates import write_certificate
from tests.e2e import runs

SERVICES = ("learner", "actor", "replay")
TAG = "test"
LEARNER_PORT = 50051
# What the restricted Pod Security Standard asks for, and a root file system that is read-only.
HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")
_STOP_SECONDS = 30
_TLS = "/etc/seedpod-tls"
_TLS_SETTING = (
    f"{{certificate: {_TLS}/tls.crt, key: {_TLS}/tls.key, authority: {_TLS}/ca.crt,"
    " clients: {actor: [actor], learner: [learner]}}"
)


def docker(*arguments: str, timeout: float = 60) -> str:
    """Runs a docker command and returns stdout; fails with stderr if it fails."""
    result = subprocess.run(
        ["docker", *arguments], timeout=timeout, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, f"docker {' '.join(arguments)}:\n{result.stderr}"
    return result.stdout.strip()


def image(service: str) -> str:
    """The name of a service's image under test."""
    return f"seedpod-{service}:{TAG}"


def inspect(thing: str) -> dict[str, Any]:
    """What docker knows of an image or container."""
    document: dict[str, Any] = json.loads(docker("inspect", thing))[0]
    return document


def python(service: str, code: str, *options: str) -> str:
    """Runs code in a container of its own and returns stdout."""
    command = ["--rm", *HARDENED, *options, "--entrypoint=python", image(service), "-c", code]
    return docker("run", *command)


@dataclasses.dataclass(frozen=True)
class Container:
    """A running service.

    Attributes:
      name: Docker's name for it.
      tls: What its status is asked with.
    """

    name: str
    tls: config.TlsConfig | None = None

    def logs(self) -> str:
        """Everything on stdout and stderr so far."""
        result = subprocess.run(
            ["docker", "logs", self.name],
            timeout=60,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        return result.stdout

    def state(self) -> dict[str, Any]:
        """Running, ExitCode, OOMKilled, ..."""
        state: dict[str, Any] = inspect(self.name)["State"]
        return state

    def stop(self) -> int:
        """Does what a pod's deletion does; returns the exit status, 137 if it had to be killed."""
        docker("stop", f"--time={_STOP_SECONDS}", self.name, timeout=2 * _STOP_SECONDS)
        return int(self.state()["ExitCode"])

    def kill(self) -> None:
        """Kills all its processes."""
        docker("kill", self.name)

    def exec(self, code: str) -> str:
        """Runs Python code inside of it."""
        return docker("exec", self.name, "python", "-c", code)

    def processes(self) -> list[str]:
        """Those of the container: `PID STATE COMMAND`."""
        return docker("top", self.name, "-eo", "pid,stat,args").splitlines()[1:]

    def address(self) -> str:
        """Where a learner answers, on this machine."""
        return docker("port", self.name, f"{LEARNER_PORT}/tcp").splitlines()[0]

    def status(self) -> inference_pb2.GetStatusResponse | None:
        """What a learner says of itself; None while it does not answer.

        Raises:
          AssertionError: It has ended.
        """
        assert self.state()["Running"], f"{self.name} has ended:\n{self.logs()}"
        with rpc.channel(self.address(), tls=self.tls) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            try:
                answer: inference_pb2.GetStatusResponse = stub.GetStatus(
                    inference_pb2.GetStatusRequest(), timeout=2.0
                )
            except grpc.RpcError:
                return None
            return answer


class System:
    """Containers on a network of their own, where each is known by its service's name.

    `close` removes them, the network and the volumes.
    """

    def __init__(self, experiment: str) -> None:
        """Makes the network.

        Args:
          experiment: A preset, for all services.
        """
        self._name = f"seedpod-test-{uuid.uuid4().hex[:8]}"
        self._experiment = experiment
        self._certificates: pathlib.Path | None = None
        self._tls: config.TlsConfig | None = None
        self._label = f"seedpod-test={self._name}"
        docker("network", "create", f"--label={self._label}", self._name)

    def use_tls(self, folder: pathlib.Path) -> None:
        """Gives each service a certificate of its own, and says who may call whom."""
        authority = trustme.CA()
        self._certificates = folder
        for service in SERVICES:
            self._tls = write_certificate(folder / service, authority, service)

    def volume(self) -> str:
        """Makes a volume and returns its name."""
        return docker("volume", "create", f"--label={self._label}")

    def learner(self, *settings: str, volume: str | None = None) -> Container:
        """Starts a learner, with its checkpoints in the volume."""
        options = ["--memory=2g", "--memory-swap=2g", f"--publish=127.0.0.1::{LEARNER_PORT}"]
        if volume is not None:
            options.append(f"--volume={volume}:/var/lib/seedpod")
            settings = (*settings, "learner.checkpoint_directory=/var/lib/seedpod/checkpoints")
        return self._run("learner", options, (f"learner.address=0.0.0.0:{LEARNER_PORT}", *settings))

    def actor(self, *settings: str) -> Container:
        """Starts an actor that may use one core."""
        options = ["--memory=1g", "--memory-swap=1g", "--cpus=1"]
        return self._run(
            "actor", options, (f"actor.learner_address=learner:{LEARNER_PORT}", *settings)
        )

    def replay(self, *settings: str) -> Container:
        """Starts a replay service."""
        options = ["--memory=512m", "--memory-swap=512m"]
        return self._run("replay", options, ("replay.address=0.0.0.0:50052", *settings))

    def close(self) -> None:
        """Removes everything."""
        of_this = f"--filter=label={self._label}"
        for kind, remove in (
            ("container", ("rm", "--force", "--volumes")),
            ("volume", ("volume", "rm")),
            ("network", ("network", "rm")),
        ):
            every = ("--all",) if kind == "container" else ()
            if found := docker(kind, "ls", "--quiet", *every, of_this).split():
                docker(*remove, *found)

    def _run(self, service: str, options: list[str], settings: tuple[str, ...]) -> Container:
        name = f"{self._name}-{service}-{uuid.uuid4().hex[:4]}"
        placed = (f"--name={name}", f"--network={self._name}", f"--network-alias={service}")
        if self._certificates is not None:
            options = [*options, f"--volume={self._certificates / service}:{_TLS}:ro"]
            settings = (*settings, f"{service}.tls={_TLS_SETTING}")
        given = (f"--set={setting}" for setting in settings)
        docker(
            *("run", "--detach", f"--label={self._label}", *placed, *HARDENED, *options),
            *(image(service), f"--experiment={self._experiment}", *given),
        )
        return Container(name, self._tls)


def wait_for_status(
    learner: Container, field: str, more_than: int
) -> inference_pb2.GetStatusResponse:
    """Waits until a field of a learner's status exceeds a number."""

    def reached() -> inference_pb2.GetStatusResponse | None:
        status = learner.status()
        return status if status is not None and getattr(status, field) > more_than else None

    what = f"{field} > {more_than}"
    answer: inference_pb2.GetStatusResponse = _wait(learner, reached, what)
    return answer


def wait_for_slots(learner: Container, slots: int) -> None:
    """Waits until so many slots are leased, all of them connected."""

    def reached() -> bool:
        status = learner.status()
        return status is not None and status.leased_slots == status.live_slots == slots

    _wait(learner, reached, f"{slots} slots, leased and live")


def _wait(learner: Container, condition: Any, what: str) -> Any:
    try:
        return runs.wait_for(condition, what, timeout=180)
    except AssertionError as error:
        raise AssertionError(f"{error}; {learner.status()}\n{learner.logs()}") from None
