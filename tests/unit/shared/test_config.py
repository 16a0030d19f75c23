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


def test_replay_needs_no_other_section(tmp_path: pathlib.Path) -> None:
    source = _write(tmp_path, "replay: {tables: {a: {max_items: 7}}}")
    replay = config.load_replay(source, ["replay.seed=3", "replay.tables.a.min_size_to_sample=2"])
    assert (replay.tables["a"].max_items, replay.tables["a"].min_size_to_sample) == (7, 2)
    assert replay.seed == 3
    # The other services' sections are for them.
    both = _write(tmp_path, MINIMAL + "replay: {address: 'x:1'}")
    assert config.load_replay(both) == config.load(both).replay
    assert config.load_replay(both).address == "x:1"
    with pytest.raises(config.ConfigError, match=r"unknown sections \['adress'\]"):
        config.load_replay(_write(tmp_path, "adress: x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tables: {a: {max_itms: 1}}", "max_itms"),
        ("tables: {}", "at least 1 item"),
        ("tables: {../a: {}}", "pattern"),
        ("tables: {a: {max_items: 5, min_size_to_sample: 6}}", "at most max_items, 5"),
        (
            "tables: {a: {samples_per_insert: 4, error_buffer: 3}}",
            "error_buffer is 3.0, allowed: 4",
        ),
        ("tables: {a: {max_items: 16777217}}", "16777216"),
        ("tables: {a: {priority_exponent: .nan}}", "finite"),
    ],
)
def test_wrong_replay_settings_are_refused(tmp_path: pathlib.Path, text: str, message: str) -> None:
    with pytest.raises(config.ConfigError, match=message):
        config.load_replay(_write(tmp_path, f"replay: {{{text}}}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["learner.unroll_length=81"], "is 121, allowed: a multiple of r2d2.replay_period, 40"),
        (["learner.inference=actors"], "inference is actors with algorithm r2d2, allowed: vtrace"),
        (["learner.sample_reuse=2"], "sample_reuse is 2, allowed with r2d2: 1"),
        (["learner.r2d2.n_steps=81"], "n_steps is 81, allowed: at most unroll_length, 80"),
    ],
)
def test_wrong_sequences_are_refused(
    tmp_path: pathlib.Path, overrides: list[str], message: str
) -> None:
    source = _write(tmp_path, MINIMAL + "learner: {algorithm: r2d2, unroll_length: 80}\n")
    config.load(source)
    with pytest.raises(config.ConfigError, match=message):
        config.load(source, overrides)


def test_actors_that_hold_the_policy_have_one_learner() -> None:
    config.load("cartpole", ["local.learners=2"])
    with pytest.raises(
        config.ConfigError, match=r"local\.learners is 2, allowed with .* actors: 1"
    ):
        config.load("cartpole", ["local.learners=2", "learner.inference=actors"])


def test_numbers_with_an_exponent_are_numbers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(
        "actor: {environment: any, environment_arguments: {a: 1e-07, b: -2E+3, c: 1e, d: x1e5}}"
    )
    arguments = config.load(str(path), ["actor.environment_arguments.e=5e2"]).actor
    expected = {"a": 1e-7, "b": -2000.0, "c": "1e", "d": "x1e5", "e": 500.0}
    assert arguments.environment_arguments == expected
