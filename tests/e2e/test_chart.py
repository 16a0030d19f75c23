"""The chart's pods, run as processes: their commands, arguments, ports and probes fit together."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.local.ports import free_port
from services.local.report.history import History
from services.shared import rpc
from tests.e2e import runs
from tests.unit.chart import chart

SERVICES = ("replay", "learner", "evaluator", "actor")


class Pods:
    """One process for each pod; what the cluster would resolve or mount is on this machine."""

    def __init__(self, folder: pathlib.Path, objects: list[chart.Object]) -> None:
        self._folder = folder
        self.objects = objects
        document = chart.find(objects, "ConfigMap", "-experiment")["data"]["experiment.yaml"]
        (folder / "experiment.yaml").write_text(document)
        self._ports = {50051: free_port(), 50052: free_port()}
        self._replacements = {
            "/etc/seedpod/": f"{folder}/",
            "/etc/seedpod-tls": f"{folder}/tls",
            "/var/lib/seedpod/": f"{folder}/data/",
            "run-seedpod-replay-0.run-seedpod-replay.ns.svc": "127.0.0.1",
            "run-seedpod-learner.ns.svc": "127.0.0.1",
            "0.0.0.0": "127.0.0.1",
            "$(POD_NAME)": "run-seedpod-actor-abc",
            **{f":{port}": f":{here}" for port, here in self._ports.items()},
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, component: str) -> list[str]:
        c = chart.container(self.objects, component)
        # Without a command of the chart's it is the image's entrypoint.
        service = "actor" if component == "evaluator" else component
        command = c.get("command", ["python", "-m", f"services.{service}"])
        return self._here([*command, *c["args"]], {"=9100": f"={free_port()}"})

    def _here(self, command: list[str], more: dict[str, str]) -> list[str]:
        """The command with this machine's Python, addresses and folders."""
        arguments = command[1:]
        for there, here in {**self._replacements, **more}.items():
            # A certificate's name stays what it is.
            arguments = [
                a if a.startswith("--server-name=") else a.replace(there, here) for a in arguments
            ]
        return [sys.executable, *arguments]

    def start(self, component: str) -> None:
        with (self._folder / f"{component}.log").open("wb") as log:
            self.processes[component] = subprocess.Popen(
                self.command(component), stdout=log, stderr=log, env=self._environment(component)
            )

    def _environment(self, component: str) -> dict[str, str]:
        """Ours, and what the chart sets; the image's code is in /app."""
        variables = chart.container(self.objects, component)["env"]
        given = {v["name"]: v["value"] for v in variables if "value" in v}
        here = {"/app": str(chart.ROOT), "/opt/": f"{self._folder}/"}
        for name, value in given.items():
            for there, folder in here.items():
                value = value.replace(there, folder)
            given[name] = value
        return {**os.environ, **given}

    def end(self) -> None:
        """Ends them as the cluster does: SIGTERM, and the time that a pod has."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for component, process in self.processes.items():
            grace = chart.pods(self.objects)[component]["terminationGracePeriodSeconds"]
            assert process.wait(timeout=grace) == 0, self.log(component)

    def kill(self) -> None:
        """Ends what is still there."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    def log(self, component: str) -> str:
        return (self._folder / f"{component}.log").read_text()

    def probe(self, component: str, kind: str) -> bool:
        assert self.processes[component].poll() is None, self.log(component)
        probe = chart.container(self.objects, component)[f"{kind}Probe"]
        if "exec" in probe:
            command = self._here(probe["exec"]["command"], {"localhost": "127.0.0.1"})
            return subprocess.run(command, timeout=60).returncode == 0
        spec: dict[str, Any] = probe["grpc"]
        with rpc.channel(f"127.0.0.1:{self._ports[spec['port']]}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=spec["service"])
            try:
                status = stub.Check(request, timeout=5, wait_for_ready=True).status
            except grpc.RpcError:
                return False
        return bool(status == health_pb2.HealthCheckResponse.SERVING)


def write_certificates(folder: pathlib.Path) -> None:
    """One for all pods, with the names that the chart asks cert-manager for."""
    made = chart.render(
        *("experiment:memory-r2d2", "tls.enabled=true", "tls.certManager.enabled=true"),
        "tls.certManager.issuerRef.name=ours",
    )
    names = [n for o in chart.find_all(made, "Certificate") for n in o["spec"]["dnsNames"]]
    authority = trustme.CA()
    certificate = authority.issue_cert(*names, "127.0.0.1")
    folder.mkdir()
    certificate.private_key_pem.write_to_path(folder / "tls.key")
    certificate.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    authority.cert_pem.write_to_path(folder / "ca.crt")


@pytest.mark.parametrize("tls", [(), ("tls.enabled=true", "tls.existingSecret=mine")])
def test_the_pods_train_together_and_end_in_order(
    tls: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    write_certificates(tmp_path / "tls")
    pods = Pods(
        tmp_path,
        chart.render(
            *("experiment:memory-r2d2", "actor.replicas=1", "evaluator.enabled=true", *tls)
        ),
    )
    try:
        # The actor first: it waits for the learner, the learner for replay.
        for component in reversed(SERVICES):
            pods.start(component)
        for component in ("learner", "replay"):
            for kind in ("startup", "liveness", "readiness"):
                probe = functools.partial(pods.probe, component, kind)
                runs.wait_for(probe, f"{component} {kind}")
        selftest = subprocess.run(pods.command("test"), capture_output=True, text=True, timeout=180)
        assert selftest.returncode == 0, selftest.stderr + pods.log("learner")
        assert "gave a sequence of" in selftest.stderr
        evaluation = "4 slots from 60 on, for EVALUATION"
        runs.wait_for(lambda: evaluation in pods.log("learner"), "the evaluator")
        pods.end()
    finally:
        pods.kill()
    data = tmp_path / "data" / "memory-r2d2"
    assert list((data / "checkpoints").glob("checkpoint-*"))
    assert list((data / "tensorboard").iterdir())
    assert list((data / "replay").iterdir())


def _frames(events: pathlib.Path) -> int:
    history = History(events)
    history.update()
    return history.frames


def test_an_environment_and_a_network_of_ones_own_come_from_a_volume(
    tmp_path: pathlib.Path,
) -> None:
    values = chart.ROOT / "examples" / "kubernetes" / "values.yaml"
    objects = chart.render(f"--values={values}")
    chart.validate(objects)
    # What the ConfigMap holds is where the pods mount it, and nowhere else.
    mounts = {
        component: [m["mountPath"] for m in chart.container(objects, component)["volumeMounts"]]
        for component in ("actor", "learner")
    }
    assert all("/opt/own" in paths for paths in mounts.values())
    (tmp_path / "own").mkdir()
    for name in ("corridor.py", "small_network.py"):
        shutil.copy(chart.ROOT / "examples" / name, tmp_path / "own")
    pods = Pods(tmp_path, objects)
    data = tmp_path / "data" / "corridor"
    try:
        for component in ("actor", "learner"):
            pods.start(component)
        runs.wait_for(lambda: pods.probe("learner", "readiness"), "the learner")
        runs.wait_for(lambda: _frames(data / "tensorboard") > 1000, "1000 frames")
        pods.end()
    finally:
        pods.kill()
    (saved,) = (data / "checkpoints").glob("checkpoint-*")
    # A one-hot of the corridor's 9 places, into a layer of the size that the values ask for.
    assert np.load(saved / "variables.npz")["network/entry/kernel"].shape == (9, 32)
