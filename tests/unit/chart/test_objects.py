"""Everything that the chart can render is valid, for all presets and a matrix of options."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest
import yaml

from tests.unit.chart import chart

COMPONENTS = ("learner", "actor", "replay")
MATRIX: list[tuple[str, ...]] = [
    (),
    *((f"preset:{name}",) for name in chart.PRESETS),
    *((f"experiment:{name}", "actor.replicas=1") for name in chart.EXPERIMENTS),
    ("experiment:cartpole-r2d2", "replay.replicas=3", "replay.persistence.enabled=false"),
    ("actor.autoscaling.hpa.enabled=true",),
    ("actor.autoscaling.hpa.enabled=true", "actor.autoscaling.hpa.metric=cpu"),
    (
        *("actor.autoscaling.hpa.enabled=true", "actor.autoscaling.hpa.metric=gke"),
        "monitoring.scrape=podMonitoring",
    ),
    ("actor.autoscaling.keda.enabled=true",),
    *(
        (
            *("experiment:cartpole-r2d2", f"monitoring.scrape={scrape}"),
            *("monitoring.rules.enabled=true", "monitoring.dashboards.enabled=true"),
            "monitoring.labels.team=rl",
        )
        for scrape in ("podMonitor", "serviceMonitor", "podMonitoring")
    ),
    (
        "experiment:cartpole-r2d2",
        *(f"{c}.pdb.enabled=true" for c in COMPONENTS),
        *(f"{c}.pdb.maxUnavailable=50%" for c in COMPONENTS),
        *(f"{c}.priorityClassName=high" for c in COMPONENTS),
        *(f"{c}.nodeSelector.pool=mine" for c in COMPONENTS),
        *(f"{c}.env.A=1" for c in COMPONENTS),
        *(f"{c}.networkPolicy.metricsFrom[0].ipBlock.cidr=10.0.0.0/8" for c in COMPONENTS),
        *(f"{c}.podAnnotations.note=x" for c in COMPONENTS),
        *(f"{c}.annotations.note=x" for c in COMPONENTS),
        *(f"{c}.serviceAccount.annotations.note=x" for c in COMPONENTS),
        *(f"{c}.image.digest=sha256:{'0' * 64}" for c in COMPONENTS),
        *("global.imagePullSecrets[0].name=secret", "global.imageRegistry=registry.example/rl"),
    ),
    (
        *("learner.accelerator.type=gpu", "learner.accelerator.gpu.count=2"),
        *("learner.persistence.existingClaim=mine", "learner.persistence.annotations.a=b"),
        "--set-json=actor.extraEnv=[{\"name\":\"X\",\"value\":\"y\"}]",
        "--set-json=actor.extraVolumes=[{\"name\":\"x\",\"emptyDir\":{}}]",
        "--set-json=actor.extraVolumeMounts=[{\"name\":\"x\",\"mountPath\":\"/x\"}]",
        "--set-json=actor.topologySpreadConstraints=[{\"maxSkew\":1,\"topologyKey\":\"zone\","
        "\"whenUnsatisfiable\":\"ScheduleAnyway\"}]",
    ),
    (
        *("evaluator.enabled=true", "evaluator.environments=2", "evaluator.env.A=1"),
        *("evaluator.pdb.enabled=true", "evaluator.pdb.maxUnavailable=1"),
        *("monitoring.scrape=serviceMonitor", "tls.enabled=true"),
        *("tls.certManager.enabled=true", "tls.certManager.issuerRef.name=ours"),
    ),
    ("learner.persistence.enabled=false", "learner.replicas=0", "actor.replicas=0"),
    (
        *("experiment:cartpole-r2d2", "tls.enabled=true", "tls.certManager.enabled=true"),
        *("tls.certManager.issuerRef.name=ours", "learner.tensorboard.enabled=true"),
    ),
    ("tls.enabled=true", "tls.existingSecret=mine", "learner.replicas=2"),
    (*(f"{c}.serviceAccount.create=false" for c in COMPONENTS), "fullnameOverride=other"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def rendered() -> None:
    """Renders all of the matrix at once, on all cores; later calls find it in the cache."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda arguments: chart.render(*arguments), MATRIX))


matrix = pytest.mark.parametrize("arguments", MATRIX, ids=lambda a: " ".join(a)[:60] or "defaults")


def test_lint_is_clean() -> None:
    result = chart.helm("lint", "--strict", str(chart.CHART))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[WARNING]" not in result.stdout


