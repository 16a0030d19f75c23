"""README.md and docs/ name only what exists: metrics, settings, targets, options, files, code."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import types
import typing
import urllib.request
from collections.abc import Iterator

import numpy as np
import prometheus_client
import pydantic
import pytest
import yaml

from services.actor.metrics import ActorMetrics
from services.learner.accounts import StepAccount
from services.learner.evaluation import Episode
from services.learner.reports import Reports
from services.learner.statistics import Statistics
from services.learner.step_store import StepStore, StoreLayout
from services.learner.unrolls import UnrollAssembler
from services.local import cli
from services.replay import status
from services.replay.host import TableHost
from services.replay.recovery import Progress, Recovered
from services.shared import config
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.replay import Field, ReplayClient, SequenceLayout
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "k8s/README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pages = pytest.mark.parametrize("page", TEXTS)


def _blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(TEXTS[page]) if kind == language]


def _prose(page: str) -> str:
    return FENCE.sub("", TEXTS[page])


def _spans(page: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", _prose(page))


def _commands(page: str) -> list[str]:
    """Lines of code blocks without a language, and what stands in backticks."""
    lines = [line for block in _blocks(page, "") for line in block.splitlines()]
    return lines + _spans(page)


def test_there_are_pages_and_they_name_things() -> None:
    assert len(PAGES) >= 4
    assert sum(len(_spans(page)) for page in TEXTS) > 100


# Metrics.


class _Service:
    """What a collector asks a learner for."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.statistics = Statistics(2, registry, np.zeros(2, np.uint8), np.arange(2))
        told = Episode(0, 1.0, 5, "level", {"value": 1.0})
        self.statistics.evaluation_episodes.extend([told, told])
        self.live_actors = 1
        self.training_slots = 1
        self.missing_learners = 0
        self.traffic = (0, 0)
        self.queued_unrolls = 0
        self.checkpoints = types.SimpleNamespace(saved_at=0.0, failures=0)
        spec = EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (1,)),), DiscreteActionSpec((2,)))
        self.store = StepStore.create(StoreLayout(spec, 2, 4, 2, 1))
        self.training = types.SimpleNamespace(
            sender=types.SimpleNamespace(sent=0, dropped=0),
            client=ReplayClient(["localhost:1"], SequenceLayout((Field("x", "float32"),))),
        )
        self.assembler = UnrollAssembler(
            self.store, (), unroll_length=1, unrolls_per_slot=1, roles=np.zeros(2, np.uint8)
        )

    def steps(self) -> StepAccount:
        return StepAccount(0, 0, 0, 0)

    def status(self) -> inference_pb2.GetStatusResponse:
        cpu = inference_pb2.CpuSeconds(environment=1)
        return inference_pb2.GetStatusResponse(cpu_seconds=cpu)


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """Names of all metrics and samples of a learner, an actor and a replay service."""
    reports = Reports(config.LearnerConfig(metrics_port=None))
    reports.serve_metrics(_Service(reports.registry))  # type: ignore[arg-type]
    texts = [prometheus_client.generate_latest(reports.registry).decode()]
    actor = ActorMetrics(0, "127.0.0.1")
    try:
        texts.append(_read_metrics(actor.port))
    finally:
        actor.close()
    settings = config.ReplayConfig(metrics_port=0)
    host = TableHost("t", config.TableConfig(), config.PersistenceConfig(), 0, 1)
    host.recovered(Recovered())
    texts.append(
        _read_metrics(status.serve_metrics(settings, {"t": host}, Progress(), lambda: True))
    )
    names = set(re.findall(r"^(?:# (?:HELP|TYPE) )?(seedpod_\w+)", "\n".join(texts), re.MULTILINE))
    assert {"seedpod_frames_per_second", "seedpod_actor_workers", "seedpod_replay_items"} <= names
    return names


def _read_metrics(port: int | None) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


@pages
def test_metrics_exist(page: str, metrics: set[str]) -> None:
    named = set(re.findall(r"\bseedpod_[a-z0-9_]+", TEXTS[page]))
    assert named <= metrics


# Settings.


