"""Checkpoints: what the learner needs to go on as if nothing had happened.

A checkpoint is a directory, `checkpoint-<updates>`, that appears all at once:

    variables.npz   every array by name, no pickles
    meta.json       format version, counters, environment spec, experiment, SHA-256 of the arrays

The service saves and restores; nothing here knows TensorFlow. Restoring is strict: whatever does
not fit stops the start with its name, because a learner that resumes with half its state trains
on and looks healthy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import yaml
from google.protobuf import json_format

from services.shared import wire
from services.shared.config import NetworkConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import EnvironmentSpec

if TYPE_CHECKING:
    from services.learner.checkpoint_writer import Claim

FORMAT_VERSION = 2
# Of what is being written, and what no learner restores.
TEMPORARY_PREFIX = ".incomplete-"

Array = npt.NDArray[Any]
_NAME = re.compile(r"checkpoint-(\d{12})")
_VARIABLES = "variables.npz"
_META = "meta.json"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used; the message names the file and both sides."""


class _Damaged(CheckpointError):
    """It is not what was saved."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, its arrays not read yet.

    Attributes:
      path: Its directory.
      counters: Updates, frames and whatever else was counted.
      environment_spec: What the network was made for.
      experiment: The experiment as YAML.
      sha256: Of the arrays' file.
    """

    path: pathlib.Path
    counters: dict[str, int]
    environment_spec: EnvironmentSpec
    experiment: str
    sha256: str

    def check_environment(self, spec: EnvironmentSpec) -> None:
        """Compares the environment that asks to be trained on.

        Raises:
          CheckpointError: It is another one.
        """
        if spec != self.environment_spec:
            raise CheckpointError(
                f"{self.path}: was trained on environments that look like"
                f" {self.environment_spec}, now they look like {spec}"
            )

    def check_agent(self, spec: EnvironmentSpec, network: NetworkConfig) -> None:
        """Compares what an agent sees, does and is: enough for its network to play elsewhere.

        Raises:
          CheckpointError: Something is different.
        """
        # How many agents there are, and how many frames a step has, may differ.
        self.check_environment(
            dataclasses.replace(
                self.environment_spec, observation=spec.observation, action=spec.action
            )
        )
        # Not all of the experiment: it may have settings that this version does not know.
        saved = yaml.safe_load(self.experiment)["learner"]["network"]
        # Networks that differ in an activation, for example, have the same variables.
        if (saved["name"], saved["arguments"]) != (network.name, network.arguments):
            raise CheckpointError(
                f"{self.path}: has the network {saved['name']} with {saved['arguments']}, here it"
                f" is {network.name} with {network.arguments}"
            )

    def variables(self, expected: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Reads the arrays.

        Args:
          expected: Arrays or variables that the values are for, by name; see `check_variables`.

        Returns:
          The arrays by name.

        Raises:
          CheckpointError: The file is damaged, or does not fit `expected`.
        """
        try:
            arrays = self._load()
        except _Damaged as error:
            raise _with_offer(error, self.path) from error
        if expected is not None:
            check_variables(arrays, expected, str(self.path / _VARIABLES))
        return arrays

    def _load(self) -> dict[str, Array]:
        path = self.path / _VARIABLES
        try:
            if _sha256(path) != self.sha256:
                raise _Damaged(f"{path}: is damaged: its SHA-256 is not that of {_META}")
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except _Damaged:
            raise
        except Exception as error:  # what an edited archive makes numpy and zlib raise is open
            raise _Damaged(f"{path}: cannot be read: {error!r}") from error


def check_variables(arrays: Mapping[str, Array], expected: Mapping[str, Any], source: str) -> None:
    """Holds arrays against what they are for.

    Args:
      arrays: The values by name.
      expected: Anything with `shape` and `dtype`, arrays or variables, by the same names.
      source: Where the arrays are from, for messages.

    Raises:
      CheckpointError: A name is missing or unexpected, or a shape or element type differs; the
        message lists all of them.
    """
    faults = [f"{name} is missing" for name in sorted(set(expected) - set(arrays))]
    faults += [f"{name} is not expected" for name in sorted(set(arrays) - set(expected))]
    for name in sorted(set(arrays) & set(expected)):
        array, target = arrays[name], expected[name]
        shape = tuple(target.shape)
        dtype = np.dtype(getattr(target.dtype, "as_numpy_dtype", target.dtype))
        if (array.shape, array.dtype) != (shape, dtype):
            faults.append(f"{name} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}")
    if faults:
        raise CheckpointError(f"{source}: does not fit this learner: " + "; ".join(faults))


def latest(directory: str | os.PathLike[str]) -> pathlib.Path | None:
    """The complete checkpoint of the most updates, or None."""
    complete = _complete(pathlib.Path(directory))
    return complete[-1] if complete else None


def name_of(counters: Mapping[str, int]) -> str:
    """The name of a checkpoint's folder."""
    return f"checkpoint-{counters['updates']:012d}"


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads a checkpoint's description.

    Raises:
      CheckpointError: It is damaged, or of another format version, or a folder above; if it is
        damaged, the message names the newest good one before it.
    """
    path = pathlib.Path(path)
    try:
        return _read(path)
    except _Damaged as error:
        if (inside := latest(path) or latest(path / "checkpoints")) is not None:
            raise CheckpointError(
                f"{path}: is no checkpoint; the newest one in it is {inside}"
            ) from None
        raise _with_offer(error, path) from error


def _with_offer(error: _Damaged, path: pathlib.Path) -> CheckpointError:
    """The error with what can be done about it; nothing is taken silently in its place."""
    if not _NAME.fullmatch(path.name):  # renamed: which ones are before it is not known
        return error
    for older in reversed(_complete(path.parent)):
        if older.name >= path.name:
            continue
        try:
            _read(older)._load()
        except CheckpointError:
            continue
        return CheckpointError(
            f"{error}; the newest good one before it is {older}: move {path} away to go on from"
            " there"
        )
    return CheckpointError(f"{error}; there is no good one before it")


def _read(path: pathlib.Path) -> Checkpoint:
    meta_path = path / _META
    try:
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
        version = meta["format_version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Damaged(f"{meta_path}: cannot be read: {error!r}") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{meta_path}: has format version {version}, this learner reads {FORMAT_VERSION}"
        )
    try:
        counters = {name: int(value) for name, value in meta["counters"].items()}
        name_of(counters)
        return Checkpoint(
            path=path,
            counters=counters,
            environment_spec=_spec_from_json(meta["environment_spec"]),
            experiment=meta["experiment"],
            sha256=meta["sha256"],
        )
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        json_format.ParseError,
    ) as error:
        raise _Damaged(f"{meta_path}: cannot be read: {error!r}") from error


def save(
    directory: str | os.PathLike[str],
    variables: Mapping[str, Array],
    counters: Mapping[str, int],
    environment_spec: EnvironmentSpec,
    experiment: str,
    keep: int,
    claim: Claim | None = None,
) -> pathlib.Path:
    """Writes a checkpoint and removes all but the newest.

    It is written under another name, forced to disk, then renamed: a learner that is killed at
    any moment leaves either all of it or nothing that would be restored. If there is one of the
    same update, the weights are the same, and it stays.

    Args:
      directory: Where checkpoints go; made if it does not exist.
      variables: Arrays by name; numbers only.
      counters: Must have `updates`, which the directory is named after.
      environment_spec: What the network was made for.
      experiment: The experiment as YAML.
      keep: How many checkpoints to leave.
      claim: On the directory; None: nobody else can be writing to it.

    Returns:
      The checkpoint's directory.

    Raises:
      CheckpointError: It could not be written.
      checkpoint_writer.ClaimLost: Another learner has the directory now; nothing was written.
    """
    root = pathlib.Path(directory)
    name = name_of(counters)
    if (root / name).exists():
        return root / name
    temporary = root / f"{TEMPORARY_PREFIX}{'unclaimed' if claim is None else claim.token}"
    objects = sorted(key for key, array in variables.items() if array.dtype.hasobject)
    if objects:
        raise CheckpointError(f"{root / name}: variables {objects} are no numbers")
    try:
        root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _write_arrays(temporary / _VARIABLES, variables)
        meta = {
            "format_version": FORMAT_VERSION,
            "counters": dict(counters),
            "environment_spec": _spec_to_json(environment_spec),
            "experiment": experiment,
            "sha256": _sha256(temporary / _VARIABLES),
        }
        with (temporary / _META).open("w", encoding="utf-8") as text_file:
            json.dump(meta, text_file, indent=1, allow_nan=False)
            text_file.flush()
            os.fsync(text_file.fileno())
        _force_directory(temporary)
        if claim is not None:
            claim.check()
        temporary.rename(root / name)
        _force_directory(root)
        for old in _complete(root)[:-keep]:
            shutil.rmtree(old)
    except OSError as error:
        if claim is not None:
            with contextlib.suppress(OSError):
                claim.check()  # it may be why
        raise CheckpointError(f"{root / name}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk needs the room
    return root / name


def _spec_to_json(spec: EnvironmentSpec) -> dict[str, Any]:
    """The spec as the JSON form of its protobuf message."""
    message = wire.environment_spec_to_proto(spec)
    document: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return document


def _spec_from_json(document: dict[str, Any]) -> EnvironmentSpec:
    message = json_format.ParseDict(document, inference_pb2.EnvironmentSpec())
    return wire.environment_spec_from_proto(message)


def _write_arrays(path: pathlib.Path, arrays: Mapping[str, Array]) -> None:
    """Writes the .npz that `numpy.savez` would, which cannot take an array called "file"."""
    with path.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _complete(root: pathlib.Path) -> list[pathlib.Path]:
    """Complete checkpoints, oldest first. Incomplete ones have another name."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _force_directory(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
