"""Checkpoints: round trip, retention, strictness, damage and interrupted writes."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from services.learner import checkpoint
from services.shared import specs
from services.shared.config import NetworkConfig
from services.shared.specs import DataType, TensorSpec

SPEC = specs.EnvironmentSpec(
    (TensorSpec("smm", DataType.BIT, (72, 96, 4), stack=4), TensorSpec("x", DataType.FLOAT32, ())),
    specs.ContinuousActionSpec((-1.0, -math.inf), (1.0, math.inf)),
    agents=2,
)
VARIABLES: dict[str, npt.NDArray[Any]] = {
    "network/hidden/0/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "optimizer/updates": np.array(7, np.int64),
    "file": np.array([True]),
}
EXPERIMENT = "name: test\n"


def _save(
    directory: pathlib.Path,
    updates: int = 7,
    keep: int = 3,
    variables: dict[str, npt.NDArray[Any]] = VARIABLES,
) -> pathlib.Path:
    counters = {"updates": updates, "frames": 10 * updates}
    return checkpoint.save(directory, variables, counters, SPEC, EXPERIMENT, keep)


def _edit_meta(path: pathlib.Path, **changes: Any) -> None:
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, **changes}))


def test_round_trip(tmp_path: pathlib.Path) -> None:
    path = _save(tmp_path / "not" / "there" / "yet")
    assert path.name == "checkpoint-000000000007"
    assert sorted(x.name for x in path.iterdir()) == ["meta.json", "variables.npz"]
    saved = checkpoint.read(path)
    assert saved.counters == {"updates": 7, "frames": 70}
    assert saved.environment_spec == SPEC
    saved.check_environment(SPEC)
    assert saved.experiment == EXPERIMENT
    variables = saved.variables(expected=VARIABLES)
    assert list(variables) == list(VARIABLES)
    for name, array in VARIABLES.items():
        np.testing.assert_array_equal(variables[name], array)
        assert variables[name].dtype == array.dtype


def test_discrete_specs_survive(tmp_path: pathlib.Path) -> None:
    spec = specs.EnvironmentSpec(
        (TensorSpec("kind", DataType.INT32, (2,), num_values=3),),
        specs.DiscreteActionSpec((19, 2)),
        frames_per_step=4,
    )
    path = checkpoint.save(tmp_path, {}, {"updates": 0}, spec, "", keep=1)
    assert checkpoint.read(path).environment_spec == spec


def test_the_newest_are_kept_and_found(tmp_path: pathlib.Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "missing") is None
    for updates in (5, 100, 30, 2000):
        _save(tmp_path, updates, keep=2)
    assert [x.name for x in sorted(tmp_path.iterdir())] == [
        "checkpoint-000000000100",
        "checkpoint-000000002000",
    ]
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    assert checkpoint.read(newest).counters["updates"] == 2000


def test_a_checkpoint_of_the_same_update_stays(tmp_path: pathlib.Path) -> None:
    path = _save(tmp_path)
    names = list(checkpoint.read(path).variables())
    # Were it replaced, a kill between the two renames would leave none.
    assert _save(tmp_path, variables={"other": np.zeros(2)}) == path
    assert list(checkpoint.read(path).variables()) == names
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("step", ["write_array", "dump", "rename"])
def test_an_interrupted_write_leaves_the_one_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = _save(tmp_path, 1)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        owner: Any = {"write_array": np.lib.format, "dump": json, "rename": pathlib.Path}[step]
        patch.setattr(owner, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            _save(tmp_path, 2)
    assert checkpoint.latest(tmp_path) == before
    after = _save(tmp_path, 2)
    assert checkpoint.latest(tmp_path) == after
    assert {x.name for x in tmp_path.iterdir()} == {before.name, after.name}


def test_strict_variables_list_every_fault(tmp_path: pathlib.Path) -> None:
    saved = checkpoint.read(_save(tmp_path))
    expected = {
        "network/hidden/0/kernel": np.zeros((3, 2), np.float32),
        "optimizer/updates": np.zeros((), np.int32),
        "network/hidden/1/kernel": np.zeros(1),
    }
    with pytest.raises(checkpoint.CheckpointError) as caught:
        saved.variables(expected)
    message = str(caught.value)
    assert str(saved.path) in message
    assert "network/hidden/1/kernel is missing" in message
    assert "file is not expected" in message
    assert "network/hidden/0/kernel is float32[2, 3], not float32[3, 2]" in message
    assert "optimizer/updates is int64[], not int32[]" in message


def test_another_environment_names_both(tmp_path: pathlib.Path) -> None:
    saved = checkpoint.read(_save(tmp_path))
    other = specs.EnvironmentSpec(
        (TensorSpec("position", DataType.FLOAT32, (3,)),), specs.DiscreteActionSpec((2,))
    )
    with pytest.raises(checkpoint.CheckpointError, match=r"smm.*now they look like .*position"):
        saved.check_environment(other)
    crowded = dataclasses.replace(SPEC, agents=3)
    with pytest.raises(checkpoint.CheckpointError, match=r"agents=2.*now .*agents=3"):
        saved.check_environment(crowded)


def test_an_agent_may_play_elsewhere_but_not_become_another(tmp_path: pathlib.Path) -> None:
    network = {"name": "mlp", "arguments": {"sizes": [8]}}
    experiment = yaml.safe_dump({"learner": {"network": network}})
    counters = {"updates": 7}
    saved = checkpoint.read(checkpoint.save(tmp_path, VARIABLES, counters, SPEC, experiment, 3))
    same = NetworkConfig(name="mlp", arguments={"sizes": [8]}, mixed_precision=True)
    saved.check_agent(dataclasses.replace(SPEC, agents=3, frames_per_step=4), same)
    other = dataclasses.replace(SPEC, observation=SPEC.observation[:1])
    with pytest.raises(checkpoint.CheckpointError, match=r"smm.*'x'.*now they look like .*smm"):
        saved.check_agent(other, same)
    relu = NetworkConfig(name="mlp", arguments={"sizes": [8], "activation": "relu"})
    with pytest.raises(
        checkpoint.CheckpointError, match=r"mlp with {'sizes': \[8\]}, here it is mlp with .*relu"
    ):
        saved.check_agent(SPEC, relu)


def test_another_format_version(tmp_path: pathlib.Path) -> None:
    path = _save(tmp_path)
    _edit_meta(path, format_version=1)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"meta\.json: has format version 1, .* reads 2"
    ):
        checkpoint.read(path)


def test_damage_names_the_file(tmp_path: pathlib.Path) -> None:
    path = _save(tmp_path)
    saved = checkpoint.read(path)
    data = bytearray((path / "variables.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "variables.npz").write_bytes(data)
    with pytest.raises(
        checkpoint.CheckpointError, match=r"variables\.npz: is damaged.*no good one"
    ):
        saved.variables()
    (path / "variables.npz").unlink()
    with pytest.raises(checkpoint.CheckpointError, match=r"variables\.npz: cannot be read"):
        saved.variables()
    for text in ("{", "[]", '{"format_version": 2}', '{"format_version": 2, "counters": []}'):
        (path / "meta.json").write_text(text)
        with pytest.raises(checkpoint.CheckpointError, match=r"meta\.json: cannot be read"):
            checkpoint.read(path)


def test_pickles_are_neither_written_nor_read(tmp_path: pathlib.Path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match=r"\['bad'\] are no numbers"):
        _save(tmp_path, variables={"bad": np.array([object()])})
    path = _save(tmp_path)
    np.savez(path / "variables.npz", bad=np.array([{}], dtype=object))
    _edit_meta(path, sha256=checkpoint._sha256(path / "variables.npz"))
    with pytest.raises(checkpoint.CheckpointError, match=r"cannot be read: .*pickle"):
        checkpoint.read(path).variables()


def test_a_folder_above_names_the_checkpoint_that_is_in_it(tmp_path: pathlib.Path) -> None:
    _save(tmp_path / "checkpoints", 5)
    newest = _save(tmp_path / "checkpoints", 6)
    for folder in (tmp_path, tmp_path / "checkpoints"):
        said = f"{folder}: is no checkpoint; the newest one in it is {newest}"
        with pytest.raises(checkpoint.CheckpointError, match=said):
            checkpoint.read(folder)


def test_a_checkpoint_that_does_not_tell_its_updates_is_damaged(tmp_path: pathlib.Path) -> None:
    path = _save(tmp_path)
    _edit_meta(path, counters={"frames": 70})
    with pytest.raises(checkpoint.CheckpointError, match=r"meta.json: cannot be read: .*updates"):
        checkpoint.read(path)


def test_the_good_one_before_a_damaged_one_is_offered(tmp_path: pathlib.Path) -> None:
    good, edited, cut, newest = (_save(tmp_path, updates, keep=9) for updates in (5, 6, 7, 8))
    _edit_meta(edited, counters=[])
    (cut / "variables.npz").write_bytes((cut / "variables.npz").read_bytes()[:-1])
    later = _save(tmp_path, 9, keep=9)
    _edit_meta(newest, sha256="")
    offer = f"the newest good one before it is {good}: move {newest} away to go on from there"
    with pytest.raises(checkpoint.CheckpointError, match=offer):
        checkpoint.read(newest).variables()
    (newest / "meta.json").unlink()
    with pytest.raises(checkpoint.CheckpointError, match=offer):
        checkpoint.read(newest)
    renamed = cut.rename(tmp_path / "final")
    with pytest.raises(checkpoint.CheckpointError) as refused:
        checkpoint.read(renamed).variables()
    assert "good one" not in str(refused.value)
    # Nothing is wrong with it, so another is no help.
    _edit_meta(later, format_version=1)
    with pytest.raises(checkpoint.CheckpointError) as refused:
        checkpoint.read(later)
    assert "good one" not in str(refused.value)
