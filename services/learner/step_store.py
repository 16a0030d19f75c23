"""The step store: every record of every env slot, in memory that the processes share.

Front ends copy arriving rows into it, the inference loop fills in what the policy answered,
training reads whole unrolls from it. One ring of `ring` records for each slot; record number n
of a slot lies in row n % ring. Nothing but slot and group numbers travels beside it.

The memory is an anonymous file (memfd) whose descriptor is handed to the front ends, so it is
gone with the last process that holds it. Pages are used only once a slot writes to them.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from services.shared import wire
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import EnvironmentSpec

_ALIGNMENT = 64  # bytes; a cache line, and what TensorFlow wants for sharing memory


@dataclasses.dataclass(frozen=True)
class StoreLayout:
    """Everything that determines where the arrays lie.

    Attributes:
      spec: What the environments look like.
      slots: Number of env slots.
      ring: Records kept for each slot.
      parameter_size: Elements of the policy's parameters (logits, or mean and log deviation).
      front_ends: Number of front-end processes.
      policy_kind: `PolicyKind` of the contract: what `policy_parameters` stand for.
      rescaling_epsilon: Of h, by which action values are rescaled (R2D2).
    """

    spec: EnvironmentSpec
    slots: int
    ring: int
    parameter_size: int
    front_ends: int
    policy_kind: int = inference_pb2.POLICY_KIND_PROBABILITIES
    rescaling_epsilon: float = 1e-3

    def to_json(self) -> dict[str, object]:
        """A JSON-able description, for the front ends."""
        proto = wire.environment_spec_to_proto(self.spec)
        return {**dataclasses.asdict(self), "spec": proto.SerializeToString().hex()}

    @classmethod
    def from_json(cls, document: dict[str, object]) -> StoreLayout:
        """The inverse of `to_json`."""
        proto = inference_pb2.EnvironmentSpec.FromString(bytes.fromhex(str(document["spec"])))
        spec = wire.environment_spec_from_proto(proto)
        return cls(**{**document, "spec": spec})  # type: ignore[arg-type]


# What each front end counts, in the order of the columns of `StepStore.counters`.
COUNTERS = (
    "streams",
    "requests",
    "request_bytes",
    "rejected",
    "repeated",
    "environment_cpu_seconds",
    "actor_cpu_seconds",
    "front_end_cpu_seconds",
    "recordings",
    "recording_failures",
)


class StepStore:
    """The arrays, mapped from one memfd. `K` stands for the storage shape of a tensor.

    Attributes:
      observation: One array [slots, ring, *K] for each tensor of the spec.
      reward, discount: float32 [slots, ring].
      step_type: uint8 [slots, ring].
      incarnation: uint32 [slots, ring].
      action: [slots, ring, A], as the policy chose it.
      policy_parameters: float32 [slots, ring, P], of the policy that chose it.
      policy_version: int64 [slots, ring], number of updates that policy had seen.
      <name>_flat: The same memory as [slots * ring, ...]: one index array is faster than two.
      observation_rows: The same again, [slots * ring] each, a record's bytes as one element: a
        fifth of the time for writing rows of 460 bytes.
      written: int64 [slots], number of records processed, so the next record's number.
      value: float32 [slots], that the policy gave to the newest processed record.
      episode_info: uint8 [slots, EPISODE_INFO_BYTES], a serialized EpisodeInfo.
      episode_info_bytes: uint16 [slots], its length; 0: nothing was told.
      slot_incarnation: uint32 [slots], of the newest processed record; 0 after a lease.
      group_epoch: uint32 [slots], changes with each stream of a group.
      group_answered: uint64 [slots], sequence number of a group's newest answered request.
      finished: uint32 [1], nonzero when training is over.
      counters: float64 [front_ends, len(COUNTERS)]; each front end writes its own row.
      requests, answers: One queue for each front end, from and to it.
    """

    def __init__(self, layout: StoreLayout, fd: int) -> None:
        """Maps the memory behind `fd`; see `create` and the front ends."""
        self.layout = layout
        self.fd = fd
        arrays = _arrays(layout)
        self._map = mmap.mmap(fd, _total_bytes(arrays))
        views: dict[str, npt.NDArray[Any]] = {}
        at = 0
        for name, (dtype, shape) in arrays.items():
            views[name] = np.ndarray(shape, dtype, buffer=self._map, offset=at)
            at += _aligned_bytes(dtype, shape)
        count = len(layout.spec.observation)
        self.observation = tuple(views[f"observation_{i}"] for i in range(count))
        self.reward = views["reward"]
        self.discount = views["discount"]
        self.step_type = views["step_type"]
        self.incarnation = views["incarnation"]
        self.action = views["action"]
        self.policy_parameters = views["policy_parameters"]
        self.policy_version = views["policy_version"]
        self.observation_flat = tuple(_flat(x) for x in self.observation)
        self.observation_rows = tuple(
            np.ndarray(
                (layout.slots * layout.ring,),
                np.dtype((np.void, tensor.storage_bytes)),
                buffer=x,
            )
            for tensor, x in zip(layout.spec.observation, self.observation, strict=True)
        )
        self.reward_flat = _flat(self.reward)
        self.discount_flat = _flat(self.discount)
        self.step_type_flat = _flat(self.step_type)
        self.incarnation_flat = _flat(self.incarnation)
        self.action_flat = _flat(self.action)
        self.policy_parameters_flat = _flat(self.policy_parameters)
        self.policy_version_flat = _flat(self.policy_version)
        self.written = views["written"]
        self.value = views["value"]
        self.episode_info = views["episode_info"]
        self.episode_info_bytes = views["episode_info_bytes"]
        self.slot_incarnation = views["slot_incarnation"]
        self.group_epoch = views["group_epoch"]
        self.group_answered = views["group_answered"]
        self.finished = views["finished"]
        self.counters = views["counters"]
        self.requests = _queues(views, "requests", layout.front_ends)
        self.answers = _queues(views, "answers", layout.front_ends)

    @classmethod
    def create(cls, layout: StoreLayout) -> StepStore:
        """Makes the memory, all zeros."""
        fd = os.memfd_create("seedpod-step-store", os.MFD_CLOEXEC)
        os.ftruncate(fd, _total_bytes(_arrays(layout)))
        return cls(layout, fd)

    def take_episode_info(self, slot: int) -> tuple[str, dict[str, float]]:
        """What is told of a slot's episode that has just ended: level and values; once."""
        size = int(self.episode_info_bytes[slot])
        self.episode_info_bytes[slot] = 0
        info = inference_pb2.EpisodeInfo.FromString(self.episode_info[slot, :size].tobytes())
        return info.level, dict(info.values)


