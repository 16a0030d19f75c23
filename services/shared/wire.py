"""Between protobuf messages and the arrays that services work with.

The actor converts its spec for Join; the learner's front ends read every ActRequest through
`read_act_request`, which finds the fields in the message's bytes without building the message.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from services.shared import specs, varint
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.varint import MalformedMessage

EPISODE_INFO_BYTES = 512  # of one EpisodeInfo, at most
API_VERSION = "seedpod.inference.v1"


class ActRequestFields(NamedTuple):
    """An ActRequest; `observation` is a view into the received message."""

    sequence: int
    incarnation: bytes
    step_type: bytes
    reward: bytes
    discount: bytes
    environment_cpu_seconds: float
    actor_cpu_seconds: float
    observation: memoryview
    episodes: tuple[inference_pb2.EpisodeInfo, ...]
    wants_policy: bool


_EMPTY = memoryview(b"")
_FLOAT = struct.Struct("<f")


def read_act_request(message: bytes) -> ActRequestFields:
    """Finds an ActRequest's fields; equal to `ActRequest.FromString` on every valid message.

    Groups, which proto3 does not have, are no part of one.

    Args:
      message: The serialized ActRequest.

    Returns:
      Its fields; absent ones have protobuf's defaults.

    Raises:
      MalformedMessage: The bytes are not a protobuf message.
    """
    fields: list[int | float | bytes | memoryview] = [
        0, b"", b"", b"", b"", 0.0, 0.0, _EMPTY,
    ]  # fmt: skip
    episodes: list[inference_pb2.EpisodeInfo] = []
    wants_policy = False
    view = memoryview(message)
    end = len(message)
    at = 0
    while at < end:
        tag = message[at]
        if tag < 0x80:  # of the fields up to 15; a call would cost more than the rest
            at += 1
        else:
            tag, at = varint.read(message, at, 32)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise MalformedMessage(f"field number {number} at byte {at}")
        if kind == 2:
            length, at = varint.read(message, at, 32)
            stop = at + length
            if stop > end:
                raise MalformedMessage(f"field {number} of {length} bytes is cut off")
            if 2 <= number <= 5:
                fields[number - 1] = message[at:stop]
            elif number == 8:
                fields[7] = view[at:stop]
            elif number == 9:
                episodes.append(_episode_info(view[at:stop]))
            at = stop
        elif kind == 0:
            value, at = varint.read(message, at)
            if number == 1:
                fields[0] = value
            elif number == 10:
                wants_policy = value != 0
        elif kind in (1, 5):
            stop = at + (8 if kind == 1 else 4)
            if stop > end:
                raise MalformedMessage(f"field {number} is cut off")
            if kind == 5 and number in (6, 7):
                fields[number - 1] = _FLOAT.unpack_from(message, at)[0]
            at = stop
        else:
            raise MalformedMessage(f"field {number} has wire type {kind}")
    return ActRequestFields(*fields, tuple(episodes), wants_policy)  # type: ignore[arg-type,call-arg]


def _episode_info(message: memoryview) -> inference_pb2.EpisodeInfo:
    try:
        info: inference_pb2.EpisodeInfo = inference_pb2.EpisodeInfo.FromString(bytes(message))
    except DecodeError as error:
        raise MalformedMessage(f"not an EpisodeInfo: {error}") from None
    return info


class ObservationLayout:
    """Where the tensors lie in an `observation` field: [k, ...] blocks, one after the other."""

    def __init__(self, observation: tuple[specs.TensorSpec, ...], k: int) -> None:
        """Computes the layout for `k` slots."""
        self._k = k
        self._blocks = []
        self._rows = []
        at = 0
        for spec in observation:
            self._blocks.append((spec.storage_dtype, (k, *spec.storage_shape), at))
            self._rows.append((np.dtype((np.void, spec.storage_bytes)), at))
            at += k * spec.storage_bytes
        self.total_bytes = at

    def views(
        self, observation: memoryview | bytearray | bytes
    ) -> tuple[npt.NDArray[np.generic], ...]:
        """The blocks as arrays [k, *storage_shape] that share the buffer's memory."""
        return tuple(
            np.ndarray(shape, dtype, buffer=observation, offset=at)
            for dtype, shape, at in self._blocks
        )

    def rows(self, observation: memoryview) -> tuple[npt.NDArray[np.void], ...]:
        """The blocks as arrays [k] of whole rows, which numpy copies as they are."""
        return tuple(
            np.ndarray((self._k,), dtype, buffer=observation, offset=at) for dtype, at in self._rows
        )


def environment_spec_to_proto(spec: specs.EnvironmentSpec) -> inference_pb2.EnvironmentSpec:
    """The message for a spec."""
    action = inference_pb2.ActionSpec()
    if isinstance(spec.action, specs.DiscreteActionSpec):
        action.discrete.num_values.extend(spec.action.num_values)
    else:
        action.continuous.minimum.extend(spec.action.minimum)
        action.continuous.maximum.extend(spec.action.maximum)
    return inference_pb2.EnvironmentSpec(
        observation=[
            inference_pb2.TensorSpec(
                name=tensor.name,
                data_type=f"DATA_TYPE_{tensor.data_type.name}",
                shape=tensor.shape,
                stack=tensor.stack,
                num_values=tensor.num_values,
            )
            for tensor in spec.observation
        ],
        action=action,
        agents=spec.agents,
        frames_per_step=spec.frames_per_step,
    )


def environment_spec_from_proto(message: inference_pb2.EnvironmentSpec) -> specs.EnvironmentSpec:
    """The spec of a message.

    Raises:
      ValueError: A value outside its limits; the message names it.
    """
    kind = message.action.WhichOneof("kind")
    action: specs.ActionSpec
    if kind == "discrete":
        action = specs.DiscreteActionSpec(tuple(message.action.discrete.num_values))
    elif kind == "continuous":
        action = specs.ContinuousActionSpec(
            tuple(message.action.continuous.minimum), tuple(message.action.continuous.maximum)
        )
    else:
        raise ValueError("action spec is empty, allowed: discrete or continuous")
    observation = []
    for tensor in message.observation:
        if tensor.data_type not in set(specs.DataType):
            raise ValueError(
                f"tensor {tensor.name!r}: data type is {tensor.data_type}, allowed:"
                f" {[f'{t.name}={t.value}' for t in specs.DataType]}"
            )
        observation.append(
            specs.TensorSpec(
                name=tensor.name,
                data_type=specs.DataType(tensor.data_type),
                shape=tuple(tensor.shape),
                stack=tensor.stack,
                num_values=tensor.num_values,
            )
        )
    return specs.EnvironmentSpec(
        observation=tuple(observation),
        action=action,
        agents=message.agents,
        frames_per_step=message.frames_per_step,
    )