@matrix
def test_objects_are_valid(arguments: tuple[str, ...]) -> None:
    objects = chart.render(*arguments)
    assert len(objects) >= 7
    chart.validate(objects)
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(set(names)) == len(names)
    assert all(o["metadata"]["namespace"] == "ns" for o in objects)


def test_what_is_not_valid_is_found() -> None:
    objects = chart.render("monitoring.scrape=podMonitor")
    for kind in ("StatefulSet", "PodMonitor"):
        o = chart.find(objects, kind)
        with pytest.raises(Exception, match="unexpected"):
            chart.validate([{**o, "spec": {**o["spec"], "no_such_key": 1}}])
    with pytest.raises(AssertionError, match="Couldn't find schema"):
        chart.validate(
            [{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}}]
        )


@matrix
def test_pods_are_restricted(arguments: tuple[str, ...]) -> None:
    """The restricted Pod Security Standard, and what else a pod of ours always has."""
    objects = chart.render(*arguments)
    assert {"learner", "actor", "test"} <= set(chart.pods(objects))
    for pod in chart.pods(objects).values():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all("hostPath" not in volume for volume in pod["volumes"])
        for c in pod["containers"]:
            assert c["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"name": "tmp", "mountPath": "/tmp"} in c["volumeMounts"]
            assert {"cpu", "memory"} <= set(c["resources"]["requests"])
            assert "memory" in c["resources"]["limits"]
            image = c["image"].rpartition("/")[2]
            assert ":latest" not in image
            assert "@sha256:" in image or ":0." in image


@matrix
def test_devices_are_asked_for_as_they_are_limited(arguments: tuple[str, ...]) -> None:
    for pod in chart.pods(chart.render(*arguments)).values():
        for c in pod["containers"]:
            resources = c["resources"]
            for device in ("nvidia.com/gpu", "google.com/tpu"):
                assert resources["requests"].get(device) == resources["limits"].get(device)


@matrix
def test_selectors_find_the_pods(arguments: tuple[str, ...]) -> None:
    objects = chart.render(*arguments)
    for o in objects:
        if o["kind"] not in ("Deployment", "StatefulSet"):
            continue
        selector = o["spec"]["selector"]["matchLabels"]
        assert set(selector) == {
            f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")
        }
        assert selector.items() <= o["spec"]["template"]["metadata"]["labels"].items()
    for service in chart.find_all(objects, "Service"):
        component = service["metadata"]["labels"]["app.kubernetes.io/component"]
        template = chart.workload(objects, component)["spec"]["template"]
        assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        ports = {p["name"] for p in template["spec"]["containers"][0]["ports"]}
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= ports


def _immutable(objects: list[chart.Object]) -> dict[str, Any]:
    """What Kubernetes does not let an upgrade change."""
    found: dict[str, Any] = {}
    for o in objects:
        key, spec = f"{o['kind']}/{o['metadata']['name']}", o.get("spec", {})
        if o["kind"] == "Deployment":
            found[key] = spec["selector"]
        elif o["kind"] == "StatefulSet":
            claims = spec.get("volumeClaimTemplates")
            found[key] = spec["selector"], spec["serviceName"], spec["podManagementPolicy"], claims
        elif o["kind"] == "Service":
            found[key] = spec["clusterIP"]
    return found


def test_an_upgrade_changes_nothing_that_cannot_be_changed(tmp_path: Any) -> None:
    """Two versions of the chart, and of the experiment, of the same release."""
    newer = tmp_path / "seedpod"
    result = chart.helm(
        *("package", str(chart.CHART), f"--destination={tmp_path}"),
        *("--version=7.0.0", "--app-version=9.9.9"),
    )
    assert result.returncode == 0, result.stderr
    before = chart.render("experiment:cartpole-r2d2", "actor.replicas=1")
    output = chart.helm(
        *("template", "run", f"{newer}-7.0.0.tgz", "--namespace=ns"),
        f"--values={chart.CHART}/experiments/memory-r2d2.yaml",
        *("--set=actor.replicas=2", "--set=learner.podLabels.a=b", "--set=learner.labels.a=b"),
    )
    assert output.returncode == 0, output.stderr
    after = [o for o in yaml.safe_load_all(output.stdout) if o]
    assert chart.container(after, "learner")["image"] == "seedpod-learner:9.9.9"
    assert _immutable(before) == _immutable(after)
    assert len(_immutable(before)) == 5
