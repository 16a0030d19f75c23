"""Unrolls and parameters as bytes: what `seedpod.trajectory.v1` carries.

The local policy encodes unrolls and decodes parameters, the learner the other way round. Frames
travel unstacked and packed, as in `Act`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from services.learner.inference import Arrays
from services.learner.unrolls import RecordBatch, context_length, stack_index
from services.shared.generated.seedpod.trajectory.v1 import trajectory_pb2
from services.shared.specs import DataType, EnvironmentSpec, StepType
from services.shared.status import StatusError

API_VERSION = "seedpod.trajectory.v1"
# Of one message of parameters; far below what gRPC lets through.
PIECE_BYTES = 1 << 20

Parameters = dict[str, npt.NDArray[np.float32]]


@dataclasses.dataclass(frozen=True)
class UnrollLayout:
    """Everything that determines an unroll's bytes.

    Attributes:
      spec: What the environments look like.
      unroll_length: T.
      parameter_size: P, of the policy's parameters of one record.
      state: The recurrent state of one slot, [1, ...] a tensor; its values do not count.
    """

    spec: EnvironmentSpec
    unroll_length: int
    parameter_size: int
    state: Arrays

    @property
    def context(self) -> int:
        """C, records before the unroll's first."""
        return context_length(self.spec)

    @property
    def observation_bytes(self) -> int:
        """Of one unroll."""
        records = self.context + self.unroll_length + 1
        return records * sum(tensor.storage_bytes for tensor in self.spec.observation)


def encode(layout: UnrollLayout, batch: RecordBatch) -> trajectory_pb2.PutUnrollsRequest:
    """A message without what the stream adds: sequence number, episodes, CPU time."""
    oldest = np.min([index[:, 0, 0] for index in batch.stack_index], axis=0)
    action = np.concatenate([batch.previous_action[:, :1], batch.action], axis=1)
    return trajectory_pb2.PutUnrollsRequest(
        unrolls=len(batch.reward),
        records_before=(layout.context - oldest).astype(np.uint8).tobytes(),
        step_type=batch.step_type.tobytes(),
        reward=batch.reward.tobytes(),
        discount=batch.discount.tobytes(),
        action=action.tobytes(),
        policy_parameters=batch.policy_parameters.tobytes(),
        policy_version=batch.policy_version.tobytes(),
        initial_state=b"".join(part.tobytes() for part in batch.initial_state),
        observation=b"".join(tensor.tobytes() for tensor in batch.observation),
    )


def decode(layout: UnrollLayout, message: trajectory_pb2.PutUnrollsRequest) -> RecordBatch:
    """The inverse of `encode`; the arrays share the message's memory.

    Raises:
      StatusError: INVALID_ARGUMENT, see the proto.
    """
    spec, n, records, context = (
        layout.spec,
        message.unrolls,
        layout.unroll_length + 1,
        layout.context,
    )
    if n < 1:
        raise _invalid("unrolls is 0, allowed: 1 or more")
    float32, per_record = np.dtype(np.float32), (n, records)
    action_shape = (n, records + 1, spec.action.size)
    parameters_shape = (*per_record, layout.parameter_size)
    before = _array(message.records_before, np.dtype(np.uint8), (n,), "records_before")
    step_type = _array(message.step_type, np.dtype(np.uint8), per_record, "step_type")
    reward = _array(message.reward, float32, per_record, "reward")
    discount = _array(message.discount, float32, per_record, "discount")
    action = _array(message.action, spec.action.dtype, action_shape, "action")
    parameters = _array(message.policy_parameters, float32, parameters_shape, "policy_parameters")
    version = _array(message.policy_version, np.dtype(np.int64), per_record, "policy_version")
    state = _blocks(
        message.initial_state,
        [(part.dtype, (n, *part.shape[1:])) for part in layout.state],
        "initial_state",
    )
    observation = _blocks(
        message.observation,
        [
            (tensor.storage_dtype, (n, context + records, *tensor.storage_shape))
            for tensor in spec.observation
        ],
        "observation",
    )
    _check_range(before, 0, context, "records_before")
    _check_range(step_type, StepType.FIRST, StepType.LAST, "step_type")
    _check_range(discount, 0, 1, "discount")
    _check_range(version, 0, np.iinfo(np.int64).max, "policy_version")
    _check_finite({"reward": reward, "action": action, "policy_parameters": parameters})
    _check_finite({f"initial_state[{i}]": part for i, part in enumerate(state)})
    _check_categories(layout, action, observation)
    # Where an episode begins in the context is all that stacks need to know of it.
    all_types = np.full((n, context + records), StepType.MID, np.uint8)
    all_types[np.arange(n), context - before] = StepType.FIRST
    all_types[:, context:] = step_type
    return RecordBatch(
        observation=observation,
        stack_index=tuple(stack_index(all_types, context, t.stack) for t in spec.observation),
        previous_action=action[:, :-1],
        action=action[:, 1:],
        reward=reward,
        discount=discount,
        step_type=step_type,
        policy_parameters=parameters,
        initial_state=state,
        policy_version=version,
    )


