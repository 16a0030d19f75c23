"""How evaluation episodes went: what `seedpod eval` and evaluators beside training report.

The inference loop counts an episode when it has answered its last record; `Statistics` keeps the
newest, `summarize` makes the figures for JSON, TensorBoard and Prometheus.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Episode:
    """An evaluation episode that has ended.

    Attributes:
      environment: That played it: the slot of its first agent.
      total: The return: the sum of its rewards.
      length: In steps.
      level: The scenario, level or game; empty where the environment does not tell.
      values: What the environment tells beside it, by name.
    """

    environment: int
    total: float
    length: int
    level: str = ""
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of some episodes.

    Attributes:
      episodes: How many.
      mean_return: NaN without any.
      standard_error: Of the mean: the sample's standard deviation / sqrt(n); NaN below two.
      median_return: NaN without any.
      mean_length: In steps; NaN without any.
      values: Mean and standard error by name, over the episodes that have the value.
    """

    episodes: int
    mean_return: float
    standard_error: float
    median_return: float
    mean_length: float
    values: dict[str, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        """JSON-able; what is not known is null."""
        return {
            "episodes": self.episodes,
            "mean_return": _rounded(self.mean_return),
            "standard_error": _rounded(self.standard_error),
            "median_return": _rounded(self.median_return),
            "mean_length": _rounded(self.mean_length),
            "values": {
                name: {"mean": _rounded(mean), "standard_error": _rounded(error)}
                for name, (mean, error) in self.values.items()
            },
        }


def figures(episodes: Sequence[Episode]) -> Figures:
    """The figures of some episodes."""
    returns = [episode.total for episode in episodes]
    mean, error = _mean_and_error(returns)
    names = sorted({name for episode in episodes for name in episode.values})
    return Figures(
        episodes=len(episodes),
        mean_return=mean,
        standard_error=error,
        median_return=float(np.median(returns)) if returns else math.nan,
        mean_length=_mean_and_error([episode.length for episode in episodes])[0],
        values={
            name: _mean_and_error([e.values[name] for e in episodes if name in e.values])
            for name in names
        },
    )


def by_level(episodes: Iterable[Episode]) -> dict[str, Figures]:
    """The figures of each level that was told, in order of the names."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.level:
            groups.setdefault(episode.level, []).append(episode)
    return {level: figures(groups[level]) for level in sorted(groups)}


def summarize(episodes: Sequence[Episode]) -> dict[str, Any]:
    """The figures of all episodes, and of each level, JSON-able."""
    levels = {level: part.to_json() for level, part in by_level(episodes).items()}
    return {**figures(episodes).to_json(), "levels": levels}


def scalars(episodes: Sequence[Episode]) -> dict[str, float]:
    """The same as numbers by name, `level/name` for those of a level; without NaN.

    A level's are left out where all episodes are of one level.
    """
    levels = by_level(episodes)
    parts = {"": figures(episodes)}
    if len(levels) > 1:
        parts |= {f"{level}/": part for level, part in levels.items()}
    found: dict[str, float] = {}
    for prefix, part in parts.items():
        found[f"{prefix}mean_return"] = part.mean_return
        found[f"{prefix}standard_error"] = part.standard_error
        found[f"{prefix}median_return"] = part.median_return
        found[f"{prefix}mean_length"] = part.mean_length
        found |= {f"{prefix}{name}": mean for name, (mean, _) in part.values.items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    array = np.array(values, np.float64)
    error = float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return float(array.mean()), error


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
