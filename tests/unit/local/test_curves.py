"""Which runs are one curve, what it is called, and where it goes."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import numpy as np
import pytest

from services.local.report import curves, run
from services.local.report.curves import Group
from services.local.report.run import Run
from tests.unit.local import run_folders
from tests.unit.local.run_folders import Records

RETURN = "episode/mean_return"


def settings(seed: int = 0, batch_size: int = 4, **learner: Any) -> dict[str, Any]:
    return {
        "name": "cartpole",
        "actor": {"seed": seed, "environment_arguments": {}},
        "learner": {"seed": seed, "batch_size": batch_size, **learner},
    }


def make(folder: pathlib.Path, document: dict[str, Any], *sessions: Records) -> Run:
    return run.read(run_folders.make(folder, *sessions, settings=document), folder.name)


def test_seeds_and_places_do_not_set_runs_apart(tmp_path: pathlib.Path) -> None:
    runs = [
        make(tmp_path / "a", settings(0, checkpoint_directory="a/checkpoints")),
        make(tmp_path / "b", settings(0, 8)),
        make(tmp_path / "c", settings(1, checkpoint_directory="c/checkpoints", metrics_port=1)),
    ]
    groups = curves.group(runs)
    assert [(g.name, [r.name for r in g.runs]) for g in groups] == [
        ("cartpole batch_size=4 (2 runs)", ["a", "c"]),
        ("cartpole batch_size=8", ["b"]),
    ]


def test_arguments_of_ones_own_code_set_runs_apart_whatever_their_names(
    tmp_path: pathlib.Path,
) -> None:
    runs = []
    for name, arguments in (("a", {"seed": 1, "port": 2}), ("b", {"seed": 1, "port": 3})):
        document = settings()
        document["actor"]["environment_arguments"] = arguments
        runs.append(make(tmp_path / name, document))
    assert [g.name for g in curves.group(runs)] == ["cartpole port=2", "cartpole port=3"]
    assert curves.differences(runs) == {"actor.environment_arguments.port": [2, 3]}


def test_names_of_too_many_differences_are_those_of_the_runs(tmp_path: pathlib.Path) -> None:
    one = make(tmp_path / "one", settings())
    other = make(tmp_path / "two", settings(0, 8, **{f"setting_{i}": i for i in range(9)}))
    third = make(tmp_path / "three", {"name": "football"})
    groups = curves.group([one, other, third])
    assert [g.name for g in groups] == ["one", "two", "football"]


def test_differences_are_told_where_they_begin(tmp_path: pathlib.Path) -> None:
    constant = make(tmp_path / "a", settings(learning_rate=0.1, same=[1]))
    falling = make(tmp_path / "b", settings(learning_rate={"initial": 0.1, "x": None}, same=[1]))
    old = make(tmp_path / "c", settings(same=[1]))
    found = curves.differences([constant, falling, old])
    assert found == {"learner.learning_rate": [0.1, {"initial": 0.1, "x": None}, None]}
    texts = [curves.setting_text(value) for value in found["learner.learning_rate"]]
    assert texts == ["0.1", "{initial: 0.1}", "-"]


def test_a_single_run_is_drawn_as_it_was_recorded(tmp_path: pathlib.Path) -> None:
    one = make(tmp_path / "a", settings(), run_folders.returns((10, 1), (25, math.nan), (40, 3)))
    curve = curves.curve(Group("a", [one]), RETURN, "frames")
    assert curve is not None
    assert curve.x.tolist() == [10, 25, 40]
    np.testing.assert_array_equal(curve.y, [1, math.nan, 3])
    assert curve.low.tolist() == curve.high.tolist() == curve.runs.tolist() == []
    over_time = curves.curve(Group("a", [one]), RETURN, "seconds")
    assert over_time is not None
    assert over_time.x.tolist() == [1, 2, 3]
    assert curves.curve(Group("a", [one]), "unknown", "frames") is None


def test_several_runs_are_a_mean_between_the_lowest_and_the_highest(
    tmp_path: pathlib.Path,
) -> None:
    group = Group(
        "ours",
        [
            make(tmp_path / "a", settings(0), run_folders.returns((0, 0), (199, 199))),
            make(tmp_path / "b", settings(1), run_folders.returns((100, 400), (299, 400))),
            make(tmp_path / "c", settings(2), run_folders.returns((50, 100), (150, 100))),
            make(tmp_path / "d", settings(3)),  # died before its first record
        ],
    )
    curve = curves.curve(group, RETURN, "frames")
    assert curve is not None
    # A point for each frame from where the last one begins to where the last one ends.
    assert curve.x.tolist() == list(range(100, 300))
    at = curve.x.tolist().index
    for x, mean, low, high, runs in (
        (100, (100 + 400 + 100) / 3, 100, 400, 3),
        (150, (150 + 400 + 100) / 3, 100, 400, 3),
        (160, (160 + 400) / 2, 160, 400, 2),
        (199, (199 + 400) / 2, 199, 400, 2),
        (210, 400, 400, 400, 1),
        (299, 400, 400, 400, 1),
    ):
        point = [column[at(x)] for column in (curve.y, curve.low, curve.high, curve.runs)]
        assert point == pytest.approx([mean, low, high, runs]), x


def test_a_gap_of_one_run_is_the_others_alone(tmp_path: pathlib.Path) -> None:
    group = Group(
        "ours",
        [
            make(tmp_path / "a", settings(0), run_folders.returns((0, 1), (199, 1))),
            make(
                tmp_path / "b",
                settings(1),
                run_folders.returns((0, 3), (100, 3), (120, math.nan), (140, 3), (199, math.inf)),
            ),
        ],
    )
    curve = curves.curve(group, RETURN, "frames")
    assert curve is not None
    assert curve.y[[50, 110, 130, 160]].tolist() == [2, 1, 1, 1]
    assert curve.runs[[50, 110, 130, 160]].tolist() == [2, 1, 1, 1]


def test_runs_with_one_record_at_one_place(tmp_path: pathlib.Path) -> None:
    runs = [
        make(tmp_path / str(i), settings(i), run_folders.returns((10, float(i)))) for i in (0, 1)
    ]
    curve = curves.curve(Group("ours", runs), RETURN, "frames")
    assert curve is not None
    assert [c.tolist() for c in curve] == [[10], [0.5], [0], [1], [2]]


def test_thinning_keeps_peaks_gaps_and_ends() -> None:
    x = np.arange(100_000, dtype=np.float64)
    y = np.sin(x / 1000)
    y[31_415], y[27_182], y[77_777] = 50.0, -50.0, math.nan
    thin_x, thin_y = curves.thin(x, y)
    assert len(thin_x) < 1000
    assert np.all(np.diff(thin_x) > 0)
    assert {0.0, 27_182.0, 31_415.0, 77_777.0, 99_999.0} <= set(thin_x.tolist())
    np.testing.assert_array_equal(thin_y, y[thin_x.astype(int)])
    few_x, few_y = curves.thin(x[:600], y[:600])
    assert (few_x.tolist(), few_y.tolist()) == (x[:600].tolist(), y[:600].tolist())