def _models(annotation: object) -> Iterator[type[pydantic.BaseModel]]:
    """The models among an annotation's alternatives."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)


def _exists(keys: list[str], model: type[pydantic.BaseModel]) -> bool:
    field = model.model_fields.get(keys[0])
    if field is None:
        return False
    if len(keys) == 1:
        return True
    if typing.get_origin(field.annotation) is dict:  # free: arguments of one's own code
        return True
    return any(_exists(keys[1:], child) for child in _models(field.annotation))


@pages
def test_settings_exist(page: str) -> None:
    sections = "actor|learner|replay|local|experiment|global|monitoring|selftest"
    named = set(re.findall(rf"\b(?<![./-])(?:{sections})(?:\.\w+)+", _code(page)))
    names = {name for name in named if not name.endswith((".log", ".py", ".yaml"))}
    unknown = [name for name in names if not (_is_setting(name) or _is_chart_value(name))]
    assert not unknown


def _is_setting(name: str) -> bool:
    return _exists(name.removeprefix("experiment.").split("."), config.Experiment)


def _is_chart_value(name: str) -> bool:
    node = yaml.safe_load((ROOT / "helm/seedpod/values.yaml").read_text())
    for key in name.split("."):
        if not isinstance(node, dict) or key not in node:
            return False
        node = node[key]
    return True


def _code(page: str) -> str:
    return "\n".join(_commands(page))


def test_the_readme_names_settings() -> None:
    assert "learner.metrics_port" in _code("README.md")
    assert not _exists(["learner", "no_such_key"], config.Experiment)
    assert _is_chart_value("actor.autoscaling.hpa.enabled")
    assert not _is_chart_value("actor.autoscaling.hpa.no_such_key")
    assert _exists(["learner", "vtrace", "entropy", "cost", "initial"], config.Experiment)


@pages
def test_overrides_are_valid(page: str) -> None:
    # Those of helm are tested with the chart.
    code = "\n".join(line for line in _commands(page) if not line.startswith("helm "))
    found = re.findall(r"--set (?:'([^']+)'|(\S+=\S+))", code)
    for quoted, plain in found:
        config.load("cartpole", [quoted or plain])


def test_the_presets_are_listed() -> None:
    table = _prose("README.md").split("| preset |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == config.presets()


def test_an_example_experiment_is_valid() -> None:
    paths = sorted((ROOT / "examples").glob("*.yaml"))
    assert paths
    for path in paths:
        assert config.load(str(path)).name == path.stem


# Commands.


@pages
def test_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {m for line in _commands(page) for m in re.findall(r"^make ([a-z][a-z-]*)", line)}
    assert named <= targets


def _help(subcommand: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit):
        cli.main([subcommand, "--help"])
    return output.getvalue()


@pages
def test_options_of_the_command_exist(page: str) -> None:
    for line in _commands(page):
        command = re.search(r"^(?:\S*/)?seedpod (\w+)( .*|)$", line)
        if command is None:
            continue
        text = _help(command[1])
        for option in re.findall(r"(?<!\S)(--[a-z-]+)", command[2]):
            assert option in text, line


# Files and code.


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pages
def test_links_resolve(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path.read_text(encoding="utf-8")), target


@pages
def test_named_files_and_modules_exist(page: str) -> None:
    for span in _spans(page):
        if re.fullmatch(r"(services|tests|examples|scripts|protos|docs|helm|k8s)/[\w./-]+", span):
            assert (ROOT / span).exists(), span
        for module in re.findall(r"\b(?:python -m |)((?:services|tests|examples)(?:\.\w+)+)", span):
            assert _is_module(module), span


def _is_module(name: str) -> bool:
    """A module, or a name inside of one."""
    parts = name.split(".")
    for count in (len(parts), len(parts) - 1):
        path = ROOT.joinpath(*parts[:count])
        if path.is_dir() or path.with_suffix(".py").is_file():
            return True
    return False


@pages
def test_python_is_an_example_or_runs(page: str) -> None:
    examples = {path.read_text() for path in (ROOT / "examples").glob("*.py")}
    for block in _blocks(page, "python"):
        if block in examples:
            continue
        module = types.ModuleType("block")
        exec(compile(block, page, "exec"), module.__dict__)


@pages
def test_yaml_is_valid(page: str) -> None:
    for block in _blocks(page, "yaml"):
        yaml.safe_load(block)
