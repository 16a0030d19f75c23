"""A group of environments that step together, and the message that they fill.

The worker's pilot calls `step` for a request and `accept` with the answer, in turn. Everything
is written straight into the arrays that are sent, laid out as in the proto.
"""

from __future__ import annotations

import functools
import math
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.actor.environments import checks
from services.actor.environments.base import Decision, Environment, Observation
from services.actor.seats import Seat
from services.actor.watchdog import Watchdog
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import EnvironmentSpec, StepType
from services.shared.wire import ObservationLayout

if TYPE_CHECKING:
    from services.actor.pictures.camera import Camera

_FIRST, _MID, _LAST, _ABSENT = (int(step_type) for step_type in StepType)


class CpuMeter:
    """Splits the process's CPU time between environments and the rest."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def rest(self, environment_seconds: float) -> float:
        """CPU seconds since the last call that were not the environments'."""
        now = time.process_time()
        spent, self._last = now - self._last, now
        return max(0.0, spent - environment_seconds)


class Group:
    """k slots: environments_per_group environments of `agents` agents each.

    Attributes:
      index: Among the worker's groups.
      seats: One for each environment.
      lease: That its sequence numbers count under.
      request: Sent or to be sent, until it is answered; None while there is none.
      steps: Environment steps and resets so far.
      camera: Records the first seat's episodes; None: nothing is recorded.
      asked: When `request` was made, by the monotonic clock.
    """

    def __init__(
        self,
        index: int,
        seats: list[Seat],
        spec: EnvironmentSpec,
        watchdog: Watchdog,
        step_timeout_seconds: float,
        meter: CpuMeter,
        lost: Callable[[Group, Seat, Environment | None, str], None],
        evaluates: bool = False,
        camera: Camera | None = None,
    ) -> None:
        """Prepares the arrays.

        Args:
          index: Among the worker's groups.
          seats: One for each environment.
          spec: Of the environments.
          watchdog: Watches every call into an environment.
          step_timeout_seconds: For one step or reset.
          meter: Shared by the worker's groups.
          lost: Called when a seat has lost its environment, with the environment (None if it
            may still be running) and the reason.
          evaluates: Tell how episodes went.
          camera: Records the first seat's episodes.
        """
        self.index = index
        self.seats = seats
        self.lease: inference_pb2.JoinResponse | None = None
        self.request: inference_pb2.ActRequest | None = None
        self.steps = 0
        self.asked = 0.0
        self._watchdog = watchdog
        self._timeout_seconds = step_timeout_seconds
        self._meter = meter
        self._lost = lost
        self._evaluates = evaluates
        self.camera = camera
        self._response = inference_pb2.ActResponse()
        # Of each seat's last episode, a message for each agent.
        self._infos: list[list[inference_pb2.EpisodeInfo]] = [[] for _ in seats]
        self._expired = [functools.partial(self._hung, at) for at in range(len(seats))]
        self._sequence = 0
        self._cursor = 0
        self._allocate(spec)

    def _allocate(self, spec: EnvironmentSpec) -> None:
        agents = spec.agents
        k = len(self.seats) * agents
        self._incarnation = np.zeros(k, np.uint32)
        self._step_type = np.full(k, _ABSENT, np.uint8)
        self._reward = np.zeros(k, np.float32)
        self._discount = np.ones(k, np.float32)
        layout = ObservationLayout(spec.observation, k)
        self._observation = bytearray(layout.total_bytes)
        blocks = layout.views(self._observation)
        self._float_blocks = [block.reshape(k, -1) for block in blocks if block.dtype == np.float32]
        self._tensors = spec.observation
        self._categories = [
            (tensor, block)
            for tensor, block in zip(spec.observation, blocks, strict=True)
            if tensor.num_values
        ]
        self._slices = [slice(at * agents, (at + 1) * agents) for at in range(len(self.seats))]
        casts = checks.casters(spec)
        self._observation_rows = [
            tuple(zip(casts, (block[rows] for block in blocks), strict=True))
            for rows in self._slices
        ]
        self._reward_rows = [self._reward[rows] for rows in self._slices]
        self._action_dtype = spec.action.dtype
        self._action_shape = (len(self.seats), agents, spec.action.size)
        self._actions: npt.NDArray[np.generic] = np.zeros(self._action_shape, self._action_dtype)

    @property
    def observation_bytes(self) -> int:
        """Bytes of one request's observation field."""
        return len(self._observation)

    @property
    def action_bytes(self) -> int:
        """Bytes of one response's action field."""
        return math.prod(self._action_shape) * self._action_dtype.itemsize

    @property
    def absent(self) -> int:
        """Environments that are being replaced."""
        return sum(seat.environment is None for seat in self.seats)

    @property
    def busy(self) -> Seat | None:
        """The seat whose environment is being called, if the pilot hangs in this group."""
        return self.seats[self._cursor - 1] if self._cursor else None

    @property
    def is_deserted(self) -> bool:
        """Whether there is no environment to step."""
        return all(seat.environment is None and seat.arrived is None for seat in self.seats)

    def begin(self, lease: inference_pb2.JoinResponse) -> None:
        """Begins anew under a lease: new incarnations, and sequence numbers from 1."""
        self.lease = lease
        self.request = None
        self._sequence = 0
        self._cursor = 0
        for seat in self.seats:
            if seat.environment is not None:
                seat.incarnation += 1
                seat.needs_reset = True
        if self.camera is not None:
            self.camera.abandon()

    def step(self) -> bool:
        """Steps every environment once and makes the request.

        If the thread is abandoned in a call, another one goes on behind it by calling again.

        Returns:
          False if no environment was left; then there is no request, and the actions that wait
          to be taken are void.
        """
        began = time.thread_time()
        if self._cursor == 0:
            self._step_type.fill(_MID)
            self._discount.fill(1.0)
        for at in range(self._cursor, len(self.seats)):
            self._cursor = at + 1
            self._advance(at)
        self._cursor = 0
        if not self._is_valid():
            self._lose_invalid()
        environment_seconds = time.thread_time() - began
        absent = self.absent
        self.steps += len(self.seats) - absent
        if absent == len(self.seats):
            return False
        self._sequence += 1
        self.request = inference_pb2.ActRequest(
            sequence=self._sequence,
            incarnation=self._incarnation.tobytes(),
            step_type=self._step_type.tobytes(),
            reward=self._reward.tobytes(),
            discount=self._discount.tobytes(),
            environment_cpu_seconds=environment_seconds,
            actor_cpu_seconds=self._meter.rest(environment_seconds),
            observation=bytes(self._observation),
            episodes=self._episodes(),
            wants_policy=self.camera is not None and self.camera.is_on,
        )
        self.asked = time.monotonic()
        return True

    def accept(self, response: inference_pb2.ActResponse) -> None:
        """Takes the request's answer.

        Raises:
          ValueError: It answers another request or has the wrong size.
        """
        if response.sequence != self._sequence or len(response.action) != self.action_bytes:
            raise ValueError(
                f"group {self.index}: the learner answered request {response.sequence} with"
                f" {len(response.action)} bytes, expected: {self._sequence} with"
                f" {self.action_bytes} bytes"
            )
        self.request = None
        self._actions = np.frombuffer(response.action, self._action_dtype).reshape(
            self._action_shape
        )
        self._response = response

    def _advance(self, at: int) -> None:
        seat = self.seats[at]
        environment = seat.environment
        if environment is None:
            self._welcome(at, seat)
            return
        call = self._watchdog.begin(self._timeout_seconds, self._expired[at])
        try:
            if at == 0 and self.camera is not None and self.camera.is_on:
                self._record(self.camera, seat, environment)
            if seat.needs_reset:
                transition = None
                observation = environment.reset()
            else:
                transition = environment.step(self._actions[at])
                observation = transition.observation
        except BaseException:
            # Whatever user code raises, SystemExit included, is a failure of this environment.
            reason = traceback.format_exc()
            self._watchdog.end(call)
            self._lose(at, environment, reason)
            return
        self._watchdog.end(call)
        try:
            if transition is None:
                self._write_first(at, seat, observation)
                return
            for (cast, row), value in zip(self._observation_rows[at], observation, strict=True):
                row[...] = cast(value)
            self._reward_rows[at][...] = transition.reward
            seat.steps += 1
            if transition.terminated or transition.truncated:
                self._step_type[self._slices[at]] = _LAST
                if transition.terminated:
                    self._discount[self._slices[at]] = 0.0
                seat.needs_reset = True
                if self._evaluates:
                    self._infos[at] = checks.episode_messages(environment)
        except Exception:  # an array that does not fit the spec
            self._lose(at, environment, traceback.format_exc())

    def _record(self, camera: Camera, seat: Seat, environment: Environment) -> None:
        """Shows the first seat's environment with the answer to its newest record."""
        response = self._response
        if not response.value:  # it was not asked for yet
            return
        value = np.frombuffer(response.value, np.float32)
        policy = np.frombuffer(response.policy, np.float32).reshape(len(value), -1)
        decision = Decision(self._actions[0, 0], float(value[0]), policy[0], response.policy_kind)
        reward = float(self._reward_rows[0][0])
        camera.add(environment, reward, decision, ends=seat.needs_reset)

    def _episodes(self) -> list[inference_pb2.EpisodeInfo]:
        """How those episodes went that have just ended, one for each slot's LAST."""
        if not self._evaluates:
            return []
        return [
            message
            for at, messages in enumerate(self._infos)
            if self._step_type[self._slices[at]][0] == _LAST
            for message in messages
        ]

    def _welcome(self, at: int, seat: Seat) -> None:
        """Lets a started environment take its seat, if there is one."""
        if seat.arrived is None:
            self._step_type[self._slices[at]] = _ABSENT
            return
        environment, observation = seat.arrived
        seat.arrived = None
        seat.environment = environment
        seat.incarnation += 1
        seat.steps = 0
        try:
            self._write_first(at, seat, observation)
        except Exception:
            self._lose(at, environment, traceback.format_exc())

    def _write_first(self, at: int, seat: Seat, observation: Observation) -> None:
        for (cast, row), value in zip(self._observation_rows[at], observation, strict=True):
            row[...] = cast(value)
        rows = self._slices[at]
        self._reward[rows] = 0.0
        self._step_type[rows] = _FIRST
        self._incarnation[rows] = seat.incarnation
        seat.needs_reset = False
        if at == 0 and self.camera is not None and seat.environment is not None:
            self.camera.begin(seat.environment)

    def _is_valid(self) -> bool:
        """Whether all rewards and observations are finite, and categories are categories."""
        if not all(checks.are_categories(tensor, block) for tensor, block in self._categories):
            return False
        # A sum of squares is the cheapest test; if it overflows, the exact one decides.
        total = float(np.dot(self._reward, self._reward))
        for block in self._float_blocks:
            flat = block.reshape(-1)
            total += float(np.dot(flat, flat))
        if math.isfinite(total):
            return True
        return all(np.isfinite(block).all() for block in (self._reward, *self._float_blocks))

    def _lose_invalid(self) -> None:
        """Loses the environments that the learner would refuse the whole group for."""
        for at, seat in enumerate(self.seats):
            wrong = self._what_is_wrong(at)
            if seat.environment is None or wrong is None:
                continue
            if self._step_type[self._slices[at]][0] != _FIRST:
                seat.steps -= 1  # it does not count as one
            self._lose(at, seat.environment, wrong)

    def _what_is_wrong(self, at: int) -> str | None:
        reward = self._reward_rows[at]
        if not np.isfinite(reward).all():
            return f"its reward is {reward[~np.isfinite(reward)][0]}, allowed: finite numbers"
        rows = (row for _, row in self._observation_rows[at])
        wrongs = map(checks.what_is_wrong, self._tensors, rows)
        wrong = next(filter(None, wrongs), None)
        return None if wrong is None else f"its {wrong}"

    def _hung(self, at: int) -> None:
        reason = f"it took longer than step_timeout_seconds ({self._timeout_seconds:g} s)"
        self._lose(at, None, reason)

    def _lose(self, at: int, environment: Environment | None, reason: str) -> None:
        seat = self.seats[at]
        seat.environment = None
        if at == 0 and self.camera is not None:
            self.camera.abandon()
        rows = self._slices[at]
        self._step_type[rows] = _ABSENT
        self._reward[rows] = 0.0
        for _, row in self._observation_rows[at]:
            row[...] = 0
        self._lost(self, seat, environment, reason)
