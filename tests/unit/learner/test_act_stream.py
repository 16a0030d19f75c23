"""A stream's requests, as it writes and refuses them, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from services.learner.act_stream import ActStream
from services.learner.step_store import StepStore, StoreLayout
from services.shared import wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from services.shared.status import StatusError
from tests.unit.learner.harness import ABSENT, FIRST, LAST, MID

_RING = 5
_SLOTS = [3, 1]
_MAX = float(np.finfo(np.float32).max)


class _Learner:
    """Stands in for the inference loop: what was accepted is processed at once."""

    def __init__(self) -> None:
        spec = EnvironmentSpec(
            (
                TensorSpec("vector", DataType.FLOAT32, (2,)),
                TensorSpec("kind", DataType.INT32, (), num_values=4),
            ),
            DiscreteActionSpec((7,)),
        )
        self.store = StepStore.create(StoreLayout(spec, 4, _RING, 7, 1))
        # Magic values: what is read without having been written shows.
        self.store.observation[0][:] = 1e9
        self.stream = ActStream(self.store, 0, 0, _SLOTS)
        self.sequence = 0

    def step(
        self,
        step_type: list[int],
        vector: list[list[float]] | None = None,
        kind: tuple[int, int] = (0, 0),
        reward: tuple[float, float] = (0.0, 0.0),
        discount: tuple[float, float] = (1.0, 1.0),
        incarnation: tuple[int, int] = (1, 1),
        cpu_seconds: float = 0.0,
        goals: tuple[float, ...] = (),
    ) -> None:
        """Sends the next request and processes it; `goals` are told of the episodes that end."""
        values = np.array(vector or [[0.0, 0.0]] * 2, "<f4")
        request = inference_pb2.ActRequest(
            sequence=self.sequence + 1,
            incarnation=np.array(incarnation, "<u4").tobytes(),
            step_type=bytes(step_type),
            reward=np.array(reward, "<f4").tobytes(),
            discount=np.array(discount, "<f4").tobytes(),
            observation=values.tobytes() + np.array(kind, "<i4").tobytes(),
            actor_cpu_seconds=cpu_seconds,
            episodes=[inference_pb2.EpisodeInfo(values={"goals": x}) for x in goals],
        )
        assert self.stream.accept(wire.read_act_request(request.SerializeToString()))
        self.sequence += 1
        store = self.store
        for slot, kind_of_step, number in zip(_SLOTS, step_type, incarnation, strict=True):
            if kind_of_step == ABSENT:
                continue
            store.action[slot, store.written[slot] % _RING] = 10 * self.sequence + slot
            store.slot_incarnation[slot] = number
            store.written[slot] += 1
        store.group_answered[0] = self.sequence

    def answered(self) -> list[int]:
        response = inference_pb2.ActResponse.FromString(self.stream.answer())
        return list(map(int, np.frombuffer(response.action, "<i4")))


def _run(scenario: Callable[[_Learner], None]) -> None:
    async def task() -> None:
        scenario(_Learner())

    asyncio.run(task())  # a stream belongs to a task


def test_records_are_written_where_they_belong() -> None:
    def scenario(learner: _Learner) -> None:
        for number in range(7):  # once around the ring
            learner.step(
                [FIRST if number == 0 else MID] * 2,
                [[number, 0.5], [-number, 0.25]],
                (number % 4, 3),
                (number / 2, 0.0),
            )
            assert learner.answered() == [10 * (number + 1) + 3, 10 * (number + 1) + 1]
        store = learner.store
        # Records 5 and 6 are in rows 0 and 1, records 2 to 4 where they were.
        assert store.observation[0][3].tolist() == [[n, 0.5] for n in (5, 6, 2, 3, 4)]
        assert store.observation[0][1].tolist() == [[-n, 0.25] for n in (5, 6, 2, 3, 4)]
        assert store.observation[1][3].tolist() == [1, 2, 2, 3, 0]
        assert store.observation[1][1].tolist() == [3] * 5
        assert store.reward[3].tolist() == [2.5, 3.0, 1.0, 1.5, 2.0]
        assert store.step_type[3].tolist() == [MID] * 5
        assert (store.observation[0][[0, 2]] == 1e9).all()

    _run(scenario)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"vector": [[0.0, 0.0], [np.nan, 0.0]]}, "'vector' is not finite"),
        ({"vector": [[0.0, np.inf], [-np.inf, 0.0]]}, "'vector' is not finite"),
        ({"kind": (0, 4)}, "'kind' is outside of 0 to 3"),
        ({"kind": (-1, 0)}, "'kind' is outside of 0 to 3"),
        ({"reward": (np.inf, 0.0)}, "reward is not finite"),
        ({"discount": (1.0, 1.5)}, "discount is outside"),
        ({"incarnation": (1, 2)}, "in incarnation 2 must come FIRST"),
        ({"incarnation": (0, 1)}, "incarnation is 0"),
        ({"step_type": [MID, FIRST]}, "must come MID or LAST"),
        ({"step_type": [MID, 4]}, "step_type is 4"),
        ({"cpu_seconds": np.nan}, "actor_cpu_seconds is nan, allowed: finite, 0 or more"),
        ({"cpu_seconds": -1.0}, "actor_cpu_seconds is -1.0"),
        ({"goals": (1.0,)}, "episodes has 1 elements, allowed: 0"),
    ],
)
def test_what_is_wrong_amid_an_episode_is_refused(
    request_: dict[str, list[int]], message: str
) -> None:
    def scenario(learner: _Learner) -> None:
        learner.step([FIRST, FIRST])
        learner.step([MID, MID])
        learner.step([MID, MID])
        with pytest.raises(StatusError, match=message):
            learner.step(**{"step_type": [MID, MID], **request_})  # type: ignore[arg-type]
        learner.step([MID, MID])

    _run(scenario)


@pytest.mark.parametrize("before", [LAST, ABSENT])
def test_after_an_episodes_end_or_an_absence_nothing_is_taken_for_granted(before: int) -> None:
    def scenario(learner: _Learner) -> None:
        learner.step([FIRST, FIRST])
        learner.step([MID, MID])
        learner.step([MID, before])
        incarnation = (1, 2 if before == ABSENT else 1)
        with pytest.raises(StatusError, match="must come FIRST"):
            learner.step([MID, MID], incarnation=incarnation)
        learner.step([MID, FIRST], incarnation=incarnation)
        learner.step([MID, MID], incarnation=incarnation)

    _run(scenario)


def test_large_numbers_are_no_infinities() -> None:
    def scenario(learner: _Learner) -> None:
        learner.step([FIRST, FIRST])
        # Their squares, and their sum, are out of range.
        learner.step([MID, MID], [[_MAX, _MAX], [_MAX, _MAX]], reward=(_MAX, _MAX))
        learner.step([MID, MID], [[_MAX, _MAX], [_MAX, _MAX]], reward=(_MAX, _MAX))
        assert learner.store.observation[0][3, 2].tolist() == [_MAX, _MAX]

    _run(scenario)


def test_a_repeated_request_is_answered_by_the_newest_record() -> None:
    def scenario(learner: _Learner) -> None:
        learner.step([FIRST, FIRST])
        learner.step([MID, MID])
        again = ActStream(learner.store, 0, 0, _SLOTS)
        repeated = inference_pb2.ActRequest(sequence=2, wants_policy=True).SerializeToString()
        assert not again.accept(wire.read_act_request(repeated))
        learner.stream = again
        assert learner.answered() == [23, 21]
        learner.store.value[_SLOTS] = 0.5, 0.25
        answer = inference_pb2.ActResponse.FromString(again.answer())
        assert np.frombuffer(answer.value, "<f4").tolist() == [0.5, 0.25]

    _run(scenario)


def test_what_was_told_of_episodes_counts_with_the_record_alone() -> None:
    def scenario(learner: _Learner) -> None:
        told = learner.store.episode_info_bytes
        learner.step([FIRST, FIRST])
        with pytest.raises(StatusError, match="values that are not finite"):
            learner.step([LAST, LAST], goals=(3.0, np.nan))
        assert not told.any()
        learner.step([LAST, LAST], goals=(3.0, 4.0))
        assert learner.store.take_episode_info(3) == ("", {"goals": 3.0})
        # As if it had come from a stream that was replaced before it was processed.
        learner.step([FIRST, FIRST])
        assert told[1] > 0
        learner.step([LAST, LAST])
        assert not told.any()

    _run(scenario)
