"""What is generated is fresh: after a change `make schema` and `make manifests` must be run."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tomllib

import pytest
import yaml

from services.shared import config
from tests.unit.chart import chart


def test_schema_and_experiments_follow_from_the_code(tmp_path: pathlib.Path) -> None:
    subprocess.run([sys.executable, "scripts/generate-chart", tmp_path], cwd=chart.ROOT, check=True)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 2 + len(config.presets())
    stale = [p for p in made if (chart.CHART / p).read_text() != (tmp_path / p).read_text()]
    assert not stale, "run `make schema`"
    assert config.presets() == chart.EXPERIMENTS


def test_manifests_are_rendered_from_the_chart(tmp_path: pathlib.Path) -> None:
    subprocess.run(["scripts/render-manifests", tmp_path], cwd=chart.ROOT, check=True)
    kept = chart.ROOT / "k8s" / "manifests"
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in kept.iterdir()}
    stale = [p.name for p in kept.iterdir() if p.read_text() != (tmp_path / p.name).read_text()]
    assert not stale, "run `make manifests`"
    for path in kept.iterdir():
        chart.validate([o for o in yaml.safe_load_all(path.read_text()) if o])


def test_the_chart_has_the_version_of_the_code() -> None:
    project = tomllib.loads((chart.ROOT / "pyproject.toml").read_text())["project"]
    metadata = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert metadata["version"] == metadata["appVersion"] == project["version"]


@pytest.mark.parametrize("name", config.presets())
def test_an_experiment_reaches_the_pods_unchanged(name: str, tmp_path: pathlib.Path) -> None:
    """Through Helm's merging and its way of writing numbers."""
    objects = chart.render(f"experiment:{name}", "actor.replicas=1")
    document = chart.find(objects, "ConfigMap", "-experiment")["data"]["experiment.yaml"]
    (tmp_path / "experiment.yaml").write_text(document)
    assert config.load(str(tmp_path / "experiment.yaml")) == config.load(name)


def test_numbers_survive_helm(tmp_path: pathlib.Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "experiment: {learner: {total_frames: 123456789012, optimizer: {epsilon: 1.0e-9,"
        " clip_norm: null}}, actor: {environment_arguments: {a: 2.5e-8, b: 'no', c: '1'}}}"
    )
    objects = chart.render(f"--values={values}")
    document = chart.find(objects, "ConfigMap", "-experiment")["data"]["experiment.yaml"]
    (tmp_path / "experiment.yaml").write_text(document)
    experiment = config.load(str(tmp_path / "experiment.yaml"))
    assert experiment.learner.total_frames == 123456789012
    assert experiment.learner.optimizer.epsilon == 1e-9
    assert experiment.learner.optimizer.clip_norm is None
    assert experiment.actor.environment_arguments == {"a": 2.5e-8, "b": "no", "c": "1"}


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("experiment:memory-r2d2", "replay.replicas=2"),
        ("learner.replicas=2", "evaluator.enabled=true", "learner.accelerator.type=gpu"),
    ],
)
def test_the_services_take_the_arguments(
    arguments: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    """Every --set of every pod is one that the configuration knows."""
    objects = chart.render(*arguments)
    document = tmp_path / "experiment.yaml"
    document.write_text(chart.find(objects, "ConfigMap", "-experiment")["data"]["experiment.yaml"])
    for component in chart.pods(objects):
        options = chart.container(objects, component)["args"]
        assert options[0] == "--experiment=/etc/seedpod/experiment.yaml"
        overrides = [o.removeprefix("--set=") for o in options if o.startswith("--set=")]
        assert overrides
        config.load(str(document), overrides)
        if component == "replay":
            config.load_replay(str(document), overrides)
