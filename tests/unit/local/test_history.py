"""Event files are read as they grow; sessions follow each other; what was lost is left out."""

from __future__ import annotations

import math
import pathlib

from tensorboard.compat.proto import event_pb2

from services.local.report.history import History
from tests.unit.local import run_folders

RETURN = "episode/mean_return"


def history(folder: pathlib.Path) -> History:
    found = History(folder / "tensorboard")
    found.update()
    return found


def test_a_series_has_frames_seconds_and_values(tmp_path: pathlib.Path) -> None:
    run_folders.make(
        tmp_path,
        [(10, 1002.5, {RETURN: 0.5, "loss": 2.0}), (20, 1003.5, {RETURN: math.nan, "loss": 1.0})],
    )
    found = history(tmp_path)
    frames, seconds, values = found.series(RETURN)
    assert frames.tolist() == [10, 20]
    assert seconds.tolist() == [2.5, 3.5]
    assert values[0] == 0.5
    assert math.isnan(values[1])
    assert found.tags == [RETURN, "loss"]
    assert (found.frames, found.seconds) == (20, 3.5)
    assert found.series("unknown").values.tolist() == []


def test_nothing_was_recorded(tmp_path: pathlib.Path) -> None:
    found = history(tmp_path)  # there is not even a folder
    assert (found.frames, found.seconds, found.tags) == (0, 0.0, [])
    run_folders.make(tmp_path / "run", [])
    found = history(tmp_path / "run")
    assert (found.frames, found.tags, found.parts("cpu_seconds/")) == (0, [], [])


def test_a_resumed_run_goes_on(tmp_path: pathlib.Path) -> None:
    run_folders.make(
        tmp_path, run_folders.returns((10, 1), (20, 2)), run_folders.returns((30, 3), (40, 4))
    )
    frames, seconds, values = history(tmp_path).series(RETURN)
    assert frames.tolist() == [10, 20, 30, 40]
    # Each session was at work for two seconds; both began at 1000 by the clock.
    assert seconds.tolist() == [1, 2, 3, 4]
    assert values.tolist() == [1, 2, 3, 4]


def test_what_was_lost_with_a_killed_learner_is_left_out_but_not_its_time(
    tmp_path: pathlib.Path,
) -> None:
    run_folders.make(
        tmp_path,
        run_folders.returns((10, 1), (20, 2), (30, 3)),
        [],  # killed again before its first record
        run_folders.returns((15, 4), (25, 5)),
    )
    frames, seconds, values = history(tmp_path).series(RETURN)
    assert frames.tolist() == [10, 15, 25]
    assert seconds.tolist() == [1, 4, 5]
    assert values.tolist() == [1, 4, 5]


def test_a_file_that_grows_is_read_on_from_where_it_was(tmp_path: pathlib.Path) -> None:
    run_folders.make(tmp_path, run_folders.returns((10, 1)))
    (path,) = (tmp_path / "tensorboard").iterdir()
    more = run_folders.events(run_folders.returns((10, 1), (20, 2)))[path.stat().st_size :]
    found = history(tmp_path)
    for piece in (more[:3], more[3:20], more[20:]):
        assert found.series(RETURN).values.tolist() == [1]
        with path.open("ab") as file:
            file.write(piece)
        found.update()
    assert found.series(RETURN).values.tolist() == [1, 2]


def test_what_is_no_number_and_what_is_damaged_is_passed_over(tmp_path: pathlib.Path) -> None:
    run_folders.make(tmp_path, run_folders.returns((10, 1)))
    (path,) = (tmp_path / "tensorboard").iterdir()
    text = event_pb2.Event(wall_time=1002, step=20)
    text.summary.value.add(tag="words").tensor.string_val.append(b"hello")
    plain = event_pb2.Event(wall_time=1003, step=30)
    plain.summary.value.add(tag=RETURN, simple_value=3.0)
    packed = event_pb2.Event(wall_time=1004, step=40)
    tensor = packed.summary.value.add(tag=RETURN).tensor
    tensor.dtype, tensor.tensor_content = 1, b"\x00\x00\x80\x40"
    garbage = b"\x04" + bytes(11) + b"\xff" * 4 + bytes(4)
    with path.open("ab") as file:
        for event in (text, plain, packed):
            file.write(run_folders.record(event))
        file.write(garbage + run_folders.record(plain))
    found = history(tmp_path)
    found.update()
    frames, _, values = found.series(RETURN)
    assert found.tags == [RETURN]
    assert frames.tolist() == [10, 30, 40]
    assert values.tolist() == [1, 3, 4]


def test_parts_have_one_length_also_where_the_last_record_is_torn(tmp_path: pathlib.Path) -> None:
    both = {"cpu_seconds/actor": 1.0, "cpu_seconds/inference": 2.0}
    run_folders.make(
        tmp_path, [(10, 1001, both), (20, 1002, both), (30, 1003, {"cpu_seconds/actor": 3.0})]
    )
    (parts,) = history(tmp_path).parts("cpu_seconds/")
    assert parts["actor"].values.tolist() == [1, 1]
    assert parts["inference"].values.tolist() == [2, 2]
    assert parts["inference"].frames.tolist() == [10, 20]


def test_a_clock_that_is_set_back_turns_no_curve_around(tmp_path: pathlib.Path) -> None:
    run_folders.make(tmp_path, [(10, 1005, {RETURN: 1}), (20, 1002, {RETURN: 2})])
    assert history(tmp_path).series(RETURN).seconds.tolist() == [5, 5]
