"""A group with one broken environment: only that one is lost."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.actor.environments.base import (
    Decision,
    Environment,
    EpisodeInfo,
    Observation,
    Transition,
)
from services.actor.groups import CpuMeter, Group
from services.actor.pictures.camera import Camera
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


class _Ends(_Shows):
    """Ends with its second step and tells of it."""

    def __init__(self, told: dict[str, float]) -> None:
        super().__init__()
        self.told = told
        self.steps = 0

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        self.steps += 1
        reward = np.array([self.now["reward"]], np.float32)
        return Transition(super().reset(), reward, self.steps == 2, False)

    def episode_info(self) -> EpisodeInfo:
        return EpisodeInfo((self.told,), level="a")


def _evaluating(environments: list[Any], camera: Camera | None = None) -> tuple[Group, _Losses]:
    losses = _Losses()
    seats = [
        Seat(f"environment {at}", at, 0, arrived=(environment, environment.reset()))
        for at, environment in enumerate(environments)
    ]
    group = Group(0, seats, SPEC, Watchdog(), 60.0, CpuMeter(), losses, True, camera)
    assert group.step()
    return group, losses


def test_evaluation_tells_of_episodes_with_their_last_record() -> None:
    group, losses = _evaluating([_Shows(), _Ends({"goals": 2.0})])
    assert not _step(group).episodes
    request = _step(group)
    assert list(request.step_type) == [1, 2]
    (told,) = request.episodes
    assert (told.level, dict(told.values)) == ("a", {"goals": 2.0})
    assert not _step(group).episodes
    assert not losses


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"goals": np.nan}, "allowed: finite numbers"),
        ({"x" * 600: 1.0}, "bytes, allowed: 512"),
    ],
)
def test_what_the_learner_would_refuse_loses_only_its_environment(
    told: dict[str, float], reason: str
) -> None:
    group, losses = _evaluating([_Shows(), _Ends(told)])
    _step(group)
    request = _step(group)
    assert list(request.step_type) == [1, 3]
    assert not request.episodes
    assert reason in losses[0][1]


def test_the_first_seat_is_recorded_with_the_answers_to_its_records() -> None:
    shown: list[tuple[float, float, list[float], bool]] = []

    class _Camera:
        is_on = False
        begun = 0

        def begin(self, environment: Environment) -> None:
            self.is_on = True
            self.begun += 1

        def add(
            self, environment: Environment, reward: float, decision: Decision, ends: bool
        ) -> None:
            shown.append((reward, decision.value, decision.policy.tolist(), ends))

        def abandon(self) -> None:
            self.is_on = False

    camera: Any = _Camera()
    group, _ = _evaluating([_Ends({}), _Shows()], camera)
    for n in range(4):
        assert group.request is not None
        assert group.request.wants_policy
        answer = inference_pb2.ActResponse(
            sequence=group.request.sequence,
            action=bytes(group.action_bytes),
            value=np.array([n, -1], np.float32).tobytes(),
            policy=np.array([[0.25, 0.75], [0, 0]], np.float32).tobytes(),
            policy_kind=inference_pb2.POLICY_KIND_PROBABILITIES,
        )
        group.accept(answer)
        assert group.step()
    # FIRST, MID, LAST with its final answer, and the next episode's FIRST.
    assert shown == [
        (0.0, 0.0, [0.25, 0.75], False),
        (1.0, 1.0, [0.25, 0.75], False),
        (1.0, 2.0, [0.25, 0.75], True),
        (0.0, 3.0, [0.25, 0.75], False),
    ]
    assert camera.begun == 2
