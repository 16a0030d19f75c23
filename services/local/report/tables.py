"""The tables of a report: its runs, and what is different about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from services.local.report import charts, curves
from services.local.report.curves import Group
from services.local.report.history import Series
from services.local.report.run import Run

Block = dict[str, Any]

_FOOTBALL = ("goal_difference", "win", "draw", "loss")  # in the order in which it is usually told


def runs(groups: Sequence[Group]) -> Block:
    """A line for each run: how it is, how far it has come, what it has reached and cost."""
    columns = {
        "run": False,
        "curve": False,
        "seed": True,
        "state": False,
        "frames": True,
        "time at work": True,
        "return": True,
        "frames/s": True,
        "CPU-s/1k frames": True,
    }
    rows = []
    for i, group in enumerate(groups):
        for run in group.runs:
            cells = [run.name, group.name, _seed(run), _state(run), f"{run.history.frames:,}"]
            cells += [_duration(run.history.seconds), _newest(run, "episode/mean_return")]
            cells += _rates(run)
            rows.append({"color": charts.color(i), "cells": cells})
    return {
        "kind": "table",
        "id": "runs",
        "title": "Runs",
        "note": "Return: mean of the last 100 training episodes. Time at work counts from the"
        " learner's start, without pauses between sessions. CPU seconds are the whole system's.",
        "columns": list(columns),
        "numeric": list(columns.values()),
        "rows": rows,
    }


def _seed(run: Run) -> str:
    sections = (run.settings.get(name) for name in ("learner", "actor"))
    seeds = [str(section.get("seed")) for section in sections if isinstance(section, dict)]
    return " / ".join(dict.fromkeys(seeds)) or "-"


def _state(run: Run) -> str:
    """How it is, in words."""
    running = run.is_running()
    if running:
        return "under way"
    summary = run.summary()
    if summary.get("failure"):
        return f"failed: {summary['failure']}"
    learner = run.settings.get("learner")
    total = learner.get("total_frames") if isinstance(learner, dict) else None
    if not summary:
        return "not known" if running is None else "not running; it has not said how it ended"
    if isinstance(total, int) and run.history.frames < total:
        return f"stopped before its {total:,} frames"
    return "finished"


def _rates(run: Run) -> list[str]:
    """Frames per second and CPU seconds per 1,000 frames, of the whole run."""
    frames, seconds, _ = _growth(run.history.parts("speed/"))
    cpu_frames, _, cpu_seconds = _growth(run.history.parts("cpu_seconds/"))
    return [
        f"{frames / seconds:,.0f}" if seconds else "-",
        f"{1000 * cpu_seconds / cpu_frames:,.2f}" if cpu_frames else "-",
    ]


def _growth(sessions: list[dict[str, Series]]) -> tuple[float, float, float]:
    """Frames, seconds and values of all parts, from each session's first record to its last."""
    total = np.zeros(3)
    for session in sessions:
        first = next(iter(session.values()))
        if len(first.frames):
            values = sum(s.values[-1] - s.values[0] for s in session.values())
            total += [np.ptp(first.frames), np.ptp(first.seconds), values]
    frames, seconds, value = total.tolist()
    return frames, seconds, value


def _newest(run: Run, tag: str) -> str:
    values = run.history.series(tag).values
    return _number(float(values[-1])) if len(values) else "-"


def differences(groups: Sequence[Group]) -> Block | None:
    """The settings that set groups apart; None if there is only one."""
    differing = curves.differences([group.runs[0] for group in groups])
    if not differing:
        return None
    return {
        "kind": "table",
        "id": "differences",
        "title": "Settings that differ",
        "columns": ["setting", *(group.name for group in groups)],
        "numeric": [False] * (1 + len(groups)),
        "rows": [
            {"cells": [key, *(curves.setting_text(value) for value in row)]}
            for key, row in differing.items()
        ],
    }


def evaluations(of: Sequence[Run]) -> Block | None:
    """The newest evaluation of each run, as a whole and by level; None if there is none."""
    newest = [(run, found[-1]) for run in of if (found := run.evaluations())]
    if not newest:
        return None
    rows = [
        (run.name, level, evaluation, figures)
        for run, evaluation in newest
        for level, figures in {"": evaluation, **_levels(evaluation)}.items()
    ]
    told = {name for *_, figures in rows for name in _mapping(figures.get("values"))}
    names = [name for name in _FOOTBALL if name in told] + sorted(told.difference(_FOOTBALL))
    columns = ["run", "level", "at frames", "policy", "episodes", "return", "median", "length"]
    return {
        "kind": "table",
        "id": "evaluations",
        "title": "Evaluation",
        "note": "The newest of each run; mean ± standard error over its episodes.",
        "columns": columns + [name.replace("_", " ") for name in names],
        "numeric": [name not in ("run", "level", "policy") for name in columns]
        + [True] * len(names),
        "rows": [
            {
                "cells": [
                    name,
                    level or "all",
                    _figure(evaluation.get("frames"), "{:,}"),
                    "greedy" if evaluation.get("greedy") else "sampled",
                    _figure(figures.get("episodes"), "{:,}"),
                    _mean(figures.get("mean_return"), figures.get("standard_error")),
                    _figure(figures.get("median_return")),
                    _figure(figures.get("mean_length")),
                    *(_mean(*_pair(_mapping(figures.get("values")).get(n))) for n in names),
                ]
            }
            for name, level, evaluation, figures in rows
        ],
    }


def _levels(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Figures by level, where there are several."""
    levels = _mapping(evaluation.get("levels"))
    return {name: _mapping(f) for name, f in levels.items()} if len(levels) > 1 else {}


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _pair(value: object) -> tuple[object, object]:
    pair = _mapping(value)
    return pair.get("mean"), pair.get("standard_error")


def _mean(mean: object, error: object) -> str:
    return _figure(mean) + ("" if error is None else f" ± {_figure(error)}")


def _figure(value: object, text: str = "") -> str:
    """A number of a file that anybody may have written."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-"
    return text.format(value) if text else _number(float(value))


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    decimals = next(d for size, d in ((1000, 0), (100, 1), (10, 2), (-1, 3)) if abs(value) > size)
    return f"{value:,.{decimals}f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {round(seconds) % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"
