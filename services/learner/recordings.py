"""Recordings of evaluation episodes: files that actors hand over, for people to look at.

Front ends write them (`PutRecording`); here the learner finds the new ones for TensorBoard and
removes the oldest.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import re
import secrets
import struct
import threading
from collections.abc import Callable

from services.shared.config import EvaluationConfig

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}\.(gif|png)")
MAX_BYTES = 1 << 28
_POLL_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A file, as TensorBoard takes it.

    Attributes:
      name: Of the file.
      width, height: In pixels.
      data: The whole file, GIF or PNG.
    """

    name: str
    width: int
    height: int
    data: bytes


def read(path: pathlib.Path) -> Picture:
    """Reads a recording.

    Raises:
      OSError: It cannot be read.
      ValueError: It is neither a GIF nor a PNG.
    """
    data = path.read_bytes()
    if data[:4] == b"GIF8" and len(data) >= 10:
        width, height = struct.unpack_from("<HH", data, 6)
    elif data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
    else:
        raise ValueError(f"{path}: neither a GIF nor a PNG")
    return Picture(path.name, width, height, data)


class Arrival:
    """A file under way: it has its name only when all of it is there."""

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        """Makes the folder and the file.

        Raises:
          OSError: The folder takes none.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / name
        self._partial = folder / f".{name}.{secrets.token_hex(4)}"
        self._file = self._partial.open("wb")
        self.size = 0

    def write(self, data: bytes) -> None:
        """Appends a piece.

        Raises:
          OSError: There is no room, or more than `MAX_BYTES`.
        """
        self.size += len(data)
        if self.size > MAX_BYTES:
            raise OSError(f"{self._path.name} has more than {MAX_BYTES} bytes")
        self._file.write(data)

    def __enter__(self) -> Arrival:
        """The file, to be written."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Gives it its name, or removes it after an error."""
        try:
            self._file.close()
            if kind is None:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)


class Recordings:
    """The folder, looked into by a thread of its own.

    Attributes:
      folder: None where nothing is kept.
    """

    def __init__(self, config: EvaluationConfig, show: Callable[[Picture], None]) -> None:
        """Prepares; `run` is the thread's body.

        Args:
          config: Where recordings are kept, and how many.
          show: Called with each new one.
        """
        directory = config.recordings_directory
        self.folder = None if directory is None else pathlib.Path(directory)
        self._keep = config.recordings_to_keep
        self._show = show
        self._seen = {path.name: path.stat().st_mtime_ns for path in self._files()}
        self._stop = threading.Event()

    def stop(self) -> None:
        """Makes `run` return, after a last look."""
        self._stop.set()

    def run(self) -> None:
        """Looks for new recordings until `stop`."""
        while not self._stop.wait(_POLL_SECONDS):
            self.look()
        self.look()

    def look(self) -> None:
        """Shows the new ones and removes the oldest."""
        files = self._files()
        for path in files:
            try:
                written = path.stat().st_mtime_ns
                if self._seen.get(path.name) != written:
                    self._seen[path.name] = written
                    self._show(read(path))
            except (OSError, ValueError) as error:
                _log.warning("recording %s cannot be shown: %s", path, error)
        for suffix in (".gif", ".png"):
            alike = [path for path in files if path.suffix == suffix]
            for path in alike[: -self._keep]:
                self._seen.pop(path.name, None)
                path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Of what is there, the oldest first."""
        return [path.name for path in self._files()]

    def _files(self) -> list[pathlib.Path]:
        if self.folder is None or not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
