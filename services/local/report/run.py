"""A run's folder, as a page shows it: settings, state, history, evaluations, videos."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import pathlib
import stat
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from services.local.process import LaunchError
from services.local.report.history import History

SUMMARY_FILE = "summary.json"
_EVALUATIONS_FILE = "evaluations.jsonl"
_VIDEOS = {".gif": "image/gif", ".mp4": "video/mp4", ".webm": "video/webm"}
_PICTURES = {".png": "image/png"}
# What browsers show of a run's `videos`, and how a page names it to them.
RECORDING_TYPES = {**_VIDEOS, **_PICTURES}
_NEWEST_PICTURES = 2  # heat maps: of the ball, of the players


class Recording(NamedTuple):
    """A video or picture of evaluation episodes.

    Attributes:
      path: Of the file.
      bytes: Its size.
      modified_ns: When it was written, Unix time.
    """

    path: pathlib.Path
    bytes: int
    modified_ns: int

    @property
    def type(self) -> str:
        """How a page names it to a browser."""
        return RECORDING_TYPES[self.path.suffix]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
      folder: Where it is.
      name: For people; unique on a page.
      settings: Its experiment, as nested mappings: one of an earlier version is shown too.
      history: What was recorded.
    """

    folder: pathlib.Path
    name: str
    settings: dict[str, Any]
    history: History

    def summary(self) -> dict[str, Any]:
        """How it ended; empty while it is under way, or if it was killed."""
        try:
            summary = json.loads((self.folder / SUMMARY_FILE).read_text())
        except (OSError, ValueError):
            return {}
        return summary if isinstance(summary, dict) else {}

    def is_running(self) -> bool | None:
        """Whether a `seedpod train` holds the folder; None: it was copied from elsewhere."""
        try:
            with (self.folder / ".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        return False

    def evaluations(self) -> list[dict[str, Any]]:
        """What evaluators beside training have reported, oldest first."""
        try:
            text = (self.folder / _EVALUATIONS_FILE).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return []
        found = []
        for line in text.splitlines():
            try:
                document = json.loads(line)
            except ValueError:  # it is being written, or its writer was killed
                continue
            if isinstance(document, dict):
                found.append(document)
        return found

    def recordings(self) -> list[Recording]:
        """What a browser can show of its videos and pictures, newest first."""
        found = []
        for path in (self.folder / "videos").glob("[!.]*"):
            # The oldest are removed while somebody looks.
            with contextlib.suppress(OSError):
                status = path.lstat()  # a link might lead out of the folder
                if path.suffix in RECORDING_TYPES and stat.S_ISREG(status.st_mode):
                    found.append(Recording(path, status.st_size, status.st_mtime_ns))
        return sorted(found, key=lambda r: (r.modified_ns, r.path.name), reverse=True)

    def newest_recordings(self, max_bytes: float = math.inf) -> list[Recording]:
        """The newest video, and the newest pictures; none that is larger."""
        found = [r for r in self.recordings() if r.bytes <= max_bytes]
        videos = [r for r in found if r.path.suffix in _VIDEOS][:1]
        return videos + [r for r in found if r.path.suffix in _PICTURES][:_NEWEST_PICTURES]


def read(folder: pathlib.Path, name: str) -> Run:
    """Reads a run.

    Raises:
      LaunchError: The folder is not a run's, or cannot be read; the message names it.
    """
    document = folder / "experiment.yaml"
    if not document.is_file():
        raise LaunchError(f"{folder}: is not a run: it has no {document.name}")
    try:
        settings = yaml.safe_load(document.read_text(encoding="utf-8"))
        history = History(folder / "tensorboard")
        history.update()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LaunchError(f"{folder}: cannot be read: {error}") from None
    if not isinstance(settings, dict):
        raise LaunchError(f"{document}: is a {type(settings).__name__}, must be a mapping")
    return Run(folder, name, settings, history)


def read_all(folders: Sequence[pathlib.Path]) -> list[Run]:
    """Reads runs, each once; those whose folders have the same name are named by their paths.

    Raises:
      LaunchError: See `read`.
    """
    different = list({folder.resolve(): folder for folder in folders}.values())
    names = [folder.resolve().name for folder in different]
    return [
        read(folder, name if names.count(name) == 1 else str(folder))
        for folder, name in zip(different, names, strict=True)
    ]
