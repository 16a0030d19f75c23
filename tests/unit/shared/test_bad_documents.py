"""Whatever an experiment or a checkpoint says, it is read or refused by name."""

from __future__ import annotations

import importlib.resources
import json
import pathlib
import random
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from services.learner import checkpoint
from services.shared import config
from services.shared.config import ConfigError, Experiment
from tests.mutations import mutate
from tests.unit.learner.test_checkpoint import SPEC, VARIABLES

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates()
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCALARS, inner, max_size=4),
    max_leaves=20,
)
PRESETS = [
    (importlib.resources.files("services.local.experiments") / f"{name}.yaml").read_bytes()
    for name in config.presets()
]


def refusal(read: Callable[[], object]) -> str:
    """The message of what is allowed to be raised; empty if nothing is wrong."""
    try:
        read()
    except (ConfigError, checkpoint.CheckpointError) as error:
        assert str(error), "an error without a message"  # noqa: PT017
        return str(error)
    return ""


def load(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "experiment.yaml"
        path.write_bytes(data)
        for reader in (config.load, config.load_replay):
            message = refusal(lambda reader=reader: reader(str(path)))  # type: ignore[misc]
            assert not message or str(path) in message


@EXAMPLES
@given(st.integers(0, 1 << 32))
def test_a_damaged_experiment(seed: int) -> None:
    choose = random.Random(seed)
    load(mutate(choose.choice(PRESETS), choose))


@EXAMPLES
@given(st.sampled_from(sorted(Experiment.model_fields)), DOCUMENTS)
def test_a_section_that_is_anything(section: str, value: Any) -> None:
    document = {"actor": {"environment": "x"}, section: value}
    load(yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass"))


@EXAMPLES
@given(st.text(max_size=40))
def test_an_override_that_is_anything(override: str) -> None:
    refusal(lambda: config.load("cartpole", [override]))


def test_a_document_without_a_bottom() -> None:
    load(b"actor: " + b"[" * 100_000)


def read(path: pathlib.Path) -> None:
    message = refusal(lambda: checkpoint.read(path).variables(VARIABLES))
    assert not message or str(path) in message


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("saved")
    counters = {"updates": 1, "frames": 2, "steps": 2, "episodes": 0}
    return checkpoint.save(folder, VARIABLES, counters, SPEC, "name: x\n", keep=1)


@EXAMPLES
@given(seed=st.integers(0, 1 << 32))
def test_a_damaged_description(saved: pathlib.Path, seed: int) -> None:
    meta = saved / "meta.json"
    good = meta.read_bytes()
    meta.write_bytes(mutate(good, random.Random(seed)))
    try:
        read(saved)
    finally:
        meta.write_bytes(good)


@EXAMPLES
@given(
    key=st.sampled_from(["format_version", "counters", "environment_spec", "experiment", "sha256"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    ),
)
def test_an_edited_description(saved: pathlib.Path, key: str, value: Any) -> None:
    meta = saved / "meta.json"
    good = meta.read_text()
    meta.write_text(json.dumps({**json.loads(good), key: value}))
    try:
        read(saved)
    finally:
        meta.write_text(good)


@EXAMPLES
@given(seed=st.integers(0, 1 << 32))
def test_edited_arrays_whose_digest_was_edited_too(saved: pathlib.Path, seed: int) -> None:
    variables, meta = saved / "variables.npz", saved / "meta.json"
    good, good_meta = variables.read_bytes(), meta.read_text()
    variables.write_bytes(mutate(good, random.Random(seed)))
    digest = checkpoint._sha256(variables)
    meta.write_text(json.dumps({**json.loads(good_meta), "sha256": digest}))
    try:
        read(saved)
    finally:
        variables.write_bytes(good)
        meta.write_text(good_meta)


def test_an_archive_whose_header_asks_for_too_much(tmp_path: pathlib.Path) -> None:
    path = checkpoint.save(tmp_path, {"w": np.zeros(2)}, {"updates": 1}, SPEC, "", keep=1)
    with zipfile.ZipFile(path / "variables.npz", "w") as archive:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"
        size = len(header).to_bytes(2, "little")
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00" + size + header)
    meta = json.loads((path / "meta.json").read_text())
    meta["sha256"] = checkpoint._sha256(path / "variables.npz")
    (path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(checkpoint.CheckpointError, match=r"variables\.npz: cannot be read"):
        checkpoint.read(path).variables()
