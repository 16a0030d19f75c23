"""What this learner computes on, and how TensorFlow uses it.

`configure` and `choose` are called once, before anything else touches TensorFlow.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from services.shared.config import DevicesConfig, LearnerConfig
from services.shared.cores import usable_cores

# Of the chips that a host's driver shows: v2 to v4, and later ones.
_TPU_FILES = ("accel[0-9]*", "vfio/[0-9]*")
_NAMES = {"cpu": "logical CPU devices", "gpu": "GPUs", "tpu": "TPU cores"}
_log = logging.getLogger(__name__)


class DeviceError(ValueError):
    """What was asked for is not there; the message has both numbers."""


@dataclasses.dataclass(frozen=True)
class Devices:
    """A learner's devices by what they do.

    Attributes:
      inference: TensorFlow's names of those that answer actors.
      training: Of those that make updates, the same ones if there is one for both.
      assignment: Of TPUs: the `tf.tpu.experimental.DeviceAssignment` of training.
    """

    inference: tuple[str, ...] = ("CPU:0",)
    training: tuple[str, ...] = ("CPU:0",)
    assignment: Any = None

    @property
    def divided(self) -> bool:
        """Whether inference has devices of its own."""
        return self.inference[0] not in self.training

    @property
    def fixed_sizes(self) -> bool:
        """Whether inference needs batches of few different sizes.

        Accelerators choose their kernels, or compile, for each size anew.
        """
        return len(self.inference) > 1 or "CPU" not in self.inference[0]


def configure(threads: int | None) -> None:
    """Sets thread pools.

    Args:
      threads: Threads inside one operation; None: one for each usable core.
    """
    usable = usable_cores()
    tf.config.threading.set_intra_op_parallelism_threads(threads or usable)
    # With one inter-op thread, inference would queue behind a whole training step.
    tf.config.threading.set_inter_op_parallelism_threads(max(4, usable))


def choose(config: LearnerConfig, learners: int = 1) -> Devices:
    """Finds the devices and divides them among inference and training.

    Args:
      config: The learner's settings.
      learners: Of the run. TensorFlow lets each of several train on all that it sees.

    Raises:
      DeviceError: They are not there, or cannot be divided so.
    """
    chosen = _find(config.devices, learners)
    if config.batch_size % len(chosen.training):
        raise DeviceError(
            f"learner.batch_size is {config.batch_size}, allowed with {len(chosen.training)}"
            " training devices: a multiple of their number (learner.devices.inference says how"
            " many do not train)"
        )
    _log.info(
        "inference on %s, training on %s", ", ".join(chosen.inference), ", ".join(chosen.training)
    )
    return chosen


def _find(settings: DevicesConfig, learners: int) -> Devices:
    gpus = tf.config.list_physical_devices("GPU")
    kind = settings.kind if settings.kind != "auto" else ("gpu" if gpus else "cpu")
    if kind != "tpu":
        _warn_of_idle("TPU chips", _tpu_chips(), 0, kind)
    if kind != "gpu":
        _warn_of_idle("GPUs", len(gpus), 0, kind)
    if kind == "tpu":
        if learners > 1:
            raise DeviceError(
                f"{learners} learners on TPUs, allowed: 1; TensorFlow's"
                " MultiWorkerMirroredStrategy adds up gradients of CPUs and GPUs alone"
            )
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        try:
            topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        except tf.errors.OpError as error:
            raise DeviceError(
                f"learner.devices asks for {settings.count or 'all'} TPU cores, found: 0"
                f" ({_tpu_chips()} chips in /dev): {str(error.message).splitlines()[0]}"
            ) from None
        return split_topology(settings, topology)
    count = len(gpus) if kind == "gpu" else settings.count or 1
    if kind == "cpu" and count > 1 and learners > 1:
        raise DeviceError(
            f"learner.devices.count is {count} CPU devices for each of {learners} learners,"
            " allowed: 1 of them"
        )
    found = [f"{kind.upper()}:{number}" for number in range(count)]
    chosen = split(settings, kind, found, shared=learners > 1)
    used = len({*chosen.inference, *chosen.training})
    if kind == "gpu":
        tf.config.set_visible_devices(gpus[:used], "GPU")
    else:
        tf.config.set_visible_devices([], "GPU")
        if used > 1:
            (cpu,) = tf.config.list_physical_devices("CPU")
            logical = [tf.config.LogicalDeviceConfiguration()] * used
            tf.config.set_logical_device_configuration(cpu, logical)
    return chosen


def split(
    settings: DevicesConfig, kind: str, found: Sequence[str], *, shared: bool = False
) -> Devices:
    """Divides devices: the first ones train, the last ones do inference; a single one does both.

    Args:
      settings: How many of them.
      kind: cpu, gpu or tpu.
      found: Names of those that are there.
      shared: All train, and the first one does inference beside it.

    Raises:
      DeviceError: There are too few.
    """
    what, count = _NAMES[kind], settings.count or len(found)
    if not found or len(found) < count:
        raise DeviceError(
            f"learner.devices asks for {settings.count or 'all'} {what}, found: {len(found)}"
        )
    _warn_of_idle(what, len(found), count, f"count {count}")
    names, inference = tuple(found[:count]), settings.inference or 1
    if settings.inference is not None and (shared or inference >= count):
        raise DeviceError(
            f"learner.devices.inference is {inference} of {count} {what}, allowed: "
            + (
                "none, each of several learners trains on all its devices and answers on the first"
                if shared
                else f"1 to {count - 1}, the others train"
                if count > 1
                else "none, one device does both"
            )
        )
    if count == 1 or shared:
        return Devices(names[:1], names)
    return Devices(names[-inference:], names[:-inference])


def split_topology(settings: DevicesConfig, topology: Any) -> Devices:
    """Divides the cores of a TPU slice, in an order in which neighbours are linked.

    Args:
      settings: How many.
      topology: A `tf.tpu.experimental.Topology`, of one host.

    Raises:
      DeviceError: There are too few, or of more than one host.
    """
    if topology.num_tasks != 1:
        raise DeviceError(
            f"the TPU slice has {topology.num_tasks} hosts, allowed: 1 (TensorFlow has no"
            " multi-slice, and this learner is one process)"
        )
    make = tf.tpu.experimental.DeviceAssignment
    every = make.build(topology, num_replicas=topology.num_tpus_per_task)
    cores = [every.tpu_device(replica=number) for number in range(every.num_replicas)]
    chosen = split(settings, "tpu", cores)
    assignment = make(topology, every.core_assignment[: len(chosen.training)])
    return dataclasses.replace(chosen, assignment=assignment)


def _warn_of_idle(what: str, found: int, used: int, because: str) -> None:
    if found > used:
        _log.warning(
            "%d OF %d %s ARE IDLE, and may be paid for: learner.devices is %s",
            found - used, found, what, because,
        )  # fmt: skip


def _tpu_chips(folder: pathlib.Path = pathlib.Path("/dev")) -> int:
    return sum(len(list(folder.glob(pattern))) for pattern in _TPU_FILES)
