"""What README.md, docs/ and k8s/ say about the chart is so."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess

import pytest
import yaml

from tests.unit.chart import chart

PAGES = ["README.md", "docs/operations.md", "k8s/README.md"]
KUBECTL = chart.HELM.with_name("kubectl")


def _commands() -> list[str]:
    """Lines of code blocks without a language, and what stands in backticks."""
    found = []
    for page in PAGES:
        text = (chart.ROOT / page).read_text()
        for block in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            found += block.splitlines()
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        found += re.findall(r"`([^`\n]+)`", text)
    return found


def _starting_with(*words: str) -> list[str]:
    prefix = " ".join(words) + " "
    return [command for command in dict.fromkeys(_commands()) if command.startswith(prefix)]


INSTALLS = [c for c in _starting_with("helm", "install") if "helm/seedpod" in c]


@pytest.mark.parametrize("command", INSTALLS)
def test_the_chart_takes_the_values_of_an_installation(command: str) -> None:
    _, _, release, source, *options = shlex.split(command)
    files = [str(chart.ROOT / o) if o.endswith(".yaml") else o for o in options]
    result = chart.helm("template", release, str(chart.ROOT / source), *files)
    assert result.returncode == 0, result.stderr


def test_there_are_installations_for_kind_and_gke() -> None:
    assert any("presets/kind.yaml" in command for command in INSTALLS)
    assert any("presets/gke-" in command for command in INSTALLS)


@functools.cache
def _help(*command: str) -> str:
    assert KUBECTL.exists(), f"{KUBECTL} is missing: run `make tools`"
    options = subprocess.run([KUBECTL, "options"], capture_output=True, text=True).stdout
    result = subprocess.run([KUBECTL, *command, "--help"], capture_output=True, text=True)
    assert result.returncode == 0, f"kubectl has no {command}"
    return options + result.stdout


def _notes() -> list[str]:
    options = ("--namespace=seedpod", "--dry-run=client")
    text = chart.helm("install", "seedpod", str(chart.CHART), *options).stdout
    return re.findall(r"kubectl [^&;|]+", text.split("\nNOTES:\n")[1])


@pytest.mark.parametrize("command", [*_starting_with("kubectl"), *_notes()])
def test_kubectl_takes_the_command_and_its_objects_are_the_charts(command: str) -> None:
    words = [w for w in shlex.split(command)[1:] if w != "--namespace"]
    (verb, *arguments) = words[1:] if words[0] == "seedpod" else words
    text = _help(verb, arguments[0]) if verb == "rollout" else _help(verb)
    for option in (a.partition("=")[0] for a in arguments if a.startswith("-")):
        assert re.search(rf"(^|[\s,]){option}[=, :]", text), option
    result = chart.helm("template", "seedpod", str(chart.CHART), "--namespace=seedpod")
    objects = [o for o in yaml.safe_load_all(result.stdout) if o]
    names = {f"{o['kind'].lower()}/{o['metadata']['name']}" for o in objects}
    for name in re.findall(r"\b(?:statefulset|deployment)/[\w-]+", command):
        assert name in names
    for pod in re.findall(r"\bseedpod-\w+-0\b", command):
        assert f"statefulset/{pod.removesuffix('-0')}" in names


def _table(page: str, title: str) -> list[str]:
    text = (chart.ROOT / page).read_text().split(f"| {title} |")[1].split("\n\n")[0]
    return re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)


def test_presets_and_alerts_are_listed() -> None:
    assert sorted(_table("docs/operations.md", "hardware preset")) == chart.PRESETS
    rules = chart.find(chart.render("monitoring.rules.enabled=true"), "PrometheusRule")["spec"]
    alerts = [r["alert"] for group in rules["groups"] for r in group["rules"] if "alert" in r]
    assert _table("docs/operations.md", "alert") == alerts
    pools = _table("k8s/README.md", "preset")
    assert sorted(pools) == [p for p in chart.PRESETS if re.match("gke-(gpu|tpu)", p)]


def test_the_adapter_serves_what_the_autoscaler_asks_for() -> None:
    adapter = yaml.safe_load((chart.ROOT / "k8s/prometheus-adapter.yaml").read_text())
    (rule,) = adapter["rules"]["custom"]
    objects = chart.render("actor.autoscaling.hpa.enabled=true")
    (metric,) = chart.find(objects, "HorizontalPodAutoscaler")["spec"]["metrics"]
    name = metric["object"]["metric"]["name"]
    assert rule["name"] == {"matches": f"^{name}$", "as": name}
    assert rule["seriesQuery"].startswith(f"{name}{{")
    resource = metric["object"]["describedObject"]["kind"].lower()
    assert rule["resources"]["overrides"][resource] == {"resource": resource}


def test_the_sidecar_finds_the_dashboards() -> None:
    stack = yaml.safe_load((chart.ROOT / "k8s/kube-prometheus-stack.yaml").read_text())
    sidecar = stack["grafana"]["sidecar"]["dashboards"]
    objects = chart.render("monitoring.dashboards.enabled=true")
    labels = chart.find(objects, "ConfigMap", "-dashboard-fleet")["metadata"]["labels"]
    assert labels[sidecar["label"]] == sidecar["labelValue"]


def test_the_storage_class_is_valid_and_the_one_of_the_preset() -> None:
    storage = yaml.safe_load((chart.ROOT / "k8s/hyperdisk.yaml").read_text())
    chart.validate([storage])
    claim = chart.workload(chart.render("preset:gke-tpu-v6e"), "learner")["spec"][
        "volumeClaimTemplates"
    ][0]
    assert claim["spec"]["storageClassName"] == storage["metadata"]["name"]
