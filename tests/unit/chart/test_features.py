"""What each value changes, and that it leaves everything else alone."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from services.learner import peers
from services.shared import config
from tests.unit.chart import chart

LEARNER, ACTOR, REPLAY = (
    "StatefulSet/run-seedpod-learner",
    "Deployment/run-seedpod-actor",
    "StatefulSet/run-seedpod-replay",
)
TEST = "Pod/run-seedpod-test"
EXPERIMENT = "ConfigMap/run-seedpod-experiment:data.experiment.yaml"
POD, CONTAINER = "spec.template.spec", "spec.template.spec.containers.0"
CHECKSUM = "spec.template.metadata.annotations.checksum/experiment"


def _leaves(value: Any, path: str) -> dict[str, Any]:
    """Values by their dotted paths; empty mappings and lists count as values."""
    if isinstance(value, dict) and value:
        pairs = value.items()
    elif isinstance(value, list) and value:
        pairs = enumerate(value)  # type: ignore[assignment]
    else:
        return {path: value}
    found = {}
    for key, child in pairs:
        found.update(_leaves(child, f"{path}.{key}" if path[-1] != ":" else f"{path}{key}"))
    return found


def _all_leaves(*arguments: str) -> dict[str, Any]:
    found = {}
    for o in chart.render(*arguments):
        found.update(_leaves(o, f"{o['kind']}/{o['metadata']['name']}:"))
    return found


def changes(*arguments: str, base: tuple[str, ...] = ()) -> dict[str, Any]:
    """The new value of everything that is different, None for what is gone, by object and path."""
    before, after = _all_leaves(*base), _all_leaves(*base, *arguments)
    keys = sorted(before.keys() | after.keys())
    return {key: after.get(key) for key in keys if before.get(key) != after.get(key)}


def test_replicas() -> None:
    assert changes("actor.replicas=5") == {f"{ACTOR}:spec.replicas": 5}
    assert changes("learner.replicas=0") == {f"{LEARNER}:spec.replicas": 0}


@pytest.mark.parametrize(
    ("values", "image"),
    [
        (["actor.image.tag=1.2"], "seedpod-actor:1.2"),
        (["actor.image.registry=r.example/x"], "r.example/x/seedpod-actor:0.1.0"),
        (["actor.image.repository=mine"], "mine:0.1.0"),
        (
            ["actor.image.tag=1.2", f"actor.image.digest=sha256:{'a' * 64}"],
            f"seedpod-actor@sha256:{'a' * 64}",
        ),
    ],
)
def test_the_image_of_a_component(values: list[str], image: str) -> None:
    # `helm test` is an actor too.
    assert changes(*values) == {
        f"{ACTOR}:{CONTAINER}.image": image,
        f"{TEST}:spec.containers.0.image": image,
    }


def test_one_registry_for_all_images_but_for_a_component_of_its_own() -> None:
    base = ("experiment:cartpole-r2d2",)
    changed = changes("global.imageRegistry=r.example/", "replay.image.registry=other", base=base)
    assert changed == {
        f"{LEARNER}:{CONTAINER}.image": "r.example/seedpod-learner:0.1.0",
        f"{ACTOR}:{CONTAINER}.image": "r.example/seedpod-actor:0.1.0",
        f"{REPLAY}:{CONTAINER}.image": "other/seedpod-replay:0.1.0",
        f"{TEST}:spec.containers.0.image": "r.example/seedpod-actor:0.1.0",
    }


def test_pull_secrets() -> None:
    assert changes("global.imagePullSecrets[0].name=s") == {
        f"{LEARNER}:{POD}.imagePullSecrets.0.name": "s",
        f"{ACTOR}:{POD}.imagePullSecrets.0.name": "s",
        f"{TEST}:spec.imagePullSecrets.0.name": "s",
    }


@pytest.mark.parametrize(
    ("value", "path", "expected"),
    [
        ("resources.requests.cpu=3", f"{CONTAINER}.resources.requests.cpu", 3),
        ("nodeSelector.pool=a", f"{POD}.nodeSelector.pool", "a"),
        ("tolerations[0].key=a", f"{POD}.tolerations.0.key", "a"),
        (
            "affinity.podAntiAffinity.a=b",
            f"{POD}.affinity.podAntiAffinity.a",
            "b",
        ),
        (
            "topologySpreadConstraints[0].topologyKey=zone",
            f"{POD}.topologySpreadConstraints.0.topologyKey",
            "zone",
        ),
        ("priorityClassName=high", f"{POD}.priorityClassName", "high"),
        ("terminationGracePeriodSeconds=9", f"{POD}.terminationGracePeriodSeconds", 9),
        ("podAnnotations.a=b", "spec.template.metadata.annotations.a", "b"),
        ("podLabels.a=b", "spec.template.metadata.labels.a", "b"),
        ("annotations.a=b", "metadata.annotations.a", "b"),
        ("labels.a=b", "metadata.labels.a", "b"),
        ("securityContext.readOnlyRootFilesystem=false", None, False),
        ("podSecurityContext.runAsUser=5", f"{POD}.securityContext.runAsUser", 5),
    ],
)
@pytest.mark.parametrize("component", ["learner", "replay"])
def test_the_block_of_a_component(
    component: str, value: str, path: str | None, expected: object
) -> None:
    path = path or f"{CONTAINER}.securityContext.readOnlyRootFilesystem"
    base = ("experiment:cartpole-r2d2",)
    assert changes(f"{component}.{value}", base=base) == {
        f"StatefulSet/run-seedpod-{component}:{path}": expected
    }


def test_environment_variables() -> None:
    assert changes("learner.env.A=1", "learner.extraEnv[0].name=B") == {
        f"{LEARNER}:{CONTAINER}.env.1.name": "A",
        f"{LEARNER}:{CONTAINER}.env.1.value": "1",
        f"{LEARNER}:{CONTAINER}.env.2.name": "B",
    }


def test_extra_volumes() -> None:
    changed = changes(
        *("learner.extraVolumes[0].name=v", "learner.extraVolumes[0].configMap.name=c"),
        *("learner.extraVolumeMounts[0].name=v", "learner.extraVolumeMounts[0].mountPath=/v"),
    )
    assert changed == {
        f"{LEARNER}:{CONTAINER}.volumeMounts.3.mountPath": "/v",
        f"{LEARNER}:{CONTAINER}.volumeMounts.3.name": "v",
        f"{LEARNER}:{POD}.volumes.2.configMap.name": "c",
        f"{LEARNER}:{POD}.volumes.2.name": "v",
    }


def test_probes_ask_for_different_services_at_a_number() -> None:
    objects = chart.render("experiment:cartpole-r2d2")
    for component, port, api in (
        ("learner", 50051, "seedpod.inference.v1.InferenceService"),
        ("replay", 50052, "seedpod.replay.v1.ReplayService"),
    ):
        c = chart.container(objects, component)
        for probe in ("startupProbe", "livenessProbe"):
            assert c[probe]["grpc"] == {"port": port, "service": "liveness"}
        assert c["readinessProbe"]["grpc"] == {"port": port, "service": api}
        assert {"name": "grpc", "containerPort": port} in c["ports"]
    assert not any(key.endswith("Probe") for key in chart.container(objects, "actor"))
    assert changes("learner.probes.readiness=null").keys() == {
        f"{LEARNER}:{CONTAINER}.readinessProbe.{key}"
        for key in ("grpc.port", "grpc.service", "periodSeconds", "timeoutSeconds")
    }


def test_service_accounts() -> None:
    account = "ServiceAccount/run-seedpod-learner:metadata.annotations.a"
    assert changes("learner.serviceAccount.annotations.a=b") == {account: "b"}
    changed = changes("learner.serviceAccount.create=false", "learner.serviceAccount.name=mine")
    assert changed.pop(f"{LEARNER}:{POD}.serviceAccountName") == "mine"
    assert {key.partition(":")[0] for key in changed} == {"ServiceAccount/run-seedpod-learner"}
    assert changes("learner.serviceAccount.automountToken=true") == {
        "ServiceAccount/run-seedpod-learner:automountServiceAccountToken": True,
        f"{LEARNER}:{POD}.automountServiceAccountToken": True,
    }


def test_disruption_budgets() -> None:
    changed = changes("actor.pdb.enabled=true", "actor.pdb.maxUnavailable=50%")
    assert {key.partition(":")[0] for key in changed} == {"PodDisruptionBudget/run-seedpod-actor"}
    spec = chart.find(
        chart.render("actor.pdb.enabled=true", "actor.pdb.minAvailable=0"), "PodDisruptionBudget"
    )["spec"]
    assert spec["minAvailable"] == 0
    assert "maxUnavailable" not in spec
    assert spec["selector"]["matchLabels"]["app.kubernetes.io/component"] == "actor"


def test_network_policies_let_in_only_the_callers() -> None:
    objects = chart.render("experiment:cartpole-r2d2")
    callers: dict[str, list[str]] = {}
    for component in ("learner", "actor", "replay"):
        spec = chart.find(objects, "NetworkPolicy", f"-{component}")["spec"]
        assert spec["policyTypes"] == ["Ingress"]
        assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
        *calls, metrics = spec["ingress"]
        assert metrics == {"ports": [{"port": "metrics", "protocol": "TCP"}]}
        callers[component] = []
        for call in calls:
            assert call["ports"] == [{"port": "grpc", "protocol": "TCP"}]
            for peer in call["from"]:
                labels = peer["podSelector"]["matchLabels"]
                assert labels["app.kubernetes.io/instance"] == "run"
                callers[component].append(labels["app.kubernetes.io/component"])
    assert callers == {"learner": ["actor", "test"], "actor": [], "replay": ["learner", "test"]}
    changed = changes("actor.networkPolicy.metricsFrom[0].ipBlock.cidr=10.0.0.0/8")
    policy = "NetworkPolicy/run-seedpod-actor:spec.ingress.0"
    assert changed == {f"{policy}.from.0.ipBlock.cidr": "10.0.0.0/8"}
    gone = changes("actor.networkPolicy.enabled=false")
    assert {key.partition(":")[0] for key in gone} == {"NetworkPolicy/run-seedpod-actor"}


# What restarts what.


def test_a_change_of_the_experiment_restarts_those_who_read_it() -> None:
    base = ("experiment:cartpole-r2d2",)
    for value, restarted in (
        ("learner.batch_size=16", {LEARNER}),
        ("learner.keepalive_seconds=7", {LEARNER, ACTOR}),
        ("actor.step_timeout_seconds=7", {ACTOR}),
        # Checkpoints name the environment.
        ("actor.environment_arguments.x=1", {LEARNER, ACTOR}),
        ("replay.max_batch_size=99", {REPLAY}),
        ("local.actors=3", set()),
    ):
        changed = changes(f"experiment.{value}", base=base)
        assert changed.pop(EXPERIMENT)
        assert changed.keys() == {f"{name}:{CHECKSUM}" for name in restarted}, value


def test_updates_cannot_wait_for_a_device_or_a_slot_that_the_old_pod_has() -> None:
    objects = chart.render("experiment:cartpole-r2d2")
    for component in ("learner", "replay"):
        spec = chart.workload(objects, component)["spec"]
        assert spec["updateStrategy"] == {"type": "RollingUpdate"}
        assert spec["podManagementPolicy"] == "Parallel"
    strategy = chart.workload(objects, "actor")["spec"]["strategy"]
    assert strategy["rollingUpdate"]["maxSurge"] == 0


# Storage and addresses.


def test_replay_comes_with_r2d2_only() -> None:
    assert not [key for key in _all_leaves() if "replay" in key]
    objects = chart.render("experiment:cartpole-r2d2", "replay.replicas=3")
    addresses = ",".join(
        f"run-seedpod-replay-{i}.run-seedpod-replay.ns.svc:50052" for i in range(3)
    )
    option = f"--set=learner.r2d2.replay_addresses=[{addresses}]"
    assert option in chart.container(objects, "learner")["args"]
    assert option in chart.container(objects, "test")["args"]
    service = chart.find(objects, "Service", "-replay")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert chart.workload(objects, "replay")["spec"]["serviceName"] == "run-seedpod-replay"


def test_actors_find_the_learner() -> None:
    objects = chart.render()
    option = "--set=actor.learner_address=run-seedpod-learner.ns.svc:50051"
    for component in ("actor", "test"):
        assert option in chart.container(objects, component)["args"]
    service = chart.find(objects, "Service", "-learner")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert "--name=$(POD_NAME)" in chart.container(objects, "actor")["args"]


def test_several_learners_know_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ("learner.replicas=3", "evaluator.enabled=true", "actor.replicas=24")
    objects = chart.render(*values, "preset:gke-gpu-l4")
    chart.validate(objects)
    assert chart.workload(objects, "learner")["spec"]["replicas"] == 3
    variables = {v["name"]: v for v in chart.container(objects, "learner")["env"]}
    # The kubelet writes the one into the other, which comes later.
    assert list(variables)[-2:] == ["POD_INDEX", "TF_CONFIG"]
    label = variables["POD_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert label == "metadata.labels['apps.kubernetes.io/pod-index']"
    hosts = [f"run-seedpod-learner-{i}.run-seedpod-learner.ns.svc" for i in range(3)]
    text = variables["TF_CONFIG"]["value"].replace("$(POD_INDEX)", "2")
    monkeypatch.setenv("TF_CONFIG", text)
    cluster = peers.from_environment()
    assert cluster == peers.Cluster(tuple(f"{host}:50053" for host in hosts), 2)

    # Actors take the one with the fewest environments; evaluations are the first one's.
    for component, expected in (("actor", hosts), ("evaluator", hosts[:1]), ("test", hosts[:1])):
        options = chart.container(objects, component)["args"]
        option = [o for o in options if o.startswith("--set=actor.learner_address=")][-1]
        assert option.partition("=")[2].partition("=")[2].split(",") == [
            f"{host}:50051" for host in expected
        ]
    _, among_learners, _ = chart.find(objects, "NetworkPolicy", "-learner")["spec"]["ingress"]
    (peer,) = among_learners["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "learner"
    assert "ports" not in among_learners
    # A learner alone has nobody to know.
    assert "TF_CONFIG" not in _all_leaves().values()


def test_a_tpu_s_host_is_alone_in_its_slice() -> None:
    container = chart.container(chart.render("learner.accelerator.type=tpu"), "learner")
    variables = {v["name"]: v.get("value") for v in container["env"]}
    assert variables.items() >= {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}.items()
    assert "--set=learner.devices.kind=tpu" in container["args"]


def test_an_evaluator_is_an_actor_with_another_role() -> None:
    assert not [key for key in _all_leaves() if "evaluator" in key]
    objects = chart.render("evaluator.enabled=true", "evaluator.environments=3", *TLS)
    actor, evaluator = (chart.container(objects, c) for c in ("actor", "evaluator"))
    assert evaluator["image"] == actor["image"]
    assert evaluator["args"][: len(actor["args"]) - 1] == actor["args"][:-1]
    assert evaluator["args"][len(actor["args"]) - 1 :] == [
        "--set=actor.role=evaluation",
        "--set=actor.workers=1",
        "--set=actor.groups=1",
        "--set=actor.environments_per_group=3",
        actor["args"][-1],  # of TLS
    ]
    assert chart.workload(objects, "evaluator")["spec"]["replicas"] == 1
    peers = chart.find(objects, "NetworkPolicy", "-learner")["spec"]["ingress"][0]["from"]
    names = [p["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for p in peers]
    assert names == ["actor", "evaluator", "test"]
    # Autoscaling is the actors' alone.
    scaled = chart.render("evaluator.enabled=true", "actor.autoscaling.hpa.enabled=true")
    assert "replicas" not in chart.workload(scaled, "actor")["spec"]
    assert chart.workload(scaled, "evaluator")["spec"]["replicas"] == 1


def test_volumes() -> None:
    objects = chart.render("experiment:cartpole-r2d2")
    for component, size in (("learner", "10Gi"), ("replay", "20Gi")):
        (claim,) = chart.workload(objects, component)["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["resources"]["requests"]["storage"] == size
        mounts = chart.container(objects, component)["volumeMounts"]
        assert {"name": "data", "mountPath": "/var/lib/seedpod"} in mounts
    assert (
        "--set=learner.checkpoint_directory=/var/lib/seedpod/cartpole-r2d2/checkpoints"
        in chart.container(objects, "learner")["args"]
    )
    assert (
        "--set=replay.persistence.directory=/var/lib/seedpod/cartpole-r2d2/replay"
        in chart.container(objects, "replay")["args"]
    )


def test_without_persistence_nothing_is_kept() -> None:
    objects = chart.render("experiment:cartpole-r2d2", "learner.persistence.enabled=false")
    spec = chart.workload(objects, "learner")["spec"]
    assert "volumeClaimTemplates" not in spec
    assert {"name": "data", "emptyDir": {}} in spec["template"]["spec"]["volumes"]
    objects = chart.render("experiment:cartpole-r2d2", "replay.persistence.enabled=false")
    options = chart.container(objects, "replay")["args"]
    assert not any("persistence.directory" in option for option in options)


def test_a_claim_that_exists_and_another_folder() -> None:
    objects = chart.render("learner.persistence.existingClaim=mine")
    spec = chart.workload(objects, "learner")["spec"]
    assert "volumeClaimTemplates" not in spec
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}
    assert claim in spec["template"]["spec"]["volumes"]
    assert changes("learner.checkpointDirectory=/bucket/a") == {
        f"{LEARNER}:{CONTAINER}.args.4": "--set=learner.checkpoint_directory=/bucket/a"
    }


# Autoscaling.


def test_the_autoscaler_owns_the_number_of_actors() -> None:
    for mode in ("hpa", "keda"):
        changed = changes(f"actor.autoscaling.{mode}.enabled=true")
        assert changed.pop(f"{ACTOR}:spec.replicas") is None
        kind = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[mode]
        assert {key.partition(":")[0] for key in changed} == {f"{kind}/run-seedpod-actor"}


def _hpa(*arguments: str) -> chart.Object:
    objects = chart.render("actor.autoscaling.hpa.enabled=true", *arguments)
    spec: chart.Object = chart.find(objects, "HorizontalPodAutoscaler")["spec"]
    return spec


def test_hpa_by_prometheus_adapter() -> None:
    spec = _hpa("actor.autoscaling.minReplicas=2", "actor.autoscaling.maxReplicas=30")
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 30)
    assert spec["scaleTargetRef"]["name"] == "run-seedpod-actor"
    (metric,) = spec["metrics"]
    assert metric["object"] == {
        "describedObject": {"apiVersion": "v1", "kind": "Pod", "name": "run-seedpod-learner-0"},
        "metric": {"name": "seedpod_actors_wanted"},
        # Pods = wanted / 1.
        "target": {"type": "AverageValue", "averageValue": "1"},
    }
    up, down = spec["behavior"]["scaleUp"], spec["behavior"]["scaleDown"]
    assert up["stabilizationWindowSeconds"] < down["stabilizationWindowSeconds"]
    # Twice as many in a minute; a tenth less.
    assert {"type": "Percent", "value": 100, "periodSeconds": 60} in up["policies"]
    assert down["policies"] == [{"type": "Percent", "value": 10, "periodSeconds": 60}]
    window = "actor.autoscaling.behavior.scaleDown.stabilizationWindowSeconds=60"
    assert _hpa(window)["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 60


def test_hpa_by_google_and_by_cpu() -> None:
    google = _hpa("actor.autoscaling.hpa.metric=gke", "monitoring.scrape=podMonitoring")
    assert google["metrics"][0]["external"]["metric"] == {
        "name": "prometheus.googleapis.com|seedpod_actors_wanted|gauge",
        "selector": {
            "matchLabels": {
                "resource.labels.namespace": "ns",
                "metric.labels.pod": "run-seedpod-learner-0",
            }
        },
    }
    cpu = _hpa(
        "actor.autoscaling.hpa.metric=cpu",
        "actor.autoscaling.hpa.targetCPUUtilizationPercentage=70",
    )
    target = {"type": "Utilization", "averageUtilization": 70}
    assert cpu["metrics"] == [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]


def test_keda() -> None:
    objects = chart.render(
        *("actor.autoscaling.keda.enabled=true", "actor.autoscaling.maxReplicas=7"),
        "actor.autoscaling.keda.serverAddress=http://p:9",
    )
    spec = chart.find(objects, "ScaledObject")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 7)
    (trigger,) = spec["triggers"]
    assert trigger["metricType"] == "AverageValue"
    assert trigger["metadata"] == {
        "serverAddress": "http://p:9",
        "query": 'max(seedpod_actors_wanted{namespace="ns", pod="run-seedpod-learner-0"})',
        "threshold": "1",
    }


# Accelerators.


def test_a_gpu_changes_the_learner_alone() -> None:
    assert changes("learner.accelerator.type=gpu") == {
        f"{LEARNER}:{CONTAINER}.args.8": "--set=learner.devices.kind=gpu",
        f"{LEARNER}:{CONTAINER}.args.9": "--set=learner.devices.count=1",
        f"{LEARNER}:{CONTAINER}.image": "seedpod-learner:0.1.0-gpu",
        f"{LEARNER}:{CONTAINER}.resources.limits.nvidia.com/gpu": 1,
        f"{LEARNER}:{CONTAINER}.resources.requests.nvidia.com/gpu": 1,
        f"{LEARNER}:{POD}.tolerations.0.effect": "NoSchedule",
        f"{LEARNER}:{POD}.tolerations.0.key": "nvidia.com/gpu",
        f"{LEARNER}:{POD}.tolerations.0.operator": "Exists",
    }


def test_own_selectors_and_tolerations_are_added_to_the_accelerators() -> None:
    objects = chart.render(
        *("preset:gke-gpu-l4", "learner.nodeSelector.zone=a", "learner.tolerations[0].key=mine")
    )
    pod = chart.pods(objects)["learner"]
    expected = {"cloud.google.com/gke-accelerator": "nvidia-l4", "zone": "a"}
    assert pod["nodeSelector"] == expected
    assert [t["key"] for t in pod["tolerations"]] == ["nvidia.com/gpu", "mine"]


# Names, the test, whatever else.


def test_names() -> None:
    def names(*arguments: str) -> set[str]:
        objects = chart.render(*arguments)
        return {
            o["metadata"]["name"] for o in objects if o["kind"] in ("StatefulSet", "Deployment")
        }

    assert names() == {"run-seedpod-learner", "run-seedpod-actor"}
    assert names("nameOverride=x") == {"run-x-learner", "run-x-actor"}
    assert names("fullnameOverride=y") == {"y-learner", "y-actor"}
    assert names("nameOverride=ru") == {"run-learner", "run-actor"}  # the release contains it
    long = "n" * 60
    assert all(len(name) <= 48 for name in names(f"fullnameOverride={long}"))


def test_helm_test_is_an_actor() -> None:
    pod = chart.find(chart.render("selftest.timeoutSeconds=7"), "Pod", "-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["restartPolicy"] == "Never"
    (c,) = pod["spec"]["containers"]
    assert c["command"] == ["python", "-m", "services.actor.selftest"]
    assert "--timeout-seconds=7" in c["args"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "test"


def test_extra_objects_are_installed_as_they_are() -> None:
    value = (
        '--set-json=extraObjects=[{"apiVersion":"v1","kind":"ConfigMap","metadata":'
        '{"name":"{{ .Release.Name }}-extra"},"data":{"a":"b"}},"{a: \\"{{ .Chart.Name }}\\"}"]'
    )
    before, after = chart.render(), chart.render(value)
    assert [o for o in after if o not in before] == [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "run-extra"},
            "data": {"a": "b"},
        },
        {"a": "seedpod"},
    ]


def test_notes_say_the_next_three_commands() -> None:
    def notes(*arguments: str) -> str:
        result = chart.helm(
            *("install", "run", str(chart.CHART), "--namespace=ns", "--dry-run=client"),
            *(f"--set={a}" for a in arguments),
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.split("\nNOTES:\n")[1]

    text = notes()
    for command in (
        "kubectl --namespace ns rollout status statefulset/run-seedpod-learner",
        "helm test run --namespace ns",
        "kubectl --namespace ns port-forward statefulset/run-seedpod-learner 9100",
        "kubectl --namespace ns scale deployment/run-seedpod-actor --replicas=4",
    ):
        assert command in text
    assert "scale deployment" not in notes("actor.autoscaling.hpa.enabled=true")
    assert "gone with the pod" in notes("learner.persistence.enabled=false")


TLS = ("tls.enabled=true", "tls.existingSecret=mine")
CERTIFICATE = {
    "certificate": "/etc/seedpod-tls/tls.crt",
    "key": "/etc/seedpod-tls/tls.key",
    "authority": "/etc/seedpod-tls/ca.crt",
}


def test_tls_from_a_secret() -> None:
    objects = chart.render("experiment:cartpole-r2d2", *TLS)
    for component, pod in chart.pods(objects).items():
        (container,) = pod["containers"]
        service = "actor" if component == "test" else component
        (argument,) = (a for a in container["args"] if ".tls=" in a)
        key, _, value = argument.removeprefix("--set=").partition("=")
        assert (key, yaml.safe_load(value)) == (f"{service}.tls", CERTIFICATE)
        mount = {"name": "tls", "mountPath": "/etc/seedpod-tls", "readOnly": True}
        assert mount in container["volumeMounts"]
        secret = {"secretName": "mine", "defaultMode": 0o440}
        assert {"name": "tls", "secret": secret} in pod["volumes"]
    assert not chart.find_all(objects, "Certificate")


def test_with_tls_a_process_in_the_container_probes() -> None:
    plain = chart.container(chart.render("experiment:cartpole-r2d2"), "replay")
    probed = chart.container(chart.render("experiment:cartpole-r2d2", *TLS), "replay")
    for kind, service in (
        ("startupProbe", "liveness"),
        ("livenessProbe", "liveness"),
        ("readinessProbe", "seedpod.replay.v1.ReplayService"),
    ):
        probe = dict(probed[kind])
        assert probe.pop("exec")["command"] == [
            *("python", "-m", "services.shared.probe", "--address=localhost:50052"),
            *(f"--service={service}", "--tls=/etc/seedpod-tls"),
            "--server-name=run-seedpod-replay-0.run-seedpod-replay.ns.svc",
        ]
        assert probe.pop("timeoutSeconds") == 10
        before = {k: v for k, v in plain[kind].items() if k not in ("grpc", "timeoutSeconds")}
        assert probe == before
    assert not any("Probe" in key for key in chart.container(chart.render(*TLS), "actor"))


def secrets_of(objects: list[chart.Object]) -> dict[str, str]:
    """The secret that each component has its certificate from."""
    return {
        component: next(v["secret"]["secretName"] for v in pod["volumes"] if v["name"] == "tls")
        for component, pod in chart.pods(objects).items()
    }


def clients_of(objects: list[chart.Object], component: str) -> dict[str, tuple[str, ...]]:
    """Who may call a component, by role."""
    (argument,) = (a for a in chart.container(objects, component)["args"] if ".tls=" in a)
    document = yaml.safe_load(argument.partition("=")[2].partition("=")[2])
    return {**config.TlsConfig(**document).model_dump()["clients"]}


def test_with_a_secret_for_each_component_names_decide_who_may_call_what() -> None:
    components = ("learner", "actor", "evaluator", "replay", "test")
    objects = chart.render(
        *("experiment:cartpole-r2d2", "tls.enabled=true", "evaluator.enabled=true"),
        *(f"tls.existingSecrets.{component}=our-{component}" for component in components),
    )
    assert secrets_of(objects) == {component: f"our-{component}" for component in components}
    assert not chart.find_all(objects, "Certificate")
    names = {
        component: (f"run-seedpod-{component}.ns.svc", f"*.run-seedpod-{component}.ns.svc")
        for component in components
    }
    assert {component: clients_of(objects, component) for component in components[:-1]} == {
        "learner": {"actor": names["actor"] + names["evaluator"] + names["test"]},
        "actor": {},
        "evaluator": {},
        "replay": {"learner": names["learner"] + names["test"]},
    }


def test_cert_manager_makes_a_certificate_for_each_component() -> None:
    arguments = (
        *("experiment:cartpole-r2d2", "tls.enabled=true", "tls.certManager.enabled=true"),
        *("tls.certManager.issuerRef.name=ours", "replay.replicas=2"),
    )
    objects = chart.render(*arguments)
    made = {o["spec"]["secretName"]: o["spec"] for o in chart.find_all(objects, "Certificate")}
    used = secrets_of(objects)
    assert used == {
        "learner": "run-seedpod-learner-tls",
        "actor": "run-seedpod-actor-tls",
        "replay": "run-seedpod-replay-tls",
        "test": "run-seedpod-test-tls",
    }
    assert set(made) == set(used.values())
    # The names by which the others call them.
    for component, address in (
        ("learner", "run-seedpod-learner.ns.svc"),
        ("replay", "*.run-seedpod-replay.ns.svc"),
    ):
        assert address in made[used[component]]["dnsNames"]
    # Only actors join, only learners call replay; `helm test` does both.
    for component, role in (("learner", "actor"), ("replay", "learner"), ("actor", "")):
        names = (
            tuple(
                name
                for caller in (role, "test")
                for name in made[f"run-seedpod-{caller}-tls"]["dnsNames"]
            )
            if role
            else ()
        )
        assert clients_of(objects, component) == ({role: names} if role else {})
    arguments_of = chart.container(objects, "learner")["args"]
    (shards,) = (a for a in arguments_of if "replay_addresses" in a)
    assert shards.endswith(
        "=[run-seedpod-replay-0.run-seedpod-replay.ns.svc:50052,"
        "run-seedpod-replay-1.run-seedpod-replay.ns.svc:50052]"
    )
    issuer = {"name": "ours", "kind": "Issuer", "group": "cert-manager.io"}
    assert all(spec["issuerRef"] == issuer for spec in made.values())


def test_tensorboard_is_a_second_container_that_reads_the_events() -> None:
    objects = chart.render("learner.tensorboard.enabled=true")
    learner, tensorboard = chart.pods(objects)["learner"]["containers"]
    assert tensorboard["image"] == learner["image"]
    (folder,) = (a for a in learner["args"] if "log_directory" in a)
    assert f"--logdir={folder.partition('log_directory=')[2]}" in tensorboard["args"]
    (data,) = (m for m in tensorboard["volumeMounts"] if m["name"] == "data")
    assert data["readOnly"] is True
    assert tensorboard["securityContext"] == learner["securityContext"]
    assert {"name": "tensorboard", "containerPort": 6006} in tensorboard["ports"]
