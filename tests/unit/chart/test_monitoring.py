"""Monitors, rules and dashboards as they are rendered; tests/e2e/test_monitoring.py runs them."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.unit.chart import chart

RULES = "monitoring.rules.enabled=true"
ALERTS = pathlib.Path(__file__).with_name("alerts.yaml")


def _promtool(*arguments: str, folder: pathlib.Path) -> str:
    result = subprocess.run(
        [chart.TOOLS / "promtool", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _rules(*arguments: str) -> dict[str, Any]:
    spec: dict[str, Any] = chart.find(chart.render(RULES, *arguments), "PrometheusRule")["spec"]
    return spec


def _alerts() -> set[str]:
    rules = [rule for group in _rules()["groups"] for rule in group["rules"]]
    return {rule["alert"] for rule in rules if "alert" in rule}


def test_alerts_fire_when_they_should_and_only_then(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(_rules()))
    (tmp_path / "tests.yaml").write_text(ALERTS.read_text())
    _promtool("check", "rules", "rules.yaml", folder=tmp_path)
    _promtool("test", "rules", "tests.yaml", folder=tmp_path)


def test_every_alert_is_tested_in_both_directions() -> None:
    tests = [
        (entry["alertname"], bool(entry["exp_alerts"]))
        for test in yaml.safe_load(ALERTS.read_text())["tests"]
        for entry in test["alert_rule_test"]
    ]
    for fires in (False, True):
        assert {name for name, fired in tests if fired is fires} == _alerts()


def test_alerts_follow_the_values() -> None:
    def alert(name: str, *values: str) -> dict[str, Any]:
        rules = _rules(*values)["groups"][1]["rules"]
        (found,) = (rule for rule in rules if rule["alert"] == name)
        result: dict[str, Any] = found
        return result

    rules = "monitoring.rules"
    stalled = alert("SeedpodLearnerStalled", f"{rules}.stalledAfter=3h")
    assert "[3h]" in stalled["expr"]
    assert alert("SeedpodNoCheckpoint", f"{rules}.maxCheckpointAgeSeconds=60")["expr"].endswith(
        "> 60"
    )
    assert (
        "> 3 * seedpod_policy_lag_bound"
        in (alert("SeedpodPolicyLagOverBound", f"{rules}.policyLagFactor=3")["expr"])
    )
    assert alert("SeedpodActorsFailing", f"{rules}.maxEnvironmentRestarts=5")["expr"].endswith(
        "> 5"
    )
    labels = alert("SeedpodNoActors", f"{rules}.alertLabels.severity=page")["labels"]
    assert labels == {"severity": "page"}


def test_google_has_rules_of_its_own() -> None:
    objects = chart.render(RULES, "monitoring.scrape=podMonitoring")
    assert chart.find(objects, "Rules")["apiVersion"] == "monitoring.googleapis.com/v1"
    assert chart.find(objects, "Rules")["spec"] == _rules()


@pytest.mark.parametrize(
    ("scrape", "kind"),
    [
        ("podMonitor", "PodMonitor"),
        ("serviceMonitor", "ServiceMonitor"),
        ("podMonitoring", "PodMonitoring"),
    ],
)
def test_every_component_is_scraped(scrape: str, kind: str) -> None:
    objects = chart.render(
        *("experiment:cartpole-r2d2", f"monitoring.scrape={scrape}"),
        *("monitoring.interval=30s", "monitoring.labels.team=rl"),
    )
    monitor = chart.find(objects, kind)
    assert monitor["metadata"]["labels"]["team"] == "rl"
    selector = monitor["spec"]["selector"]
    (expression,) = selector["matchExpressions"]
    assert expression["values"] == ["learner", "actor", "replay"]
    scraped = objects if scrape == "serviceMonitor" else []
    targets = [
        *(o["metadata"]["labels"] for o in scraped if o["kind"] == "Service"),
        *(
            o["spec"]["template"]["metadata"]["labels"]
            for o in objects
            if scrape != "serviceMonitor" and o["kind"] in ("Deployment", "StatefulSet")
        ),
    ]
    assert len(targets) == 3
    assert all(selector["matchLabels"].items() <= labels.items() for labels in targets)
    (endpoint,) = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["interval"]) == ("metrics", "30s")
    # The label that rules and dashboards select by.
    assert '"release"' in json.dumps(monitor["spec"])


def _dashboards(*arguments: str) -> dict[str, dict[str, Any]]:
    objects = chart.render("monitoring.dashboards.enabled=true", *arguments)
    found = {}
    for entry in chart.find_all(objects, "ConfigMap"):
        if "-dashboard-" in entry["metadata"]["name"]:
            assert entry["metadata"]["labels"]["grafana_dashboard"] == "1"
            ((name, text),) = entry["data"].items()
            found[name] = json.loads(text)
    return found


def test_dashboards(tmp_path: pathlib.Path) -> None:
    dashboards = _dashboards()
    assert sorted(dashboards) == [
        f"seedpod-{name}.json" for name in ("fleet", "learning", "replay", "throughput")
    ]
    expressions = []
    for name, dashboard in dashboards.items():
        assert f"{dashboard['uid']}.json" == name
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        places = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            places.add((place["x"], place["y"]))
            assert panel["title"]
            assert panel["description"]
            for target in (panel, *panel["targets"]):
                assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            for target in panel["targets"]:
                assert 'namespace="$namespace", release="$release"' in target["expr"]
                assert "SELECTOR" not in target["expr"]
                assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
                expressions.append(re.sub(r"\$\w+", "1", target["expr"]))
        assert len(places) == len(dashboard["panels"])
    rules = [{"record": f"panel_{i}", "expr": e} for i, e in enumerate(expressions)]
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]})
    )
    assert f"{len(rules)} rules found" in _promtool("check", "rules", "rules.yaml", folder=tmp_path)


def test_prices_and_labels_of_dashboards() -> None:
    prefix = "monitoring.dashboards"
    dashboards = _dashboards(
        f"--set-json={prefix}.learnerPricePerHour=2.5", f"{prefix}.actorPricePerHour=1"
    )
    variables = {v["name"]: v for v in dashboards["seedpod-throughput.json"]["templating"]["list"]}
    assert variables["learner_price"]["query"] == "2.5"
    assert variables["actor_price"]["query"] == "1"
    objects = chart.render(
        *(f"{prefix}.enabled=true", f"{prefix}.labels.team=rl", f"{prefix}.annotations.folder=RL")
    )
    metadata = chart.find(objects, "ConfigMap", "-dashboard-fleet")["metadata"]
    assert metadata["labels"]["team"] == "rl"
    assert metadata["annotations"] == {"folder": "RL"}
