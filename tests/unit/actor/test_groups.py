"""A group with one broken environment: only that one is lost."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.actor.environments.base import Environment, Observation, Transition
from services.actor.groups import CpuMeter, Group
from services.actor.seats import Seat
from services.actor.watchdog import Watchdog
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec

SPEC = EnvironmentSpec(
    (
        TensorSpec("image", DataType.UINT8, (3,)),
        TensorSpec("color", DataType.INT32, (), num_values=5),
        TensorSpec("speed", DataType.FLOAT32, (2,)),
    ),
    DiscreteActionSpec((2,)),
)
GOOD = {"image": [1, 2, 255], "color": 4, "speed": [0.5, -1.0], "reward": 1.0}


class _Shows(Environment):
    """Shows what `now` says."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = GOOD

    @property
    def spec(self) -> EnvironmentSpec:
        return SPEC

    def reset(self) -> Observation:
        return tuple(np.array([self.now[tensor.name]]) for tensor in SPEC.observation)

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        return Transition(self.reset(), np.array([self.now["reward"]], np.float32), False, False)


class _Losses(list[tuple[Seat, str]]):
    def __call__(self, group: Group, seat: Seat, environment: object, reason: str) -> None:
        self.append((seat, reason))


def _group(environments: list[_Shows]) -> tuple[Group, _Losses]:
    losses = _Losses()
    seats = [
        Seat(f"environment {at}", at, 0, arrived=(environment, environment.reset()))
        for at, environment in enumerate(environments)
    ]
    group = Group(0, seats, SPEC, Watchdog(), 60.0, CpuMeter(), losses)
    assert group.step()
    return group, losses


def _step(group: Group) -> inference_pb2.ActRequest:
    assert group.request is not None
    group.accept(
        inference_pb2.ActResponse(sequence=group.request.sequence, action=bytes(group.action_bytes))
    )
    assert group.step()
    return group.request


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ({"color": 7}, "its observation 'color' is 7, allowed: 0 to 4"),
        ({"color": -1}, "its observation 'color' is -1, allowed: 0 to 4"),
        ({"speed": [0.0, np.inf]}, "its observation 'speed' is inf, allowed: finite numbers"),
        ({"reward": np.nan}, "its reward is nan, allowed: finite numbers"),
        ({"image": [300, -1, 0]}, "'image' has int64 values from -1 to 300"),
        ({"image": [0.1, 0.2, 1.0]}, "'image' has element type float64, its spec has uint8"),
        ({"color": 1.0}, "'color' has element type float64, its spec has int32"),
    ],
)
def test_only_the_environment_that_is_wrong_is_lost(shown: dict[str, Any], reason: str) -> None:
    environments = [_Shows() for _ in range(3)]
    group, losses = _group(environments)
    _step(group)
    environments[1].now = {**GOOD, **shown}
    request = _step(group)
    ((seat, said),) = losses
    assert seat is group.seats[1]
    assert reason in said
    assert seat.environment is None
    assert seat.steps == 1  # the wrong one is none
    assert list(request.step_type) == [1, 3, 1]
    assert [s.steps for s in group.seats if s is not seat] == [2, 2]
    _step(group)
    assert len(losses) == 1


def test_a_first_observation_is_no_step() -> None:
    environment = _Shows()
    environment.now = {**GOOD, "color": 9}
    group, losses = _group([_Shows(), environment])
    assert [seat.name for seat, _ in losses] == ["environment 1"]
    assert [seat.steps for seat in group.seats] == [0, 0]
