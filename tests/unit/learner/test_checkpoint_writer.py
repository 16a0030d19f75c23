"""Who writes checkpoints: in the background, alone, and never over those of a newer learner."""

from __future__ import annotations

import os
import pathlib
import threading

import numpy as np
import pytest

from services.learner import checkpoint, checkpoint_writer
from services.learner.checkpoint import CheckpointError
from services.learner.checkpoint_writer import Claim, ClaimLost
from tests.unit.learner.test_checkpoint import EXPERIMENT, SPEC, VARIABLES


def save(directory: pathlib.Path, claim: Claim | None = None, updates: int = 7) -> pathlib.Path:
    counters = {"updates": updates}
    return checkpoint.save(directory, VARIABLES, counters, SPEC, EXPERIMENT, 3, claim)


def test_writer_saves_in_the_background_and_in_the_foreground(tmp_path: pathlib.Path) -> None:
    writer = checkpoint_writer.Writer(tmp_path, keep=2)
    assert writer.latest() is None
    started = writer.saved_at
    assert started is not None
    writer.save(VARIABLES, {"updates": 1}, SPEC, EXPERIMENT, wait=False)
    writer.save(VARIABLES, {"updates": 2}, SPEC, EXPERIMENT, wait=True)
    assert writer.newest == tmp_path / "checkpoint-000000000002"
    assert writer.saved_at is not None
    assert writer.saved_at > started
    resumed = checkpoint_writer.Writer(tmp_path, keep=2).latest()
    assert resumed is not None
    assert resumed.counters == {"updates": 2}
    nowhere = checkpoint_writer.Writer(None, keep=1)
    nowhere.save(VARIABLES, {"updates": 1}, SPEC, EXPERIMENT, wait=True)
    assert nowhere.newest is None
    assert nowhere.saved_at is None


def test_writer_reports_what_cannot_be_written(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    writer = checkpoint_writer.Writer(tmp_path / "file" / "directory", keep=1)
    started = writer.saved_at
    writer.save(VARIABLES, {"updates": 1}, SPEC, EXPERIMENT, wait=False)
    with pytest.raises(CheckpointError, match=r"cannot be written: .*file"):
        writer.save(VARIABLES, {"updates": 2}, SPEC, EXPERIMENT, wait=True)
    assert caplog.text.count("cannot be written") == 2
    assert writer.saved_at == started


def test_a_directory_has_one_writer(tmp_path: pathlib.Path) -> None:
    first = checkpoint_writer.Writer(tmp_path / "run", keep=2)
    first.claim()
    second = checkpoint_writer.Writer(tmp_path / "run", keep=2)
    with pytest.raises(CheckpointError, match="run: another learner writes to it"):
        second.claim()
    path = save(tmp_path / "run")
    del first  # the lock goes with its holder
    second.claim()
    # Found although it was not there when the second one began.
    assert second.newest == path
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file: cannot be written to"):
        checkpoint_writer.Writer(tmp_path / "file", keep=1).claim()
    checkpoint_writer.Writer(None, keep=1).claim()


def take_over(directory: pathlib.Path) -> Claim:
    """As if the first one's lock were lost: a lease of NFS that ran out while it stood still."""
    (directory / ".lock").unlink()
    return Claim(directory)


def names(directory: pathlib.Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_one_that_was_overtaken_writes_nothing(tmp_path: pathlib.Path) -> None:
    old = Claim(tmp_path)
    first = save(tmp_path, old, 1)
    new = take_over(tmp_path)
    with pytest.raises(ClaimLost, match="another learner has taken it over"):
        save(tmp_path, old, 2)
    second = save(tmp_path, new, 2)
    assert names(tmp_path) == {".lock", ".owner", first.name, second.name}


@pytest.mark.parametrize("at", ["fsync", "check"])
def test_a_save_that_stands_still_while_it_is_overtaken_loses(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    old = Claim(tmp_path)
    reached, go_on = threading.Event(), threading.Event()
    original = os.fsync if at == "fsync" else Claim.check

    def stand_still(argument: object) -> None:
        original(argument)  # type: ignore[arg-type]
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            assert go_on.wait(20)

    errors: list[Exception] = []

    def run() -> None:
        try:
            save(tmp_path, old)
        except CheckpointError as error:
            errors.append(error)

    monkeypatch.setattr(os if at == "fsync" else Claim, at, stand_still)
    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(20)
    new = take_over(tmp_path)
    assert checkpoint.latest(tmp_path) is None
    newer = save(tmp_path, new)
    go_on.set()
    thread.join()
    # There is nothing left to rename, wherever it stood still.
    (error,) = errors
    assert isinstance(error, ClaimLost)
    assert names(tmp_path) == {".lock", ".owner", newer.name}
    checkpoint.read(newer).variables(VARIABLES)


def test_what_a_killed_learner_was_writing_is_removed(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".incomplete-0123").mkdir()
    (tmp_path / ".fenced-0123-0").mkdir()
    Claim(tmp_path)
    assert names(tmp_path) == {".lock", ".owner"}


def test_a_writer_that_was_overtaken_says_so(tmp_path: pathlib.Path) -> None:
    writer = checkpoint_writer.Writer(tmp_path, keep=2)
    writer.claim()
    assert writer.lost is None
    take_over(tmp_path)
    with pytest.raises(ClaimLost):
        writer.save(VARIABLES, {"updates": 1}, SPEC, EXPERIMENT, wait=True)
    assert isinstance(writer.lost, ClaimLost)


def test_a_checkpoint_on_a_full_disk_leaves_its_room(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(tmp_path)
    assert names(tmp_path) == set()


def test_a_slow_disk_is_noticed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = threading.Event()
    monkeypatch.setattr(checkpoint, "save", lambda *_: written.wait(20))
    writer = checkpoint_writer.Writer(tmp_path, keep=2)
    assert not writer.is_late()
    writer.save(VARIABLES, {"updates": 1}, SPEC, EXPERIMENT, wait=False)
    assert writer.is_late()
    assert writer.failures == 1
    assert "still being written" in caplog.text
    written.set()
    writer.save(VARIABLES, {"updates": 2}, SPEC, EXPERIMENT, wait=True)
    assert not writer.is_late()
