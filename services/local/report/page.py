"""Puts a page together: `seedpod report` writes one to a file, the launcher serves one live.

A page is a list of blocks, as JSON; assets/page.js and assets/charts.js make of it what is seen. So
whatever a run says, its name, its settings, its failure, is data on the page and never markup.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.local.report import charts, curves, tables
from services.local.report.curves import Group
from services.local.report.run import Recording, Run
from services.local.report.tables import Block

_VIDEO_BYTES = 8 << 20
_ALL_VIDEOS_BYTES = 32 << 20


def report(runs: Sequence[Run]) -> str:
    """A page about runs that needs nothing but itself, as HTML."""
    groups = curves.group(runs)
    blocks = [
        tables.runs(groups),
        tables.differences(groups),
        *_chart_blocks(groups, tables.evaluations(runs), _embedded_videos(runs)),
    ]
    now = datetime.datetime.now().astimezone()
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    page = {
        "title": f"seedpod: {title}",
        "subtitle": f"Written {now:%Y-%m-%d %H:%M %Z}.",
        "blocks": [block for block in blocks if block is not None],
    }
    return _html(page)


def live(run: Run, values: Mapping[str, str]) -> dict[str, Any]:
    """What the page of a run under way shows now.

    Args:
      run: Its history is up to date.
      values: What the live table in the terminal shows.
    """
    videos = [
        # The time tells a browser of a new file of the same name.
        _video(found, f"videos/{found.path.name}?{found.modified_ns}", found.path.name)
        for found in run.newest_recordings()
    ]
    blocks = [
        {"kind": "values", "id": "values", "title": "Now", "values": list(values.items())},
        *_chart_blocks(
            [Group(run.name, [run])], tables.evaluations([run]), _videos_block(videos, [])
        ),
    ]
    return {
        "title": f"seedpod: {run.name}",
        "subtitle": f"A run under way in {run.folder}.",
        "blocks": [block for block in blocks if block is not None],
    }


def live_html() -> str:
    """The page that asks the launcher for `live` again and again, as HTML."""
    return _html(None)


# Charts.


def _chart_blocks(groups: Sequence[Group], *after_learning: Block | None) -> list[Block | None]:
    """All charts, and other blocks after those of what was learned."""
    runs = [run for group in groups for run in group.runs]
    note = ""
    if any(len(group.runs) > 1 for group in groups):
        note = (
            "A curve of several runs that differ by seeds only is their mean, and the band around"
            " it reaches from the lowest to the highest; dashed where not all have come so far."
        )
    shown = (charts.RETURN, charts.EVALUATION, charts.LENGTH, charts.SPEED, *charts.TRAINING)
    tags = {tag for run in runs for tag in run.history.tags} - {q.tag for q in shown}
    others = sorted(t for t in tags if not t.startswith(("cpu_seconds/", "bottleneck/")))
    curves_legend = charts.legend(groups)
    costs = [charts.cost(run, f"cost-{i}") for i, run in enumerate(runs)]
    parts = [chart for chart in (charts.bottleneck(runs), *costs) if chart is not None]
    return [
        _charts_block(
            "learning",
            "Learning and speed",
            [
                charts.lines(groups, charts.RETURN),
                charts.lines(groups, charts.RETURN, "seconds"),
                charts.lines(groups, charts.EVALUATION),
                charts.lines(groups, charts.LENGTH),
                charts.lines(groups, charts.SPEED, "seconds"),
            ],
            curves_legend,
            note,
            wide=True,
        ),
        *after_learning,
        _charts_block(
            "cost",
            "Cost and bottleneck",
            parts,
            charts.part_legend(parts),
            "What limits throughput, and CPU seconds of the whole system per 1,000 environment"
            " frames, by part.",
            wide=True,
        ),
        _charts_block(
            "training",
            "Training",
            [charts.lines(groups, q) for q in charts.TRAINING],
            curves_legend,
        ),
        _charts_block(
            "others",
            "Everything else that was recorded",
            [charts.lines(groups, charts.Quantity(tag, tag)) for tag in others],
            curves_legend,
            folded=True,
        ),
    ]


def _charts_block(
    id_: str,
    title: str,
    drawn: Sequence[Block | None],
    legend: list[dict[str, str]],
    note: str = "",
    wide: bool = False,
    folded: bool = False,
) -> Block | None:
    found = [chart for chart in drawn if chart is not None]
    if not found:
        return None
    return {
        "kind": "charts",
        "id": id_,
        "title": title,
        "note": note,
        "wide": wide,
        "folded": folded,
        "legend": legend,
        "charts": found,
    }


# Videos.


def _embedded_videos(runs: Sequence[Run]) -> Block | None:
    """The newest videos and pictures of each run, in the page itself, as far as there is room."""
    videos, left_out, room = [], [], _ALL_VIDEOS_BYTES
    for run in runs:
        taken = 0
        for recording in run.newest_recordings(_VIDEO_BYTES):
            if recording.bytes > room:
                continue
            with contextlib.suppress(FileNotFoundError):  # the oldest are removed meanwhile
                data = recording.path.read_bytes()
                taken, room = taken + 1, room - len(data)
                source = f"data:{recording.type};base64,{base64.b64encode(data).decode()}"
                videos.append(_video(recording, source, f"{run.name}: {recording.path.name}"))
        if rest := len(run.recordings()) - taken:
            left_out.append(f"{rest} of {run.folder / 'videos'}")
    return _videos_block(videos, left_out)


def _video(recording: Recording, source: str, caption: str) -> dict[str, str]:
    return {"source": source, "type": recording.type, "caption": caption}


def _videos_block(videos: list[dict[str, str]], left_out: list[str]) -> Block | None:
    if not videos and not left_out:
        return None
    note = "The newest of each run."
    if left_out:
        limit = f"of at most {_VIDEO_BYTES >> 20} MiB each, {_ALL_VIDEOS_BYTES >> 20} MiB together"
        note = f"The newest of each run, {limit}. Left out: {', '.join(left_out)}."
    return {"kind": "videos", "id": "videos", "title": "Videos", "note": note, "videos": videos}


# HTML.


def _html(page: Block | None) -> str:
    """A page with its data, or one that asks for them."""
    style = _asset("style.css")
    scripts = [_asset("charts.js"), _asset("page.js")]
    # Nothing runs but these scripts, and nothing is loaded: not even markup that found its way
    # into the page could do more than show itself.
    policy = [
        "default-src 'none'",
        f"style-src {_digest(style)}",
        f"script-src {' '.join(_digest(script) for script in scripts)}",
        "img-src data: blob:",
        "media-src data: blob:",
        *([] if page is not None else ["connect-src 'self'"]),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    live = " data-live" if page is None else ""
    # `</script>` in a name would end the element.
    data = json.dumps(page, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{"; ".join(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>seedpod</title>
<style>{style}</style>
</head>
<body{live}>
<header><h1>seedpod</h1><p id="subtitle"></p><p id="state"></p></header>
<noscript>This page draws its charts with JavaScript, which is switched off.</noscript>
<main></main>
<script type="application/json" id="page">{data}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _asset(name: str) -> str:
    return (importlib.resources.files("services.local.report") / "assets" / name).read_text()


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
