"""Makes curves of runs: runs that differ by their seeds alone are one curve with a band."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import yaml

from services.local.report.history import FloatArray, Series
from services.local.report.run import Run

# More points than a chart has pixels show nothing more.
_POINTS = 600
_GRID_POINTS = 200
_NAME_CHARACTERS = 60  # are not too many for a legend
# Last words of settings' names: seeds, and where a run was, which is another place for each.
_NOT_COMPARED = ("seed", "address", "addresses", "directory", "host", "path", "port")


class Curve(NamedTuple):
    """What a chart draws, float64 [N] each.

    Attributes:
      x: Never falling.
      y: A run's values, or the mean of several; NaN where there is a gap.
      low: The lowest of several runs; empty for one.
      high: The highest.
      runs: How many of them there are at x; empty for one.
    """

    x: FloatArray
    y: FloatArray
    low: FloatArray
    high: FloatArray
    runs: FloatArray


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs with the same settings, apart from seeds.

    Attributes:
      name: For the legend; unique on a page.
      runs: One or more.
    """

    name: str
    runs: list[Run]


def group(runs: Sequence[Run]) -> list[Group]:
    """Puts runs with the same settings together, in the order in which they were given."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps(_compared(run.settings), sort_keys=True, default=str)
        alike.setdefault(key, []).append(run)
    groups = list(alike.values())
    return [Group(_name(members, groups), members) for members in groups]


def _name(members: list[Run], groups: list[list[Run]]) -> str:
    """The experiment's; where that is not enough, with the settings that make the difference."""
    name = _experiment(members[0])
    namesakes = [m[0] for m in groups if _experiment(m[0]) == name]
    if len(namesakes) > 1:
        own = namesakes.index(members[0])
        for key, values in differences(namesakes).items():
            name += f" {key.rsplit('.', 1)[-1]}={setting_text(values[own])}"
        if len(name) > _NAME_CHARACTERS:
            name = members[0].name
    return name if len(members) == 1 else f"{name} ({len(members)} runs)"


def _experiment(run: Run) -> str:
    return str(run.settings.get("name", run.name))


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings, without seeds, in which runs differ, by their dotted names.

    Returns:
      Each run's value; None if it has no such setting, because another version of seedpod ran it.
    """
    return _differences([_compared(run.settings) for run in runs], "")


def _differences(values: list[Any], name: str) -> dict[str, list[Any]]:
    if not all(isinstance(value, dict) for value in values):
        return {} if all(value == values[0] for value in values) else {name: values}
    keys = sorted({str(key) for value in values for key in value})
    found: dict[str, list[Any]] = {}
    for key in keys:
        found |= _differences([v.get(key) for v in values], f"{name}.{key}" if name else key)
    return found


def _compared(node: Any, free: bool = False) -> Any:
    """Settings without seeds and places, but with whatever stands in arguments, which are free."""
    if not isinstance(node, dict):
        return node
    return {
        str(key): _compared(value, free or str(key).endswith("arguments"))
        for key, value in node.items()
        if free or str(key).rsplit("_", 1)[-1] not in _NOT_COMPARED
    }


def setting_text(value: object) -> str:
    """A setting's value for people."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        set_ = {key: item for key, item in value.items() if item is not None}
        return yaml.safe_dump(
            set_, default_flow_style=True, sort_keys=False, width=math.inf
        ).strip()
    return value if isinstance(value, str) else json.dumps(value, default=str)


def curve(group_: Group, tag: str, over: str) -> Curve | None:
    """The curve of a tag.

    Args:
      group_: Whose.
      tag: Of the event files.
      over: `frames` or `seconds`.

    Returns:
      None if none of the runs has recorded it.
    """
    found = [run.history.series(tag) for run in group_.runs]
    lines = [(_axis(s, over), s.values) for s in found if len(s.values)]
    if not lines:
        return None
    if len(group_.runs) == 1:
        x, y = thin(*lines[0])
        nothing = np.empty(0)
        return Curve(x, y, nothing, nothing, nothing)
    return _band(lines)


def _axis(series: Series, over: str) -> FloatArray:
    axis = series.frames if over == "frames" else series.seconds
    return np.asarray(axis, np.float64)


def _band(lines: list[tuple[FloatArray, FloatArray]]) -> Curve:
    """Mean, lowest and highest of several runs; of those that have come as far as x.

    It begins where the last of them does, or the mean would jump each time that one joins.
    """
    start, end = max(x[0] for x, _ in lines), max(x[-1] for x, _ in lines)
    grid = np.unique(np.linspace(start, end, _GRID_POINTS))
    values = np.stack([_interpolate(grid, x, y) for x, y in lines])
    runs = np.isfinite(values).sum(axis=0)
    some = runs > 0
    mean, low, high = (np.full(len(grid), np.nan) for _ in range(3))
    mean[some] = np.nanmean(values[:, some], axis=0)
    low[some] = np.nanmin(values[:, some], axis=0)
    high[some] = np.nanmax(values[:, some], axis=0)
    return Curve(grid, mean, low, high, runs.astype(np.float64))


def _interpolate(grid: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Linear between records; NaN outside of them and beside what is not finite."""
    y = np.where(np.isfinite(y), y, np.nan)
    values: FloatArray = np.interp(grid, x, y, left=np.nan)
    # Runs of equally many frames end within an update of each other, which is together.
    together = (grid[-1] - grid[0]) / _GRID_POINTS
    values[grid > x[-1] + together] = np.nan
    return values


def thin(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Leaves out points until a chart can draw them; peaks and gaps stay.

    Of each of the equally many points of a bucket, the lowest and the highest are kept, and a NaN
    if there is one.
    """
    if len(x) <= _POINTS:
        return x, y
    kept: set[int] = {0, len(x) - 1}
    for bucket in np.array_split(np.arange(len(x)), _POINTS // 2):
        finite = bucket[np.isfinite(y[bucket])]
        if len(finite):
            kept |= {int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])}
        if len(finite) < len(bucket):
            kept.add(int(bucket[~np.isfinite(y[bucket])][0]))
    order = sorted(kept)
    return x[order], y[order]
