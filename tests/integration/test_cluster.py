"""The `seedpod` command against a cluster, as far as one can be had here."""

from __future__ import annotations

import http.server
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import urllib3

from services.learner import checkpoint
from services.local import cli
from services.local.cluster import Cluster
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from tests.integration.kubernetes_api import KubernetesApi, pod

METRICS = """\
# TYPE seedpod_environment_frames counter
seedpod_environment_frames_total 123456.0
# TYPE seedpod_frames_per_second gauge
seedpod_frames_per_second 4321.4
# TYPE seedpod_episode_return_mean gauge
seedpod_episode_return_mean 0.75
# TYPE seedpod_evaluation_return_mean gauge
seedpod_evaluation_return_mean NaN
# TYPE seedpod_bottleneck gauge
seedpod_bottleneck{part="environment"} 0.0
seedpod_bottleneck{part="training"} 1.0
"""


@pytest.fixture
def api(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    server = KubernetesApi(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    server.pods = [
        pod("run-actor-5c", "actor", 9101),
        pod("run-learner-0", "learner", 9100),
        pod("run-actor-77", "actor", 9101, phase="Pending", conditions=[], containerStatuses=None),
    ]
    server.metrics = METRICS
    yield server
    server.close()


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Runs `seedpod`; returns stdout, or stderr if it is to fail."""
    assert cli.main([*arguments, "--release=run"]) == status
    output, errors = capsys.readouterr()
    return errors if status else output


def test_status_shows_pods_and_what_the_learner_says(
    api: KubernetesApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    rows = [[c.strip() for c in line.split("│")] for line in run(capsys, "status").splitlines()]
    cells = {row[1]: row[2:-1] for row in rows if len(row) > 3}
    assert cells["run-learner-0"][:3] == ["Running", "yes", "2"]
    assert cells["run-learner-0"][4] == "node-1"
    assert cells["run-actor-77"][:3] == ["Pending", "no", "0"]
    assert cells["frames"] == ["123,456"]
    assert cells["frames/s"] == ["4,321"]
    assert cells["return"] == ["0.750"]
    assert cells["bottleneck"] == ["training"]
    assert "evaluation" not in cells


def test_scale_sets_the_replicas_unless_an_autoscaler_does(
    api: KubernetesApi, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "scale", "7")
    path = "/apis/apps/v1/namespaces/agents/deployments/run-actor/scale"
    assert api.patches == [(path, {"spec": {"replicas": 7}})]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "run-actor"}
    api.autoscalers = [
        {
            "metadata": {"name": "run-hpa"},
            "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 9},
        }
    ]
    error = run(capsys, "scale", "8", status=1)
    assert "autoscaler 'run-hpa' decides how many actors there are, 2 to 9" in error
    assert len(api.patches) == 1
    assert "-1 actors, allowed: 0 or more" in run(capsys, "scale", "-1", status=1)


def test_logs_of_all_pods_or_of_one_service(
    api: KubernetesApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.pods[2] = pod("run-evaluator-6f", "evaluator", 9101)
    api.logs = {"run-learner-0": "a\nb\nc\n", "run-actor-5c": "d\ne", "run-evaluator-6f": "f"}
    assert run(capsys, "logs", "--tail=2").splitlines() == [
        *("run-learner-0: b", "run-learner-0: c"),
        *("run-actor-5c: d", "run-actor-5c: e"),
        "run-evaluator-6f: f",
    ]
    assert run(capsys, "logs", "actor", "--follow").splitlines() == [
        *("run-actor-5c: d", "run-actor-5c: e")
    ]
    assert run(capsys, "logs", "evaluator").splitlines() == ["run-evaluator-6f: f"]


def test_checkpoints_are_listed_and_copied(
    api: KubernetesApi, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "volume"
    spec = EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (1,)),), DiscreteActionSpec((2,)))
    values = {"weights": np.random.default_rng(0).random(20_000)}
    for updates in (5, 12):
        checkpoint.save(folder, values, {"updates": updates}, spec, "", keep=9)
    (folder / "lost+found").mkdir()
    arguments = api.pods[1]["spec"]["containers"][0]
    arguments["args"] = ["--set", f"learner.checkpoint_directory={folder}"]
    names = ["checkpoint-000000000005", "checkpoint-000000000012"]
    assert run(capsys, "checkpoint", "ls").split() == names
    target = tmp_path / "copies"
    path = run(capsys, "checkpoint", "get", f"--to={target}").strip()
    assert path == str(target / names[1])
    copied = checkpoint.read(path).variables()
    np.testing.assert_array_equal(copied["weights"], values["weights"])
    error = run(capsys, "checkpoint", "get", f"--to={target}", status=1)
    assert "is there already" in error
    error = run(capsys, "checkpoint", "get", "checkpoint-1", f"--to={target}", status=1)
    assert "has no checkpoint 'checkpoint-1', allowed: ['checkpoint-000000000005'," in error
    arguments["args"] = ["--set", "learner.checkpoint_directory=/nowhere"]
    assert "No such file or directory: '/nowhere'" in run(capsys, "checkpoint", "ls", status=1)
    arguments["args"] = []
    assert "keeps no checkpoints" in run(capsys, "checkpoint", "ls", status=1)


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello" * 2000)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_port_is_forwarded(api: KubernetesApi) -> None:
    page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    forward = Cluster("run", None, None).forward("run-learner-0", page.server_port, 0)
    thread = threading.Thread(target=forward.serve, daemon=True)
    thread.start()
    try:
        for _ in range(2):
            url = f"http://127.0.0.1:{forward.port}/"
            response = urllib3.request("GET", url, timeout=10, retries=False)
            assert response.data == b"hello" * 2000
    finally:
        forward.close()
        page.shutdown()
    thread.join(5)
    assert not thread.is_alive()


def test_what_is_missing_is_named(
    api: KubernetesApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["status", "--release=other"]) == 1
    assert "no pods of release 'other' in namespace 'agents'" in capsys.readouterr().err
    assert cli.main(["scale", "3"]) == 1
    assert "--release is missing" in capsys.readouterr().err
    assert "context 'x' is not in the kubeconfig" in run(capsys, "status", "--context=x", status=1)
    api.close()
    assert "cannot list pods" in run(capsys, "status", status=1)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert "kubeconfig:" in run(capsys, "status", status=1)


def test_a_run_on_this_machine(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    assert cli.main(["status", f"--runs={runs}"]) == 1
    assert "no run in" in capsys.readouterr().err
    folder = runs / "mine-20260101-000000"
    folder.mkdir()
    document = {"actor": {"environment": "CartPole-v1"}, "name": "mine"}
    (folder / "experiment.yaml").write_text(json.dumps(document))
    (folder / "learner.address").write_text("127.0.0.1:1")
    (folder / "learner.log").write_text("x\ny\n")
    assert cli.main(["status", f"--runs={runs}"]) == 0
    assert "not running, and without a checkpoint" in capsys.readouterr().out
    spec = EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (1,)),), DiscreteActionSpec((2,)))
    counters = {"updates": 1234, "frames": 5678}
    checkpoint.save(folder / "checkpoints", {"w": np.zeros(1)}, counters, spec, "", keep=1)
    assert cli.main(["status", f"--runs={runs}"]) == 0
    assert "5,678" in capsys.readouterr().out
    assert cli.main(["checkpoint", "ls", f"--runs={runs}"]) == 0
    assert "checkpoint-000000001234  1,234 updates  5,678 frames" in capsys.readouterr().out
    assert cli.main(["logs", "learner", "--tail=1", f"--runs={runs}"]) == 0
    assert capsys.readouterr().out == "learner: y\n"
    assert cli.main(["checkpoint", "get", f"--runs={runs}"]) == 1
    assert "there is nothing to copy" in capsys.readouterr().err