class GroupQueue:
    """Group numbers with their epochs, from one process to one other, without a lock.

    Only the writer moves `head`, only the reader `tail`; the eventfd that wakes the reader
    orders their memory accesses.
    """

    def __init__(self, entries: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        """Wraps entries uint64 [capacity] and ends int64 [2, cache line]."""
        self._entries = entries
        self._head = ends[0]
        self._tail = ends[1]
        self._capacity = len(entries)

    def put(self, group: int, epoch: int) -> None:
        """Appends an entry.

        Raises:
          RuntimeError: The reader is `capacity` entries behind: a bug, since each group has one
            request under way.
        """
        head = int(self._head[0])
        if head - int(self._tail[0]) >= self._capacity:
            raise RuntimeError(f"group queue holds {self._capacity} entries already")
        self._entries[head % self._capacity] = (group << 32) | epoch
        self._head[0] = head + 1

    def take(self) -> list[tuple[int, int]]:
        """Removes and returns all entries as (group, epoch)."""
        head, tail = int(self._head[0]), int(self._tail[0])
        if head == tail:
            return []
        indices = np.arange(tail, head) % self._capacity
        entries = self._entries[indices].tolist()
        self._tail[0] = head
        return [(entry >> 32, entry & 0xFFFFFFFF) for entry in entries]


def _arrays(layout: StoreLayout) -> dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]]:
    spec, slots, ring = layout.spec, layout.slots, layout.ring
    float32, int64, uint32 = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.uint32)
    uint64 = np.dtype(np.uint64)
    # A group whose stream is replaced may leave a stale entry behind; far more than that many
    # cannot gather while the reader drains the queue at each wake-up.
    capacity = 4 * slots + 64
    arrays: dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]] = {
        "finished": (uint32, (1,)),
        "counters": (np.dtype(np.float64), (layout.front_ends, len(COUNTERS))),
        "written": (int64, (slots,)),
        "value": (float32, (slots,)),
        "episode_info": (np.dtype(np.uint8), (slots, wire.EPISODE_INFO_BYTES)),
        "episode_info_bytes": (np.dtype(np.uint16), (slots,)),
        "slot_incarnation": (uint32, (slots,)),
        "group_epoch": (uint32, (slots,)),
        "group_answered": (uint64, (slots,)),
        "reward": (float32, (slots, ring)),
        "discount": (float32, (slots, ring)),
        "step_type": (np.dtype(np.uint8), (slots, ring)),
        "incarnation": (uint32, (slots, ring)),
        "action": (spec.action.dtype, (slots, ring, spec.action.size)),
        "policy_parameters": (float32, (slots, ring, layout.parameter_size)),
        "policy_version": (int64, (slots, ring)),
    }
    for name in ("requests", "answers"):
        arrays[f"{name}_entries"] = (uint64, (layout.front_ends, capacity))
        arrays[f"{name}_ends"] = (int64, (layout.front_ends, 2, _ALIGNMENT // 8))
    for i, tensor in enumerate(spec.observation):
        arrays[f"observation_{i}"] = (
            tensor.storage_dtype,
            (slots, ring, *tensor.storage_shape),
        )
    return arrays


def _queues(views: dict[str, npt.NDArray[Any]], name: str, count: int) -> list[GroupQueue]:
    entries, ends = views[f"{name}_entries"], views[f"{name}_ends"]
    return [GroupQueue(entries[i], ends[i]) for i in range(count)]


def _flat(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return x.reshape(-1, *x.shape[2:])


def _aligned_bytes(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


def _total_bytes(arrays: dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]]) -> int:
    return sum(_aligned_bytes(dtype, shape) for dtype, shape in arrays.values())
