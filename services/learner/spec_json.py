"""Environment specs as JSON, for checkpoints."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from services.shared.specs import (
    ActionSpec,
    ContinuousActionSpec,
    DataType,
    DiscreteActionSpec,
    EnvironmentSpec,
    TensorSpec,
)


def to_json(spec: EnvironmentSpec) -> dict[str, Any]:
    """A spec as dicts, lists, strings and finite numbers."""
    observation = [
        {**dataclasses.asdict(tensor), "data_type": tensor.data_type.name}
        for tensor in spec.observation
    ]
    action: dict[str, Any]
    if isinstance(spec.action, DiscreteActionSpec):
        action = {"num_values": list(spec.action.num_values)}
    else:
        action = {
            "minimum": [_bound_to_json(x) for x in spec.action.minimum],
            "maximum": [_bound_to_json(x) for x in spec.action.maximum],
        }
    return {
        "observation": observation,
        "action": action,
        "agents": spec.agents,
        "frames_per_step": spec.frames_per_step,
    }


def from_json(document: dict[str, Any]) -> EnvironmentSpec:
    """The inverse of `to_json`.

    Raises:
      KeyError, TypeError, ValueError: The document is not what `to_json` makes.
    """
    observation = tuple(
        TensorSpec(
            **{
                **tensor,
                "data_type": DataType[tensor["data_type"]],
                "shape": tuple(tensor["shape"]),
            }
        )
        for tensor in document["observation"]
    )
    action: ActionSpec
    if "num_values" in document["action"]:
        action = DiscreteActionSpec(tuple(document["action"]["num_values"]))
    else:
        action = ContinuousActionSpec(
            tuple(float(x) for x in document["action"]["minimum"]),
            tuple(float(x) for x in document["action"]["maximum"]),
        )
    return EnvironmentSpec(observation, action, document["agents"], document["frames_per_step"])


def _bound_to_json(bound: float) -> float | str:
    """JSON has no infinities; `float` reads their names back."""
    return bound if math.isfinite(bound) else str(bound)
