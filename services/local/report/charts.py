"""What each chart shows: the JSON that assets/charts.js draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from services.local.report import curves
from services.local.report.curves import Group
from services.local.report.history import FloatArray, Series
from services.local.report.run import Run

_COLORS = 8
_INTERVALS = 300
_COST_INTERVALS = 100
PARTS = ("environment", "actor", "front_ends", "inference", "training", "learner_other", "replay")
LIMITS = ("environment", "inference", "training", "replay")


class Quantity(NamedTuple):
    """A tag of the event files, and how it is shown.

    Attributes:
      tag: Its name.
      title: Of the chart.
      note: Beside the title: the unit, or what it is the mean of.
      zero: Whether 0 belongs to the axis.
    """

    tag: str
    title: str
    note: str = ""
    zero: bool = False


RETURN = Quantity("episode/mean_return", "Return", "mean of the last 100 training episodes")
EVALUATION = Quantity(
    "evaluation/mean_return", "Return in evaluation", "mean of the newest episodes"
)
LENGTH = Quantity("episode/mean_length", "Episode length", "steps, mean of the last 100", zero=True)
SPEED = Quantity("speed/frames_per_second", "Throughput", "environment frames/s", zero=True)
TRAINING = (
    Quantity("training/loss", "Loss"),
    Quantity("training/policy_loss", "Policy loss"),
    Quantity("training/baseline_loss", "Baseline loss", zero=True),
    Quantity("training/td_error", "TD error", "mean of its size", zero=True),
    Quantity("training/entropy", "Entropy of the policy", "nats", zero=True),
    Quantity("training/policy_lag", "Policy lag", "updates from acting to training", zero=True),
    Quantity("training/gradient_norm", "Gradient norm", "before clipping", zero=True),
)


def color(index: int) -> str:
    """The class of a curve's colour; those beyond the last are dashed."""
    return f"c{index % _COLORS}" + (" dashed" if index >= _COLORS else "")


def legend(groups: Sequence[Group]) -> list[dict[str, str]]:
    """One entry for each curve."""
    return [{"key": g.name, "name": g.name, "color": color(i)} for i, g in enumerate(groups)]


def lines(
    groups: Sequence[Group], quantity: Quantity, over: str = "frames"
) -> dict[str, Any] | None:
    """A curve for each group over `frames` or `seconds`; None if none has recorded the tag."""
    series = []
    for entry, group in zip(legend(groups), groups, strict=True):
        if (curve := curves.curve(group, quantity.tag, over)) is not None:
            columns = {name: numbers(column) for name, column in curve._asdict().items()}
            series.append({**entry, **columns})
    if not series:
        return None
    label = "environment frames" if over == "frames" else "time at work"
    return {
        "kind": "lines",
        "id": f"{quantity.tag}-{over}".replace("/", "-"),
        "title": quantity.title,
        "note": quantity.note,
        "x": {"label": label, "unit": over},
        "y": {"zero": quantity.zero},
        "series": series,
    }


def cost(run: Run, id_: str) -> dict[str, Any] | None:
    """CPU seconds per 1,000 frames over time, by part; None before the second record."""
    start, end, values = [], [], []
    for session in run.history.parts("cpu_seconds/"):
        first = next(iter(session.values()))
        rows = _rows_with_frames(first)
        frames = np.diff(first.frames[rows])
        if not len(frames):
            continue
        start.append(first.seconds[rows][:-1])
        end.append(first.seconds[rows][1:])
        nothing = np.zeros(len(first.frames))
        columns = [session[p].values if p in session else nothing for p in PARTS]
        values.append(np.stack([1000 * np.diff(c[rows]) / frames for c in columns]))
    if not values:
        return None
    parts = np.concatenate(values, axis=1)
    return {
        "kind": "stack",
        "id": id_,
        "title": run.name,
        "note": "CPU-seconds per 1,000 frames",
        "x": {"label": "time at work", "unit": "seconds"},
        "start": numbers(np.concatenate(start)),
        "end": numbers(np.concatenate(end)),
        "series": [
            {**_part(name), "y": numbers(np.maximum(row, 0.0))}
            for name, row in zip(PARTS, parts, strict=True)
            if row.any()
        ],
    }


def _rows_with_frames(series: Series) -> list[int]:
    """Rows of a session, not too many, with not too few frames between them."""
    share = np.ptp(series.frames) / _COST_INTERVALS if len(series.frames) else 0
    kept: list[int] = []
    newest = -math.inf
    for row, frames in enumerate(series.frames.tolist()):
        if frames - newest > share:
            kept.append(row)
            newest = frames
    return kept


def bottleneck(runs: Sequence[Run]) -> dict[str, Any] | None:
    """A row for each run: what limited it, over time; None if that was recorded of none."""
    rows = [row for run in runs if (row := _strip(run)) is not None]
    if not rows:
        return None
    shown = sorted({part for row in rows for part in row["part"]})
    for row in rows:
        row["part"] = [shown.index(part) for part in row["part"]]
    return {
        "kind": "strip",
        "id": "bottleneck",
        "title": "Bottleneck",
        "note": "what limits throughput",
        "x": {"label": "time at work", "unit": "seconds"},
        "series": [_part(LIMITS[part]) for part in shown],
        "rows": rows,
    }


def _strip(run: Run) -> dict[str, Any] | None:
    start: list[float] = []
    end: list[float] = []
    part: list[int] = []
    for session in run.history.parts("bottleneck/"):
        columns = [session[p].values for p in LIMITS if p in session]
        first = next(iter(session.values()))
        if len(columns) != len(LIMITS) or len(first.seconds) < 2:
            continue
        # What a record names has limited since the record before.
        limits = np.argmax(np.stack(columns), axis=0)[1:]
        edges = np.unique(np.linspace(0, len(limits), _INTERVALS + 1).astype(int))
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            most = int(np.bincount(limits[low:high]).argmax())
            if part and part[-1] == most and end[-1] == first.seconds[low]:
                end[-1] = float(first.seconds[high])
            else:
                start.append(float(first.seconds[low]))
                end.append(float(first.seconds[high]))
                part.append(most)
    if not part:
        return None
    return {
        "name": run.name,
        "start": numbers(np.array(start)),
        "end": numbers(np.array(end)),
        "part": part,
    }


def _part(name: str) -> dict[str, str]:
    """A part has the same colour wherever it is shown."""
    return {
        "key": f"part {name}",
        "name": name.replace("_", " "),
        "color": color(PARTS.index(name)),
    }


def part_legend(drawn: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """One entry for each part that charts of parts show."""
    shown = {series["key"] for chart in drawn for series in chart["series"]}
    return [part for name in PARTS if (part := _part(name))["key"] in shown]


def numbers(array: FloatArray) -> list[float | None]:
    """For JSON, which has no NaN, in as many digits as can be seen."""
    return [float(f"{v:.7g}") if np.isfinite(v) else None for v in array.tolist()]
