"""The presets, held against the table of what GKE has."""

from __future__ import annotations

from typing import Any

import pytest

from services.shared import config
from tests.unit.chart import chart

# From GKE's documentation: single-host TPU slices by accelerator, chips of each topology.
TPUS = {
    "tpu-v4-podslice": {"2x2x1": 4},
    "tpu-v5-lite-podslice": {"1x1": 1, "2x2": 4, "2x4": 8},
    "tpu-v5p-slice": {"2x2x1": 4},
    "tpu-v6e-slice": {"1x1": 1, "2x2": 4, "2x4": 8},
}
TPU_TOLERATION = {
    "key": "google.com/tpu",
    "operator": "Equal",
    "value": "present",
    "effect": "NoSchedule",
}
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
SPOT = {"cloud.google.com/gke-spot": "true"}
SPOT_TOLERATION = {
    "key": "cloud.google.com/gke-spot",
    "operator": "Equal",
    "value": "true",
    "effect": "NoSchedule",
}
# Preset: node selector, toleration and device of the learner.
LEARNERS: dict[str, tuple[dict[str, str], Any, dict[str, int]]] = {
    "cpu-small": ({}, None, {}),
    "kind": ({}, None, {}),
    "gke-autopilot": ({}, None, {}),
    "gke-gpu-l4": (
        {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        GPU_TOLERATION,
        {"nvidia.com/gpu": 1},
    ),
    "gke-gpu-a100": (
        {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"},
        GPU_TOLERATION,
        {"nvidia.com/gpu": 1},
    ),
    "gke-tpu-v5e": (
        {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
            "cloud.google.com/gke-tpu-topology": "2x4",
        },
        TPU_TOLERATION,
        {"google.com/tpu": 8},
    ),
    "gke-tpu-v6e": (
        {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
            "cloud.google.com/gke-tpu-topology": "2x4",
        },
        TPU_TOLERATION,
        {"google.com/tpu": 8},
    ),
}


def _devices(objects: list[chart.Object], component: str) -> dict[str, Any]:
    limits = chart.container(objects, component)["resources"]["limits"]
    return {name: value for name, value in limits.items() if "/" in name}


def test_all_presets_are_in_the_table() -> None:
    assert sorted(LEARNERS) == chart.PRESETS


@pytest.mark.parametrize("preset", LEARNERS)
def test_the_learner_finds_its_node(preset: str) -> None:
    objects = chart.render(f"preset:{preset}")
    selector, toleration, devices = LEARNERS[preset]
    pod = chart.pods(objects)["learner"]
    assert pod.get("nodeSelector", {}) == selector
    assert pod.get("tolerations", []) == ([toleration] if toleration else [])
    assert _devices(objects, "learner") == devices
    assert _devices(objects, "actor") == {}


@pytest.mark.parametrize("preset", [p for p in LEARNERS if p.startswith("gke")])
def test_actors_run_on_spot_nodes(preset: str) -> None:
    pod = chart.pods(chart.render(f"preset:{preset}"))["actor"]
    assert pod["nodeSelector"] == SPOT
    assert pod["tolerations"] == [SPOT_TOLERATION]
    assert pod["terminationGracePeriodSeconds"] <= 15


@pytest.mark.parametrize(
    ("accelerator", "topology"), [(a, t) for a, topologies in TPUS.items() for t in topologies]
)
def test_every_single_host_tpu_slice(accelerator: str, topology: str) -> None:
    chips = TPUS[accelerator][topology]
    tpu = "learner.accelerator.tpu"
    objects = chart.render(
        *("learner.accelerator.type=tpu", f"{tpu}.accelerator={accelerator}"),
        *(f"{tpu}.topology={topology}", f"{tpu}.chips={chips}"),
    )
    chart.validate(objects)
    pod = chart.pods(objects)["learner"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    assert pod["tolerations"] == [TPU_TOLERATION]
    assert _devices(objects, "learner") == {"google.com/tpu": chips}
    message = chart.refuse(
        *("learner.accelerator.type=tpu", f"{tpu}.accelerator={accelerator}"),
        *(f"{tpu}.topology={topology}", f"{tpu}.chips={chips + 1}"),
    )
    assert f"chips is {chips + 1}, a topology of {topology} has {chips}" in message


def test_autopilot_limits_equal_requests() -> None:
    objects = chart.render("preset:gke-autopilot", "experiment:cartpole-r2d2", "actor.replicas=1")
    for component in ("learner", "actor", "replay"):
        resources = chart.container(objects, component)["resources"]
        assert resources["requests"] == resources["limits"]


_BYTES = {"Mi": 1 << 20, "Gi": 1 << 30}


@pytest.mark.parametrize("preset", ["", *LEARNERS])
def test_replay_has_memory_for_its_table(preset: str) -> None:
    arguments = [f"preset:{preset}"] if preset else []
    objects = chart.render(*arguments, "experiment:cartpole-r2d2", "actor.replicas=1")
    limit = chart.container(objects, "replay")["resources"]["limits"]["memory"]
    table = config.Experiment.model_validate(chart.experiment(objects)).replay.tables["sequences"]
    assert table.max_bytes <= 0.75 * int(limit[:-2]) * _BYTES[limit[-2:]]


@pytest.mark.parametrize("preset", LEARNERS)
def test_the_experiment_stays_what_it_is(preset: str) -> None:
    """A preset adds what the hardware needs; the experiment's own values win."""
    objects = chart.render(f"preset:{preset}", "experiment:football-11v11", "actor.replicas=4")
    rendered = config.Experiment.model_validate(chart.experiment(objects))
    alone = config.load("football-11v11")
    assert rendered.actor == alone.actor
    assert rendered.learner.vtrace == alone.learner.vtrace
    assert rendered.learner.optimizer == alone.learner.optimizer
    assert rendered.learner.total_frames == 500_000_000
    assert rendered.learner.max_slots == 400
