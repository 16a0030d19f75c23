from __future__ import annotations

import pathlib

import pytest

from services.shared import config


def _write(directory: pathlib.Path, text: str) -> str:
    path = directory / "experiment.yaml"
    path.write_text(text)
    return str(path)


MINIMAL = "actor: {environment: CartPole-v1}\n"


def test_overrides_are_yaml(tmp_path: pathlib.Path) -> None:
    source = _write(tmp_path, MINIMAL)
    experiment = config.load(
        source,
        ["learner.batch_size=64", "actor.environment_arguments.x=[1, a]", "local.actors=3"],
    )
    assert experiment.learner.batch_size == 64
    assert experiment.actor.environment_arguments == {"x": [1, "a"]}
    assert experiment.local.actors == 3


def test_dump_is_read_back_equal(tmp_path: pathlib.Path) -> None:
    experiment = config.load(_write(tmp_path, MINIMAL), ["learner.vtrace.reward_clip=1"])
    assert config.load(_write(tmp_path, config.dump(experiment))) == experiment


@pytest.mark.parametrize("name", config.presets())
def test_presets_are_valid(name: str) -> None:
    assert config.load(name).name == name


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (MINIMAL, ["learner.batchsize=64"], r"learner.batchsize: Extra inputs.*given: 64"),
        (MINIMAL, ["learner.batch_size=0"], r"learner.batch_size: .*greater than.*given: 0"),
        (MINIMAL, ["learner.batch_size"], "must look like"),
        (MINIMAL, ["actor.environment.x=1"], "environment is 'CartPole-v1', not a mapping"),
        (MINIMAL, ["version=2"], "schema version is 2, this seedpod reads 1"),
        (MINIMAL, ["learner.seed=[1"], "value is not YAML"),
        ("learner: {}\n", [], "actor: Field required"),
        ("[1, 2]\n", [], "is a list, must be a mapping"),
        ("a: [\n", [], "not YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", [], "not YAML"),
    ],
)
def test_invalid_experiments_are_refused(
    tmp_path: pathlib.Path, text: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(config.ConfigError, match=message):
        config.load(_write(tmp_path, text), overrides)


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(config.ConfigError, match=r"'footbal' is neither .*'football'"):
        config.load("footbal")


def test_missing_file_is_refused() -> None:
    with pytest.raises(config.ConfigError, match=r"nowhere\.yaml: cannot be read"):
        config.load("nowhere.yaml")
