from __future__ import annotations

import os
import pathlib

import numpy as np
from PIL import Image

from services.learner import recordings
from services.learner.recordings import Picture, Recordings
from services.shared.config import EvaluationConfig


def _write(path: pathlib.Path, time: int, size: tuple[int, int] = (30, 20)) -> None:
    Image.fromarray(np.zeros((size[1], size[0]), np.uint8)).save(path)
    os.utime(path, (time, time))


def test_new_recordings_are_shown_and_the_oldest_go(tmp_path: pathlib.Path) -> None:
    _write(tmp_path / "old.gif", 1)
    shown: list[Picture] = []
    config = EvaluationConfig(recordings_directory=str(tmp_path), recordings_to_keep=2)
    kept = Recordings(config, shown.append)
    kept.look()
    assert not shown
    _write(tmp_path / "a.gif", 2)
    _write(tmp_path / "map.png", 2, (40, 10))
    (tmp_path / ".b.gif.0a1b").write_bytes(b"under way")
    kept.look()
    assert [(p.name, p.width, p.height) for p in shown] == [("a.gif", 30, 20), ("map.png", 40, 10)]
    # A heat map is replaced, a recording added.
    _write(tmp_path / "map.png", 3)
    _write(tmp_path / "b.gif", 4)
    kept.look()
    assert [p.name for p in shown[2:]] == ["map.png", "b.gif"]
    assert kept.names() == ["a.gif", "map.png", "b.gif"]
    kept.look()
    assert len(shown) == 4


def test_what_is_no_picture_is_passed_over(tmp_path: pathlib.Path) -> None:
    shown: list[Picture] = []
    kept = Recordings(EvaluationConfig(recordings_directory=str(tmp_path)), shown.append)
    (tmp_path / "a.gif").write_bytes(b"GI")
    (tmp_path / "b.png").write_bytes(b"")
    kept.look()
    assert not shown


def test_nothing_is_kept_without_a_folder() -> None:
    kept = Recordings(EvaluationConfig(), print)
    kept.look()
    assert kept.names() == []
    assert recordings.NAME.fullmatch("actor-0-000001.gif")
