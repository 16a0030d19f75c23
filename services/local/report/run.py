"""A run's folder, as a page shows it: settings, state, history, evaluations, videos."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

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

    def is_running(self) -> bool:
        """Whether a `seedpod train` on this machine holds the folder."""
        try:
            with (self.folder / ".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # copied from elsewhere without it
            return False
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

    def recordings(self) -> list[pathlib.Path]:
        """What a browser can show of its videos and pictures, newest first."""
        found = [
            path
            for path in (self.folder / "videos").glob("[!.]*")
            if path.suffix in RECORDING_TYPES and path.is_file() and not path.is_symlink()
        ]
        return sorted(found, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)

    def newest_recordings(self, max_bytes: float = math.inf) -> list[pathlib.Path]:
        """The newest video, and the newest pictures; none that is larger."""
        found = [path for path in self.recordings() if path.stat().st_size <= max_bytes]
        videos = [path for path in found if path.suffix in _VIDEOS][:1]
        return videos + [path for path in found if path.suffix in _PICTURES][:_NEWEST_PICTURES]


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
