"""A release in a Kubernetes cluster, as the `seedpod` command sees it.

`cluster_cli` calls it. It speaks to the API server alone, with the usual kubeconfig: metrics come
through the pod proxy, files through exec, ports through portforward.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import json
import os
import pathlib
import re
import socket
import tarfile
import threading
from collections.abc import Iterator
from typing import Any

import kubernetes
import kubernetes.stream
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from kubernetes.stream import ws_client
from prometheus_client.parser import text_string_to_metric_families
from urllib3.exceptions import HTTPError

from services.local.process import LaunchError

COMPONENTS = ("learner", "actor", "evaluator", "replay")
_LABEL = "app.kubernetes.io"
_TIMEOUT_SECONDS = 10.0
_COPY_TIMEOUT_SECONDS = 600.0
_QUIET_SECONDS = 86400.0  # for so long a log that is followed may say nothing
_CHECKPOINTS = "learner.checkpoint_directory="
_CHECKPOINT_NAME = re.compile(r"checkpoint-\d{12}")


class ClusterError(LaunchError):
    """The cluster does not do what was asked of it; the message says what and why."""


@dataclasses.dataclass(frozen=True)
class Pod:
    """One pod of the release.

    Attributes:
      name: Of the pod.
      component: `learner`, `actor`, `evaluator` or `replay`.
      state: Its phase, or why its container waits: `Running`, `Pending`, `CrashLoopBackOff`.
      ready: Whether it is.
      restarts: Of its containers.
      node: Where it runs; empty before.
      age_seconds: Since it was created.
    """

    name: str
    component: str
    state: str
    ready: bool
    restarts: int
    node: str
    age_seconds: float


class Cluster:
    """One release in one namespace."""

    def __init__(self, release: str, namespace: str | None, context: str | None) -> None:
        """Reads the kubeconfig.

        Args:
          release: The name that `helm install` was given.
          namespace: None: the context's.
          context: None: the current one.

        Raises:
          ClusterError: There is no kubeconfig, or no such context in it.
        """
        try:
            # Named here: the library reads the variable when it is imported.
            files = os.environ.get("KUBECONFIG")
            contexts, active = kubernetes.config.list_kube_config_contexts(files)
            chosen = next((c for c in contexts if c["name"] == context), active)
            if context is not None and chosen["name"] != context:
                names = [c["name"] for c in contexts]
                raise ClusterError(
                    f"context {context!r} is not in the kubeconfig, which has {names}"
                )
            client = kubernetes.config.new_client_from_config(files, context)
        except ConfigException as error:
            raise ClusterError(f"kubeconfig: {error}") from None
        self.release = release
        self.namespace = namespace or chosen["context"].get("namespace", "default")
        self._core: Any = kubernetes.client.CoreV1Api(client)
        self._apps: Any = kubernetes.client.AppsV1Api(client)
        self._autoscaling: Any = kubernetes.client.AutoscalingV2Api(client)

    def pods(self, component: str | None = None) -> list[Pod]:
        """The release's pods, by component and name.

        Raises:
          ClusterError: There are none, or the API server refuses.
        """
        selector = f"{_LABEL}/instance={self.release}"
        if component is not None:
            selector += f",{_LABEL}/component={component}"
        with self._errors("list pods"):
            found = self._core.list_namespaced_pod(
                self.namespace, label_selector=selector, _request_timeout=_TIMEOUT_SECONDS
            ).items
        if not found:
            what = "pods" if component is None else f"{component} pods"
            raise ClusterError(
                f"no {what} of release {self.release!r} in namespace {self.namespace!r}"
            )
        pods = [_pod(item) for item in found]
        return sorted(
            (pod for pod in pods if pod.component in COMPONENTS),
            key=lambda pod: (COMPONENTS.index(pod.component), pod.name),
        )

    def metrics(self, pod: str) -> str:
        """A pod's /metrics, in Prometheus's text format.

        Raises:
          ClusterError: It has no metrics port, or does not answer.
        """
        port = self.port(pod, "metrics")
        with self._errors(f"read the metrics of {pod}"):
            # Unread, or the client would take the text for a Python literal.
            response = self._core.connect_get_namespaced_pod_proxy_with_path(
                f"{pod}:{port}",
                self.namespace,
                "metrics",
                _preload_content=False,
                _request_timeout=_TIMEOUT_SECONDS,
            )
        return str(response.data.decode())

    def values(self, pod: str) -> dict[str, float]:
        """A pod's metrics without labels, by name.

        Raises:
          ClusterError: As for `metrics`.
        """
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(self.metrics(pod))
            for sample in family.samples
            if not sample.labels
        }

    def bottleneck(self, pod: str) -> str:
        """What a learner says limits it; empty before it says so.

        Raises:
          ClusterError: As for `metrics`.
        """
        for family in text_string_to_metric_families(self.metrics(pod)):
            if family.name == "seedpod_bottleneck":
                parts = [s.labels["part"] for s in family.samples if s.value == 1]
                return parts[0] if parts else ""
        return ""

    def scale(self, actors: int) -> None:
        """Sets the number of actors.

        Raises:
          ClusterError: An autoscaler holds the number, or there is no such Deployment.
        """
        name = self._actor_deployment()
        with self._errors("list autoscalers"):
            scalers = self._autoscaling.list_namespaced_horizontal_pod_autoscaler(
                self.namespace, _request_timeout=_TIMEOUT_SECONDS
            ).items
        for scaler in scalers:
            target = scaler.spec.scale_target_ref
            if (target.kind, target.name) == ("Deployment", name):
                raise ClusterError(
                    f"autoscaler {scaler.metadata.name!r} decides how many actors there are,"
                    f" {scaler.spec.min_replicas} to {scaler.spec.max_replicas}: change these"
                    " values of the release instead"
                )
        with self._errors(f"scale {name}"):
            self._apps.patch_namespaced_deployment_scale(
                name,
                self.namespace,
                {"spec": {"replicas": actors}},
                _request_timeout=_TIMEOUT_SECONDS,
            )

    def log(self, pod: str, tail: int, follow: bool) -> Iterator[str]:
        """A pod's log, line by line.

        Raises:
          ClusterError: It has none yet, or is gone.
        """
        with self._errors(f"read the log of {pod}"):
            response = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                tail_lines=tail,
                follow=follow,
                _preload_content=False,
                _request_timeout=(_TIMEOUT_SECONDS, _QUIET_SECONDS if follow else _TIMEOUT_SECONDS),
            )
            rest = b""
            for chunk in response.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
            if rest:
                yield rest.decode(errors="replace")

    def forward(self, pod: str, port: int, local_port: int) -> Forward:
        """Makes a port of a pod one of this machine.

        Args:
          pod: Its name.
          port: Its port.
          local_port: Ours; 0: any free one.

        Raises:
          OSError: Ours is taken.
        """

        def connect() -> Any:
            with self._errors(f"forward port {port} of {pod}"):
                forwarded = kubernetes.stream.portforward(
                    self._core.connect_get_namespaced_pod_portforward,
                    pod,
                    self.namespace,
                    ports=str(port),
                )
            return forwarded.socket(port)

        return Forward(connect, local_port)

    def checkpoints(self, pod: str) -> list[str]:
        """Names of a learner's checkpoints, oldest first.

        Raises:
          ClusterError: It keeps none, or does not answer.
        """
        folder = self._checkpoint_directory(pod)
        script = "import os, sys; print(*sorted(os.listdir(sys.argv[1])), sep='\\n')"
        output = self._execute(pod, ["python", "-c", script, folder], _TIMEOUT_SECONDS)
        return [name for name in output.decode().split() if _CHECKPOINT_NAME.fullmatch(name)]

    def fetch_checkpoint(self, pod: str, name: str, target: pathlib.Path) -> pathlib.Path:
        """Copies a checkpoint to this machine.

        Args:
          pod: A learner's.
          name: From `checkpoints`.
          target: The folder that it is put into.

        Raises:
          ClusterError: There is no such checkpoint, or it cannot be copied.
          FileExistsError: The target has it already.
        """
        found = self.checkpoints(pod)
        if name not in found:
            raise ClusterError(f"{pod} has no checkpoint {name!r}, allowed: {found}")
        if (target / name).exists():
            raise FileExistsError(f"{target / name}: is there already")
        script = (
            "import sys, tarfile\n"
            "with tarfile.open(fileobj=sys.stdout.buffer, mode='w|') as archive:\n"
            "    archive.add(f'{sys.argv[1]}/{sys.argv[2]}', sys.argv[2])"
        )
        folder = self._checkpoint_directory(pod)
        data = self._execute(pod, ["python", "-c", script, folder, name], _COPY_TIMEOUT_SECONDS)
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                (target / name).mkdir(parents=True)
                for member in archive.getmembers():
                    # Plain files, and by their last name only: nothing lands anywhere else.
                    if (file := archive.extractfile(member)) is not None:
                        path = target / name / pathlib.PurePosixPath(member.name).name
                        path.write_bytes(file.read())
        except tarfile.TarError as error:
            raise ClusterError(f"{name} of {pod} came damaged: {error}") from None
        return target / name

    def _execute(self, pod: str, command: list[str], timeout: float) -> bytes:
        """Runs a command in a pod's first container and returns what it prints."""
        with self._errors(f"run a command in {pod}"):
            call = kubernetes.stream.stream(
                self._core.connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                command=command,
                stdout=True,
                stderr=True,
                stdin=False,
                tty=False,
                binary=True,
                _preload_content=False,
            )
            call.run_forever(timeout=timeout)
        if call.is_open():
            call.close()
            raise ClusterError(f"a command in {pod} did not end within {timeout:.0f} s")
        output, errors, end = (
            call.read_channel(channel)
            for channel in (
                ws_client.STDOUT_CHANNEL,
                ws_client.STDERR_CHANNEL,
                ws_client.ERROR_CHANNEL,
            )
        )
        if not end:
            raise ClusterError(f"the connection to {pod} broke")
        if json.loads(end)["status"] != "Success":
            lines = bytes(errors or end).decode(errors="replace").strip().splitlines()
            raise ClusterError(f"a command in {pod} failed: {lines[-1]}")
        return bytes(output)

    def _actor_deployment(self) -> str:
        selector = f"{_LABEL}/instance={self.release},{_LABEL}/component=actor"
        with self._errors("list deployments"):
            found = self._apps.list_namespaced_deployment(
                self.namespace, label_selector=selector, _request_timeout=_TIMEOUT_SECONDS
            ).items
        if not found:
            raise ClusterError(
                f"no actor deployment of release {self.release!r} in namespace {self.namespace!r}"
            )
        return str(found[0].metadata.name)

    def _containers(self, pod: str) -> Any:
        with self._errors(f"read {pod}"):
            item = self._core.read_namespaced_pod(
                pod, self.namespace, _request_timeout=_TIMEOUT_SECONDS
            )
        return item.spec.containers

    def port(self, pod: str, name: str) -> int:
        """The number of a pod's named port.

        Raises:
          ClusterError: It has none of that name.
        """
        containers = self._containers(pod)
        ports = {port.name: port.container_port for c in containers for port in c.ports or []}
        if name not in ports:
            raise ClusterError(f"{pod} has no port {name!r}, only {sorted(ports)}")
        return int(ports[name])

    def _checkpoint_directory(self, pod: str) -> str:
        container = self._containers(pod)[0]
        for argument in [*(container.command or []), *(container.args or [])]:
            _, separator, path = argument.partition(_CHECKPOINTS)
            if separator:
                return str(path)
        raise ClusterError(f"{pod} keeps no checkpoints: it has no argument {_CHECKPOINTS}...")

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except ApiException as error:
            reason = error.reason or str(error)
            raise ClusterError(f"cannot {what}: {error.status} {reason}") from None
        except (HTTPError, OSError) as error:
            raise ClusterError(f"cannot {what}: {error}") from None


class Forward:
    """A local port whose connections go to a pod."""

    def __init__(self, connect: Any, local_port: int) -> None:
        """Listens; `serve` does the rest."""
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", local_port))
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Forwards until `close`.

        Raises:
          ClusterError: The pod cannot be reached.
        """
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:  # closed
                return
            theirs = self._connect()
            for source, sink in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        """Ends `serve`."""
        # `close` alone would not wake an accept that waits.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _pump(source: Any, sink: Any) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        pass
    finally:
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _pod(item: Any) -> Pod:
    statuses = item.status.container_statuses or []
    waiting = [s.state.waiting.reason for s in statuses if s.state and s.state.waiting]
    conditions = {c.type: c.status for c in item.status.conditions or []}
    created = item.metadata.creation_timestamp
    now = datetime.datetime.now(datetime.UTC)
    return Pod(
        name=item.metadata.name,
        component=item.metadata.labels.get(f"{_LABEL}/component", ""),
        state="Terminating"
        if item.metadata.deletion_timestamp
        else (waiting[0] if waiting else item.status.phase),
        ready=conditions.get("Ready") == "True",
        restarts=sum(s.restart_count for s in statuses),
        node=item.spec.node_name or "",
        age_seconds=(now - created).total_seconds(),
    )
