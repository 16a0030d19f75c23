"""Checkpoints: what the learner needs to go on as if nothing had happened.

A checkpoint is a directory, `checkpoint-<updates>`, that appears all at once:

    variables.npz   every array by name, no pickles
    meta.json       format version, counters, environment spec, experiment, SHA-256 of the arrays

The service saves and restores; nothing here knows TensorFlow. Restoring is strict: whatever does
not fit stops the start with its name, because a learner that resumes with half its state trains
on and looks healthy.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import threading
import time
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format

from services.shared import wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import EnvironmentSpec

FORMAT_VERSION = 2

Array = npt.NDArray[Any]
_NAME = re.compile(r"checkpoint-(\d{12})")
_TEMPORARY_PREFIX = ".incomplete-"
_VARIABLES = "variables.npz"
_META = "meta.json"
_LOCK = ".lock"
_log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or used; the message names the file and both sides."""


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

    def variables(self, expected: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Reads the arrays.

        Args:
          expected: Arrays or variables that the values are for, by name; see `check_variables`.

        Returns:
          The arrays by name.

        Raises:
          CheckpointError: The file is damaged, or does not fit `expected`.
        """
        path = self.path / _VARIABLES
        try:
            if _sha256(path) != self.sha256:
                raise CheckpointError(f"{path}: is damaged: its SHA-256 is not that of {_META}")
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        if expected is not None:
            check_variables(arrays, expected, str(path))
        return arrays


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


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads a checkpoint's description.

    Raises:
      CheckpointError: It is damaged, or of another format version.
    """
    path = pathlib.Path(path)
    meta_path = path / _META
    try:
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
        version = meta["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{meta_path}: cannot be read: {error!r}") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{meta_path}: has format version {version}, this learner reads {FORMAT_VERSION}"
        )
    try:
        return Checkpoint(
            path=path,
            counters={name: int(value) for name, value in meta["counters"].items()},
            environment_spec=_spec_from_json(meta["environment_spec"]),
            experiment=meta["experiment"],
            sha256=meta["sha256"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, json_format.ParseError) as error:
        raise CheckpointError(f"{meta_path}: cannot be read: {error!r}") from error


def save(
    directory: str | os.PathLike[str],
    variables: Mapping[str, Array],
    counters: Mapping[str, int],
    environment_spec: EnvironmentSpec,
    experiment: str,
    keep: int,
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

    Returns:
      The checkpoint's directory.

    Raises:
      CheckpointError: It could not be written.
    """
    root = pathlib.Path(directory)
    name = f"checkpoint-{counters['updates']:012d}"
    if (root / name).exists():
        return root / name
    temporary = root / f"{_TEMPORARY_PREFIX}{name}"
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
        temporary.rename(root / name)
        _force_directory(root)
        for old in _complete(root)[:-keep]:
            shutil.rmtree(old)
    except OSError as error:
        raise CheckpointError(f"{root / name}: cannot be written: {error}") from error
    return root / name


class Writer:
    """Saves a run's checkpoints, in the background if asked to."""

    def __init__(self, directory: str | os.PathLike[str] | None, keep: int) -> None:
        """Sets where checkpoints go (None: nowhere) and how many are kept.

        `newest` is the newest checkpoint's path; `saved_at` the Unix time of the last success,
        of this moment before the first; None if checkpoints go nowhere.
        """
        self._directory = None if directory is None else pathlib.Path(directory)
        self._keep = keep
        self._lock: IO[str] | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.newest: pathlib.Path | None = None if directory is None else latest(directory)
        self.saved_at: float | None = None if directory is None else time.time()

    def claim(self) -> None:
        """Makes the directory this process's own, until it ends, however it ends.

        Raises:
          CheckpointError: Another learner writes to it, or it cannot be written to.
        """
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = (self._directory / _LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{self._directory}: another learner writes to it") from None
        except OSError as error:
            raise CheckpointError(f"{self._directory}: cannot be written to: {error}") from error
        # What the one before has saved as its last.
        self.newest = latest(self._directory)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None.

        Raises:
          CheckpointError: It is damaged; an older one is not taken silently in its place.
        """
        return None if self.newest is None else read(self.newest)

    def save(
        self,
        variables: Mapping[str, Array],
        counters: Mapping[str, int],
        environment_spec: EnvironmentSpec,
        experiment: str,
        *,
        wait: bool,
    ) -> None:
        """Saves a checkpoint; see the function of that name.

        Args:
          variables: Arrays by name; must not change any more.
          counters: See `save`.
          environment_spec: See `save`.
          experiment: See `save`.
          wait: Return when it is on disk. Otherwise it is written in the background, after the
            one before, and a failure is logged: training need not end because a disk is full.

        Raises:
          CheckpointError: It could not be written, and `wait` is set.
        """
        if self._directory is None:
            return
        self._join()
        self._error = None
        directory, frozen_counters = self._directory, dict(counters)

        def write() -> None:
            try:
                self.newest = save(
                    directory, variables, frozen_counters, environment_spec, experiment, self._keep
                )
                self.saved_at = time.time()
            except Exception as error:  # whatever it is, training goes on
                _log.error("%s", error)
                self._error = error

        self._thread = threading.Thread(target=write, name="checkpoint")
        self._thread.start()
        if wait:
            self._join()
            if self._error is not None:
                raise self._error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


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
