"""Dashboards and rules against a real Prometheus that scrapes real services of two runs."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from services.local.ports import free_port
from tests.e2e import runs
from tests.unit.chart import chart

# The run of each algorithm, as releases of one namespace.
RELEASES = {"cartpole": "vtrace", "memory-r2d2": "r2d2"}
OPTIONS = (
    "monitoring.scrape=podMonitor",
    "monitoring.rules.enabled=true",
    "monitoring.dashboards.enabled=true",
)


class Prometheus:
    """A server that scrapes these targets every second."""

    def __init__(self, folder: pathlib.Path, targets: list[dict[str, Any]]) -> None:
        folder.mkdir()
        self._url = f"http://127.0.0.1:{free_port()}"
        settings = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "pods", "static_configs": targets}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    chart.TOOLS / "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stderr=log,
                stdout=log,
            )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression; fails if it is not valid."""
        data = urllib.parse.urlencode({"query": expression}).encode()
        with urllib.request.urlopen(f"{self._url}/api/v1/query", data, timeout=10) as response:
            answer = json.load(response)
        assert answer["status"] == "success", (expression, answer)
        series: list[dict[str, Any]] = answer["data"]["result"]
        return series

    def is_filled(self, targets: int, scrapes: int) -> bool:
        with contextlib.suppress(OSError):
            counts = self.query("sum_over_time(up[1m])")
            return sum(float(s["value"][1]) >= scrapes for s in counts) == targets
        return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)


def _target(port: int | str, release: str, pod: str) -> dict[str, Any]:
    labels = {"namespace": "ns", "release": release, "pod": pod}
    return {"targets": [f"127.0.0.1:{port}"], "labels": labels}


def _port(log: pathlib.Path, pattern: str) -> str:
    (port,) = runs.wait_for(lambda: re.findall(pattern, log.read_text())[-1:], f"a port in {log}")
    return str(port)


def _is_training(process: subprocess.Popen[str]) -> bool:
    return runs.status(process).updates > 50


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    processes, targets = [], []
    for name, release in RELEASES.items():
        actor = free_port()
        directory = tmp_path_factory.mktemp(name)
        process = runs.start(
            *(directory, name, "--frames=100000000", f"--set=actor.metrics_port={actor}"),
            *("--set=replay.metrics_port=0", "--set=learner.checkpoint_interval_seconds=5"),
        )
        processes.append(process)
        folder = runs.folder(directory)
        targets.append(_target(actor, release, "actor"))
        if release == "r2d2":
            port = _port(folder / "replay.log", r"metrics on port (\d+)")
            targets.append(_target(port, release, "replay"))
        port = _port(folder / "learner.log", r"metrics on http://127.0.0.1:(\d+)")
        targets.append(_target(port, release, "learner"))
        # One after the other: TensorFlow's start takes both cores.
        runs.wait_for(functools.partial(_is_training, process), "updates")
    server = Prometheus(tmp_path_factory.mktemp("prometheus") / "server", targets)
    try:
        runs.wait_for(lambda: server.is_filled(len(targets), scrapes=8), "scrapes")
        yield server
    finally:
        server.close()
        for process in processes:
            process.terminate()
            runs.finish(process)


def _dashboards() -> dict[str, dict[str, Any]]:
    maps = chart.find_all(chart.render(*OPTIONS), "ConfigMap")
    found = {}
    for entry in maps:
        for name, text in entry["data"].items():
            if name.endswith(".json"):
                found[name] = json.loads(text)
    return found


def _fill(expression: str, release: str) -> str:
    """What Grafana makes of an expression's variables."""
    values = {"namespace": "ns", "release": release, "learner_price": "2.5", "actor_price": "0.1"}
    filled = re.sub(r"\$(\w+)", lambda match: values[match[1]], expression)
    assert "$" not in filled
    return filled


@pytest.mark.parametrize("name", _dashboards())
def test_every_panel_shows_something(name: str, prometheus: Prometheus) -> None:
    for panel in _dashboards()[name]["panels"]:
        for target in panel["targets"]:
            series = [
                entry
                for release in RELEASES.values()
                for entry in prometheus.query(_fill(target["expr"], release))
            ]
            assert series, f"{panel['title']}: {target['expr']}"
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert all(label in entry["metric"] for entry in series), target


@pytest.mark.parametrize("name", _dashboards())
def test_every_variable_has_values(name: str, prometheus: Prometheus) -> None:
    for variable in _dashboards()[name]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        assert match is not None
        series = prometheus.query(_fill(match[1], "vtrace"))
        assert {entry["metric"][match[2]] for entry in series} >= (
            {"ns"} if match[2] == "namespace" else set(RELEASES.values())
        )


def test_every_rule_is_valid_and_its_metrics_are_there(prometheus: Prometheus) -> None:
    rules = [
        rule
        for group in chart.find(chart.render(*OPTIONS), "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
    ]
    assert len(rules) >= 12
    for rule in rules:
        for release in RELEASES.values():
            series = prometheus.query(rule["expr"].replace('release="run"', f'release="{release}"'))
            # The learners train, their actors act: no alert has a reason.
            assert bool(series) == ("record" in rule), (rule, series)
        for metric in re.findall(r"\bseedpod_\w+", rule["expr"]):
            assert prometheus.query(metric), metric


def test_what_the_autoscalers_ask_for_is_there(prometheus: Prometheus) -> None:
    trigger = chart.find(chart.render("actor.autoscaling.keda.enabled=true"), "ScaledObject")
    query = trigger["spec"]["triggers"][0]["metadata"]["query"]
    (series,) = prometheus.query(query.replace("run-seedpod-learner-0", "learner"))
    assert float(series["value"][1]) >= 1
