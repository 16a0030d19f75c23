"""What a report says of runs in any state, and that it says it as data."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pathlib
import re
from typing import Any

import pytest

from services.local import cli
from services.local.process import LaunchError
from services.local.report import charts, page, run, tables
from services.local.report.run import Run
from tests.unit.local import run_folders
from tests.unit.local.run_folders import Records


def read(folder: pathlib.Path) -> Run:
    return run.read(folder, folder.name)


def document(html: str) -> dict[str, Any]:
    """The data in a page."""
    (text,) = re.findall(r'<script type="application/json" id="page">(.*?)</script>', html)
    found: dict[str, Any] = json.loads(text)
    return found


def block(html: str, id_: str) -> dict[str, Any]:
    (found,) = [b for b in document(html)["blocks"] if b["id"] == id_]
    return dict(found)


def cells(html: str, id_: str = "runs") -> list[dict[str, str]]:
    table = block(html, id_)
    return [dict(zip(table["columns"], row["cells"], strict=True)) for row in table["rows"]]


def costs(*points: tuple[int, float, float]) -> Records:
    """Records a second after each other: frames, CPU seconds of environment and inference."""
    return [
        (
            frames,
            1001.0 + i,
            {
                "cpu_seconds/environment": environment,
                "cpu_seconds/inference": inference,
                "speed/frames_per_second": 1.0,
                "bottleneck/environment": float(i < 2),
                "bottleneck/inference": float(i >= 2),
                "bottleneck/training": 0.0,
                "bottleneck/replay": 0.0,
            },
        )
        for i, (frames, environment, inference) in enumerate(points)
    ]


# Charts.


def test_cost_is_between_records_of_a_session(tmp_path: pathlib.Path) -> None:
    folder = run_folders.make(
        tmp_path,
        costs((100, 0.5, 0.1), (200, 1.0, 0.3), (200, 1.5, 0.3), (400, 3.0, 1.3)),
        costs((500, 0.1, 0.2), (600, 0.3, 0.2)),
    )
    chart = charts.cost(read(folder), "cost")
    assert chart is not None
    # Without frames between them, two records are one; a learner's clocks begin at 0.
    assert chart["start"] == [1, 2, 5]
    assert chart["end"] == [2, 4, 6]
    found = {series["name"]: series["y"] for series in chart["series"]}
    assert found == {"environment": [5, 10, 2], "inference": [2, 5, 0]}


def test_the_bottleneck_is_the_newest_record_s(tmp_path: pathlib.Path) -> None:
    first, last = (costs(*((frames + i, 0.0, 0.0) for i in range(4))) for frames in (0, 20))
    one = read(run_folders.make(tmp_path / "one", first, costs((10, 0.0, 0.0)), last))
    chart = charts.bottleneck([one, read(run_folders.make(tmp_path / "none", []))])
    assert chart is not None
    assert [series["name"] for series in chart["series"]] == ["environment", "inference"]
    # The session of one record took a second; of its time nothing is known.
    (row,) = chart["rows"]
    assert row["name"] == "one"
    assert (row["start"], row["end"], row["part"]) == ([1, 2, 6, 7], [2, 4, 7, 9], [0, 1, 0, 1])


def test_a_long_bottleneck_is_told_in_pieces(tmp_path: pathlib.Path) -> None:
    records = [
        (i, 1001.0 + i, {f"bottleneck/{p}": float(p == part) for p in charts.LIMITS})
        for i in range(9001)
        for part in ["training" if i > 4500 else "environment"]
    ]
    chart = charts.bottleneck([read(run_folders.make(tmp_path, records))])
    assert chart is not None
    (row,) = chart["rows"]
    assert (row["start"], row["end"], row["part"]) == ([1, 4501], [4501, 9001], [0, 1])


def test_numbers_that_json_has_not_are_gaps(tmp_path: pathlib.Path) -> None:
    folder = run_folders.make(tmp_path, run_folders.returns((1, math.nan), (2, math.inf), (3, 4)))
    html = page.report([read(folder)])
    (chart, *_) = block(html, "learning")["charts"]
    assert chart["series"][0]["x"] == [1, 2, 3]
    assert chart["series"][0]["y"] == [None, None, 4]


def test_a_return_that_is_no_number(tmp_path: pathlib.Path) -> None:
    folder = run_folders.make(tmp_path, run_folders.returns((1, 4), (2, math.nan)))
    (row,) = cells(page.report([read(folder)]))
    assert row["return"] == "-"


# Tables.


def test_a_run_that_has_ended_well(tmp_path: pathlib.Path) -> None:
    folder = run_folders.make(
        tmp_path / "mine",
        [*costs((10, 1, 1), (60, 2, 2)), *run_folders.returns((60, 12.5))],
        costs((60, 0, 0), (110, 1, 1)),
        settings={"name": "n", "actor": {"seed": 3}, "learner": {"seed": 4, "total_frames": 100}},
        summary={"failure": None},
    )
    (row,) = cells(page.report([read(folder)]))
    assert row == {
        "run": "mine",
        "curve": "n",
        "seed": "4 / 3",
        "state": "finished",
        "frames": "110",
        "time at work": "4 s",
        "return": "12.50",
        "frames/s": "50",
        # 4 seconds for 100 frames between first and last records.
        "CPU-s/1k frames": "40.00",
    }


@pytest.mark.parametrize(
    ("summary", "state"),
    [
        ({"failure": "the learner <died>"}, "failed: the learner <died>"),
        ({"failure": None}, "stopped before its 100 frames"),
        (None, "not known"),
    ],
)
def test_a_run_that_has_recorded_nothing(
    tmp_path: pathlib.Path, summary: dict[str, Any] | None, state: str
) -> None:
    html = page.report([read(run_folders.make(tmp_path, [], summary=summary))])
    (row,) = cells(html)
    assert row["state"] == state
    assert (row["frames"], row["return"], row["frames/s"]) == ("0", "-", "-")
    assert [b["id"] for b in document(html)["blocks"]] == ["runs"]
    assert "<died>" not in html


def test_a_run_that_is_under_way(tmp_path: pathlib.Path) -> None:
    folder = run_folders.make(tmp_path, run_folders.returns((1, 2)))
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (row,) = cells(page.report([read(folder)]))
        assert row["state"] == "under way"
    (row,) = cells(page.report([read(folder)]))
    assert row["state"] == "not running; it has not said how it ended"


def test_the_newest_evaluation_is_shown_and_its_levels_where_there_are_several(
    tmp_path: pathlib.Path,
) -> None:
    figures = {"episodes": 9, "mean_return": 0.5, "standard_error": 0.1, "median_return": 1.0}
    level = {**figures, "mean_length": 44.25, "values": {"win": {"mean": 0.5}}}
    lines = [
        {"frames": 1, **figures},
        {"frames": 12345, "greedy": True, **level, "levels": {"easy": level, "hard": figures}},
    ]
    folder = run_folders.make(tmp_path / "r", [])
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "evaluations.jsonl").write_text(f'{text}[1]\n{{"torn": ')
    found = tables.evaluations([read(folder), read(run_folders.make(tmp_path / "none", []))])
    assert found is not None
    assert found["columns"][-1] == "win"
    whole = ["12,345", "greedy", "9", "0.500 ± 0.100", "1.000"]
    assert [row["cells"] for row in found["rows"]] == [
        ["r", "all", *whole, "44.25", "0.500"],
        ["r", "easy", *whole, "44.25", "0.500"],
        ["r", "hard", *whole, "-", "-"],
    ]


def test_figures_that_are_no_numbers(tmp_path: pathlib.Path) -> None:
    folder = run_folders.make(tmp_path, [])
    line = {"frames": "<b>", "mean_return": None, "values": [1], "levels": {"a": 1, "b": 2}}
    (folder / "evaluations.jsonl").write_text(json.dumps(line))
    (row, *_) = cells(page.report([read(folder)]), "evaluations")
    assert (row["at frames"], row["return"], row["median"]) == ("-", "-", "-")


def test_only_settings_that_differ_are_listed(tmp_path: pathlib.Path) -> None:
    runs = [
        read(run_folders.make(tmp_path / name, [], settings={"name": name, "learner": {"a": 1}}))
        for name in ("x", "y")
    ]
    assert cells(page.report(runs), "differences") == [{"setting": "name", "x": "x", "y": "y"}]
    assert [b["id"] for b in document(page.report(runs[:1]))["blocks"]] == ["runs"]


# Videos.


def video(folder: pathlib.Path, name: str, size: int, age: float) -> pathlib.Path:
    (folder / "videos").mkdir(exist_ok=True)
    path = folder / "videos" / name
    path.write_bytes(name.encode().ljust(size, b"."))
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_the_newest_videos_are_in_the_page(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_VIDEO_BYTES", 100)
    monkeypatch.setattr(page, "_ALL_VIDEOS_BYTES", 150)
    one, other = (run_folders.make(tmp_path / name, []) for name in ("one", "other"))
    video(one, "old.gif", 10, age=9)
    video(one, "new.mp4", 100, age=5)
    video(one, "large.gif", 101, age=1)
    video(one, "map.png", 20, age=3)
    video(one, ".part.gif", 10, age=0)
    video(one, "notes.txt", 10, age=0)
    (one / "videos" / "link.gif").symlink_to(one / "experiment.yaml")
    video(other, "no-room.gif", 40, age=0)
    found = block(page.report([read(one), read(other)]), "videos")
    assert [v["caption"] for v in found["videos"]] == ["one: new.mp4", "one: map.png"]
    assert [v["type"] for v in found["videos"]] == ["video/mp4", "image/png"]
    assert found["videos"][1]["source"].startswith("data:image/png;base64,bWFwLnBuZy4u")
    assert found["note"].endswith(f"Left out: 2 of {one}/videos, 1 of {other}/videos.")


# The page as a whole.


def test_what_comes_from_a_run_is_no_markup(tmp_path: pathlib.Path) -> None:
    evil = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\u2028"
    folder = run_folders.make(
        tmp_path / "<b>run&amp;",
        [(1, 1001, {f"training/{evil}": 1.0})],
        settings={"name": evil, "learner": {evil: evil}},
        summary={"failure": evil},
    )
    other = run_folders.make(tmp_path / "other", [])
    html = page.report([read(folder), read(other)])
    assert "<b>" not in html
    assert "<img" not in html
    assert "alert(1)</script>" not in html
    # Its own two, and the data.
    assert (html.count("<script"), html.count("</script>")) == (3, 3)
    (row, _) = cells(html)
    assert (row["run"], row["curve"], row["state"]) == ("<b>run&amp;", evil, f"failed: {evil}")


def test_nothing_is_loaded_and_only_its_own_scripts_run(tmp_path: pathlib.Path) -> None:
    html = page.report([read(run_folders.make(tmp_path, []))])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    assert not re.findall(r'(?:src|href)="(?!data:,")', html)


# The command.


def test_the_command_writes_the_page(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = run_folders.make(tmp_path / "a" / "same", run_folders.returns((1, 2)))
    other = run_folders.make(tmp_path / "b" / "same", run_folders.returns((1, 2)))
    output = tmp_path / "page.html"
    arguments = [str(one), str(other), f"{one}/", f"--output={output}"]
    assert cli.main(["report", *arguments]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert [row["run"] for row in cells(output.read_text())] == [str(one), str(other)]


@pytest.mark.parametrize("content", [None, "- a list", "a: [", b"\xff\xfe"])
def test_a_folder_that_is_no_run_is_named(
    tmp_path: pathlib.Path, content: str | bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    good = run_folders.make(tmp_path / "good", [])
    bad = tmp_path / "bad"
    bad.mkdir()
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (bad / "experiment.yaml").write_bytes(data)
    with pytest.raises(LaunchError, match=re.escape(str(bad))):
        read(bad)
    output = tmp_path / "page.html"
    assert cli.main(["report", str(good), str(bad), f"--output={output}"]) == 1
    assert str(bad) in capsys.readouterr().err
    assert not output.exists()
