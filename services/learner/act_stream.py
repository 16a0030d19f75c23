"""One group's stream: what comes in is checked and written to the step store, answers are read.

`front_end` makes one for each Act call; nothing here waits or knows of gRPC's streams.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from services.learner import explanation
from services.learner.step_store import StepStore
from services.shared import wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import ContinuousActionSpec, DataType, StepType
from services.shared.status import StatusError

# Plain integers: numpy compares with them several times faster than with an enum's members.
_FIRST, _MID, _LAST, _ABSENT = (int(step_type) for step_type in StepType)


class ActStream:
    """One group's stream: checks its requests, writes them to the store, makes its answers."""

    def __init__(self, store: StepStore, group: int, epoch: int, slots: list[int]) -> None:
        """Wraps the group that the learner gave to the calling task's stream.

        `finished` is set by an answer that tells the actor that training is over.
        """
        task = asyncio.current_task()
        assert task is not None, "gRPC runs each call in a task"
        self.task = task
        spec = store.layout.spec
        self.group = group
        self.epoch = epoch
        self.answered = asyncio.Event()
        self.finished = False
        self._wants_policy = False
        self._store = store
        self._slots = np.array(slots, np.int64)
        self._layout = wire.ObservationLayout(spec.observation, len(slots))
        # Row 0 of each slot in the flat views of the store, and the newest record's row.
        self._first_rows = self._slots * store.layout.ring
        self._rows = self._first_rows
        # What nearly all requests bring: every environment amid its episode, with the
        # incarnations of the request before. `_steady` are those, unless one of its records was
        # LAST or ABSENT.
        self._all_mid = np.full(len(slots), _MID, np.uint8).tobytes()
        self._all_ones = np.ones(len(slots), np.float32).tobytes()
        self._steady = b""
        self._scale = (
            spec.action.to_environment if isinstance(spec.action, ContinuousActionSpec) else None
        )

    @property
    def is_current(self) -> bool:
        """Whether no newer stream has the group, here or in another front end."""
        return int(self._store.group_epoch[self.group]) == self.epoch

    def accept(self, request: wire.ActRequestFields) -> bool:
        """Writes a request's rows into the store.

        Returns:
          False if the request was answered before and only the answer is to be repeated.

        Raises:
          StatusError: INVALID_ARGUMENT, see the proto.
        """
        store, ring = self._store, self._store.layout.ring
        answered = int(store.group_answered[self.group])
        written = store.written[self._slots]
        self._wants_policy = request.wants_policy
        if request.sequence == answered and answered > 0:
            self._rows = self._first_rows + (written - 1) % ring
            return False
        if request.sequence != answered + 1:
            raise invalid(f"sequence is {request.sequence}, allowed: {answered} or {answered + 1}")
        for name in ("environment_cpu_seconds", "actor_cpu_seconds"):
            # They are added up, for all actors together.
            if not 0 <= (seconds := getattr(request, name)) < math.inf:
                raise invalid(f"{name} is {seconds}, allowed: finite, 0 or more")
        k = len(self._slots)
        incarnation = _column(request.incarnation, np.uint32, k, "incarnation")
        step_type = _column(request.step_type, np.uint8, k, "step_type")
        reward = _column(request.reward, np.float32, k, "reward")
        discount = _column(request.discount, np.float32, k, "discount")
        if len(request.observation) != self._layout.total_bytes:
            raise invalid(
                f"observation has {len(request.observation)} bytes, must have"
                f" {self._layout.total_bytes} for {k} slots"
            )
        tensors = self._layout.views(request.observation)
        steady = (
            request.step_type == self._all_mid
            and request.incarnation == self._steady
            and request.discount == self._all_ones
        )
        if not (
            steady
            and _finite(reward)
            and all(self._is_valid(i, tensor) for i, tensor in enumerate(tensors))
        ):
            self._check(incarnation, step_type, reward, discount, tensors, written)
            calm = step_type.max() < _LAST
            self._steady = request.incarnation if calm else b""
        if request.episodes or not steady:
            self._write_episodes(request.episodes, self._slots[step_type == _LAST])
        rows = self._rows = self._first_rows + written % ring
        for target, block in zip(
            store.observation_rows, self._layout.rows(request.observation), strict=True
        ):
            target[rows] = block
        store.reward_flat[rows] = reward
        store.discount_flat[rows] = discount
        store.incarnation_flat[rows] = incarnation
        store.step_type_flat[rows] = step_type
        return True

    def _write_episodes(
        self, episodes: tuple[inference_pb2.EpisodeInfo, ...], slots: npt.NDArray[np.int64]
    ) -> None:
        if episodes and len(episodes) != len(slots):
            raise invalid(
                f"episodes has {len(episodes)} elements, allowed: {len(slots)}, one for each LAST"
            )
        serialized = [episode.SerializeToString() for episode in episodes]
        for episode, data in zip(episodes, serialized, strict=True):
            if len(data) > wire.EPISODE_INFO_BYTES:
                raise invalid(
                    f"an EpisodeInfo has {len(data)} bytes, allowed: {wire.EPISODE_INFO_BYTES}"
                )
            if not np.isfinite(list(episode.values.values())).all():
                raise invalid(f"an EpisodeInfo has values that are not finite: {episode.values}")
        # A request that was never processed may have left something there.
        self._store.episode_info_bytes[slots] = 0
        for slot, data in zip(slots.tolist(), serialized, strict=False):
            self._store.episode_info[slot, : len(data)] = np.frombuffer(data, np.uint8)
            self._store.episode_info_bytes[slot] = len(data)

    def _is_valid(self, index: int, tensor: npt.NDArray[Any]) -> bool:
        spec = self._store.layout.spec.observation[index]
        if spec.data_type is DataType.FLOAT32:
            return _finite(tensor)
        return not spec.num_values or bool(((tensor >= 0) & (tensor < spec.num_values)).all())

    def _check(
        self,
        incarnation: npt.NDArray[Any],
        step_type: npt.NDArray[Any],
        reward: npt.NDArray[Any],
        discount: npt.NDArray[Any],
        tensors: tuple[npt.NDArray[Any], ...],
        written: npt.NDArray[np.int64],
    ) -> None:
        """Raises a StatusError that names what is wrong, if something is."""
        store = self._store
        previous = store.step_type_flat[self._first_rows + (written - 1) % store.layout.ring]
        begins = (incarnation != store.slot_incarnation[self._slots]) | (previous == _LAST)
        if step_type.max() > _ABSENT:
            raise invalid(f"step_type is {step_type.max()}, allowed: 0 to {_ABSENT}")
        present = step_type != _ABSENT
        if not incarnation[present].all():
            raise invalid("incarnation is 0, allowed: 1 or more")
        wrong = present & (begins != (step_type == _FIRST))
        if wrong.any():
            i = int(np.argmax(wrong))
            expected = "FIRST" if begins[i] else "MID or LAST"
            raise invalid(
                f"environment {i} of the group sent {StepType(int(step_type[i])).name}, after"
                f" {StepType(int(previous[i])).name} of incarnation"
                f" {self._store.slot_incarnation[self._slots[i]]} and now in incarnation"
                f" {incarnation[i]} must come {expected}"
            )
        if not np.isfinite(reward[present]).all():
            raise invalid("reward is not finite")
        if not ((discount[present] >= 0) & (discount[present] <= 1)).all():
            raise invalid("discount is outside of 0 to 1")
        for i, spec in enumerate(self._store.layout.spec.observation):
            if not self._is_valid(i, tensors[i][present]):
                allowed = (
                    f"outside of 0 to {spec.num_values - 1}" if spec.num_values else "not finite"
                )
                raise invalid(f"observation {spec.name!r} is {allowed}")

    def answer(self) -> bytes:
        """The answer to the newest processed request, serialized."""
        store = self._store
        action = store.action_flat[self._rows]
        if self._scale is not None:
            action = self._scale(action)
        self.finished = bool(store.finished[0])
        response = inference_pb2.ActResponse(
            sequence=int(store.group_answered[self.group]),
            action=action.tobytes(),
            finished=self.finished,
        )
        if self._wants_policy:
            layout = store.layout
            parameters = store.policy_parameters_flat[self._rows]
            response.value = explanation.value(layout, store.value[self._slots]).tobytes()
            response.policy = explanation.explain(layout, parameters).tobytes()
            response.policy_kind = layout.policy_kind  # type: ignore[assignment]
        return bytes(response.SerializeToString())


def invalid(message: str) -> StatusError:
    """The error for a request that breaks the contract."""
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)


def _finite(x: npt.NDArray[Any]) -> bool:
    """Whether all elements are."""
    return bool(np.count_nonzero(np.isfinite(x)) == x.size)


def _column(field: bytes, dtype: type[np.generic], k: int, name: str) -> npt.NDArray[Any]:
    expected = k * np.dtype(dtype).itemsize
    if len(field) != expected:
        raise invalid(f"{name} has {len(field)} bytes, must have {expected} for {k} slots")
    return np.frombuffer(field, dtype)