def parameter_specs(parameters: Parameters) -> list[trajectory_pb2.ParameterSpec]:
    """How a network's arrays are called and shaped, in the order of their bytes."""
    return [
        trajectory_pb2.ParameterSpec(name=name, shape=value.shape)
        for name, value in parameters.items()
    ]


def pack(parameters: Parameters) -> bytes:
    """The bytes of all arrays, in order."""
    return b"".join(value.tobytes() for value in parameters.values())


def unpack(like: Parameters, data: bytes) -> Parameters:
    """The inverse of `pack`.

    Args:
      like: Arrays of these names and shapes.
      data: What `pack` made.

    Raises:
      ValueError: It has another size.
    """
    expected = 4 * sum(value.size for value in like.values())
    if len(data) != expected:
        raise ValueError(f"parameters have {len(data)} bytes, expected: {expected}")
    result, at = {}, 0
    for name, value in like.items():
        result[name] = np.frombuffer(data, np.float32, value.size, at).reshape(value.shape)
        at += value.nbytes
    return result


def _array(field: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> Any:
    expected = math.prod(shape) * dtype.itemsize
    if len(field) != expected:
        raise _invalid(f"{name} has {len(field)} bytes, must have {expected} for {shape}")
    return np.frombuffer(field, dtype).reshape(shape)


def _blocks(
    field: bytes, blocks: Sequence[tuple[np.dtype[Any], tuple[int, ...]]], name: str
) -> tuple[Any, ...]:
    expected = sum(math.prod(shape) * dtype.itemsize for dtype, shape in blocks)
    if len(field) != expected:
        raise _invalid(f"{name} has {len(field)} bytes, must have {expected}")
    arrays, at = [], 0
    for dtype, shape in blocks:
        arrays.append(np.ndarray(shape, dtype, buffer=field, offset=at))
        at += math.prod(shape) * dtype.itemsize
    return tuple(arrays)


def _check_range(values: npt.NDArray[Any], low: float, high: float, name: str) -> None:
    wrong = ~((values >= low) & (values <= high))
    if wrong.any():
        raise _invalid(f"{name} is {values[wrong][0]}, allowed: {low:g} to {high:g}")


def _check_finite(arrays: dict[str, npt.NDArray[Any]]) -> None:
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise _invalid(f"{name} is not finite")


def _check_categories(
    layout: UnrollLayout, action: npt.NDArray[Any], observation: tuple[npt.NDArray[Any], ...]
) -> None:
    choices = getattr(layout.spec.action, "num_values", ())
    for i, count in enumerate(choices):
        _check_range(action[..., i], 0, count - 1, f"action[{i}]")
    for spec, tensor in zip(layout.spec.observation, observation, strict=True):
        if spec.data_type is DataType.FLOAT32:
            _check_finite({f"observation {spec.name!r}": tensor})
        elif spec.num_values:
            _check_range(tensor, 0, spec.num_values - 1, f"observation {spec.name!r}")


def _invalid(message: str) -> StatusError:
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, message)
