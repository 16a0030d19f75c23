"""The report and the page of a run under way, in a real browser: what is drawn, and where.

In a window of 1400 pixels a wide chart has 596, of which the plot takes 58 to 582, and 10 to 190
from top to bottom.
"""

from __future__ import annotations

import base64
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from services.local import cli
from services.local.report import live
from services.shared.config import LocalConfig
from tests.integration.browser import Browser, needs_browser
from tests.unit.local import run_folders

pytestmark = needs_browser

# 1 x 1, black.
GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw==")
EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
RETURN = "episode-mean_return-frames"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report about runs with known curves."""
    folder = tmp_path_factory.mktemp("report")

    def settings(name: str, seed: int = 0) -> dict[str, Any]:
        return {"name": name, "learner": {"seed": seed, "total_frames": 100}}

    straight = [
        *run_folders.returns((0, 0), (50, 5), (100, 10)),
        *_parts((0, 0.0, "environment"), (50, 0.1, "environment"), (100, 0.3, "training")),
    ]
    runs = [run_folders.make(folder / "straight", straight, settings=settings("straight"))]
    for seed, level in enumerate((2, 6)):
        flat = run_folders.returns((0, level), (100, level))
        runs.append(
            run_folders.make(folder / f"flat-{seed}", flat, settings=settings("flat", seed))
        )
    broken = run_folders.returns((0, 8), (40, 8), (50, math.nan), (60, 3))
    runs.append(
        run_folders.make(
            folder / "broken", broken, settings=settings("broken"), summary={"failure": EVIL}
        )
    )
    runs.append(run_folders.make(folder / EVIL.replace("/", ""), [], settings=settings(EVIL)))
    (runs[0] / "videos").mkdir()
    (runs[0] / "videos" / "episode.gif").write_bytes(GIF)
    output = folder / "report.html"
    assert cli.main(["report", *map(str, runs), f"--output={output}"]) == 0
    return output.as_uri()


def _parts(*points: tuple[int, float, str]) -> run_folders.Records:
    """Records a second after each other: frames, CPU seconds of training, the bottleneck."""
    parts = ("environment", "inference", "training", "replay")
    return [
        (
            frames,
            1001.0 + i,
            {"cpu_seconds/training": cpu, **{f"bottleneck/{p}": float(p == part) for p in parts}},
        )
        for i, (frames, cpu, part) in enumerate(points)
    ]


def shapes(browser: Browser, figure: str, key: str, attribute: str) -> list[Any]:
    """An attribute of what a chart has drawn of a series."""
    script = f"""[...document.querySelectorAll('#{figure} [data-key={json.dumps(key)}]')]
        .map(shape => shape.getAttribute({json.dumps(attribute)}))"""
    found: list[Any] = browser.evaluate(script)
    return found


def center(browser: Browser, selector: str) -> tuple[float, float]:
    """Scrolls to an element and returns where its middle is in the window."""
    script = f"""(() => {{
        const element = document.querySelector({json.dumps(selector)});
        element.scrollIntoView({{block: 'center'}});
        const box = element.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    }})()"""
    x, y = browser.evaluate(script)
    return x, y


def texts(browser: Browser, selector: str) -> list[str]:
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    found: list[str] = browser.evaluate(script)
    return found


def test_the_curves_are_drawn_where_they_belong(browser: Browser, report: str) -> None:
    browser.open(report)
    assert shapes(browser, RETURN, "straight", "d") == ["M58.0,190.0L320.0,100.0L582.0,10.0"]
    # The mean of 2 and 6, from the left to the right.
    (flat,) = shapes(browser, RETURN, "flat (2 runs)", "d")
    points = [tuple(map(float, p.split(","))) for p in flat.removeprefix("M").split("L")]
    assert (points[0], points[-1]) == ((58, 118), (582, 118))
    assert {y for _, y in points} == {118}
    (band,) = browser.evaluate(
        f"[...document.querySelectorAll('#{RETURN} .band')].map(e => e.getAttribute('d'))"
    )
    edges = {float(point.split(",")[1]) for point in band.strip("MZ").split("L")}
    assert edges == {82, 154}
    # What is not a number leaves a gap; a point without neighbours is a dot.
    assert shapes(browser, RETURN, "broken", "d") == ["M58.0,46.0L267.6,46.0", None]
    assert shapes(browser, RETURN, "broken", "cx") == [None, "372.4"]
    assert shapes(browser, RETURN, "broken", "cy") == [None, "136.0"]
    assert texts(browser, f"#{RETURN} text") == [
        *("0", "5", "10"),
        *("0", "20", "40", "60", "80", "100"),
        "environment frames",
    ]
    # It takes the seconds 1 to 3 of the 4 that the longest run takes.
    (over_time,) = shapes(browser, "episode-mean_return-seconds", "straight", "d")
    assert over_time == "M189.0,190.0L320.0,100.0L451.0,10.0"


def test_cost_and_bottleneck_are_drawn(browser: Browser, report: str) -> None:
    browser.open(report)
    # 2 and 4 CPU seconds per 1,000 frames; of seconds 1 to 2 and 2 to 3.
    (area,) = shapes(browser, "cost-0", "part training", "d")
    assert area == (
        "M232.7,100.0L407.3,100.0L407.3,190.0L232.7,190.0Z"
        "M407.3,10.0L582.0,10.0L582.0,190.0L407.3,190.0Z"
    )
    assert shapes(browser, "bottleneck", "part environment", "x") == ["232.7"]
    assert shapes(browser, "bottleneck", "part environment", "width") == ["174.7"]
    assert shapes(browser, "bottleneck", "part training", "x") == ["407.3"]


def test_the_legend_hides_a_curve_in_all_charts(browser: Browser, report: str) -> None:
    browser.open(report)
    button = ".legend button[data-key=straight]"
    browser.click(*center(browser, button))
    assert browser.evaluate(f"document.querySelector('{button}').ariaPressed") == "false"
    assert browser.evaluate("document.querySelectorAll('path[data-key=straight]').length") == 0
    # The axis is that of the others: from 2 to 8, in steps of 2.
    assert texts(browser, f"#{RETURN} text.y") == ["2", "4", "6", "8"]
    (flat,) = shapes(browser, RETURN, "flat (2 runs)", "d")
    assert flat.startswith("M58.0,130.0L")
    browser.click(*center(browser, button))
    assert browser.evaluate(f"document.querySelector('{button}').ariaPressed") == "true"
    assert shapes(browser, RETURN, "straight", "d") == ["M58.0,190.0L320.0,100.0L582.0,10.0"]


def test_the_pointer_shows_values(browser: Browser, report: str) -> None:
    browser.open(report)
    x, y = center(browser, f"#{RETURN} svg")
    browser.move(x + 22, y)  # of 596 pixels, 320 belong to 50 frames
    assert texts(browser, ".tooltip:not([hidden]) > div") == [
        "50 frames",
        "straight: 5",
        "flat (2 runs): 4 (2 to 6, 2 runs)",
        # At 50 it has no value.
        "broken: –",  # noqa: RUF001
    ]
    x, y = center(browser, "#cost-0 svg")
    browser.move(x + 200, y)
    assert texts(browser, ".tooltip:not([hidden]) > div")[1:] == ["training: 4", "total: 4"]
    browser.move(1, 1)
    assert texts(browser, ".tooltip:not([hidden])") == []


def test_nothing_goes_wrong_and_nothing_is_asked_for(browser: Browser, report: str) -> None:
    for width, dark in ((1400, False), (420, True)):
        browser.open(report, width, dark=dark)
        browser.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        browser.wait_for("[...document.querySelectorAll('figure .chart')].every(c => c.firstChild)")
        browser.wait_for("document.querySelector('#videos img').naturalWidth == 1")
        assert browser.errors == []
        assert [u for u in browser.requests if not u.startswith("data:")] == [report]
        # No sideways scrolling but of tables, in their own frames.
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        light = browser.evaluate(
            "Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g)) > 128"
        )
        assert light is not dark
        assert browser.evaluate("document.querySelectorAll('svg path.line').length") >= 4


def test_what_comes_from_a_run_is_text(browser: Browser, report: str) -> None:
    browser.open(report)
    cells = texts(browser, "#runs td")
    assert f"failed: {EVIL}" in cells
    assert EVIL in cells
    # The video's; none of what a run says.
    assert browser.evaluate("document.images.length") == 1
    assert browser.evaluate("document.scripts.length") == 3
    assert browser.errors == []


def test_a_run_under_way_is_followed(browser: Browser, tmp_path: pathlib.Path) -> None:
    values = {"frames": "50 of 100"}
    records = run_folders.returns((0, 0), (50, 5), (100, 10))
    run = run_folders.make(tmp_path / "run", records[:2])
    (events,) = (run / "tensorboard").iterdir()
    curve = f"document.querySelector('#{RETURN} .line').getAttribute('d')"
    with live.serve(LocalConfig(), run, lambda: values) as address:
        assert address is not None
        browser.open(address)
        browser.wait_for("document.querySelectorAll('svg').length >= 2")
        # A chart as wide as the report's, up to 6.
        assert browser.evaluate(curve) == "M58.0,190.0L582.0,40.0"
        assert texts(browser, "#values dd") == ["50 of 100"]
        values["frames"] = "100 of 100"
        (run / "videos").mkdir()
        (run / "videos" / "episode.gif").write_bytes(GIF)
        events.write_bytes(run_folders.events(records))
        browser.wait_for(f"{curve} == 'M58.0,190.0L320.0,100.0L582.0,10.0'")
        browser.wait_for("document.querySelector('#videos img')?.naturalWidth == 1")
        browser.wait_for("document.querySelector('#values dd').textContent == '100 of 100'")
        assert browser.errors == []
        own = (address, "blob:", "data:")
        assert [url for url in browser.requests if not url.startswith(own)] == []
        assert texts(browser, "#state") == [""]
    browser.wait_for("document.querySelector('#state').textContent.startsWith('No answer since')")
    # What was last seen stays.
    assert browser.evaluate(curve) == "M58.0,190.0L320.0,100.0L582.0,10.0"
