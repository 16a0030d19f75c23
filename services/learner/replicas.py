"""What makes one update together: training devices of this learner, and other learners.

Each replica makes the gradients of its part of the batch; one sum over all of them, in which each
gradient counts as much as its part has transitions, is the gradient of the whole batch. So every
replica makes the same update of the same variables, and a run of many devices is that of one with
a larger batch. The sum is one vector: a collective costs the same for a number as for a network.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from services.learner.devices import Devices
from services.learner.peers import Cluster, PeerLost

# What a collective says when another process of it has gone.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)
_ABORTED = "Collective ops is aborted"
# A learner that is silent for so long has gone; one on a busy machine may be late.
_HEARTBEAT_SECONDS = 20.0
# `peers.wait` has seen them all before TensorFlow begins to connect them. Meanwhile no other Python
# of this process runs, signal handlers included.
_REGISTER_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Contribution(NamedTuple):
    """What a replica knows of its part of the batch; `Replicas.combine` makes the whole of it.

    Attributes:
      gradients: Float tensors.
      value: float32 scalar, the loss, a mean over so many transitions as `weight` says.
      weight: float32 scalar; 0: the part counts for nothing.
      means: float32 scalars by name, means like the loss.
      maxima: float32 scalars by name, of which the largest counts.
      tally: float32 [n], the learner's; what all learners have is added up.
    """

    gradients: list[tf.Tensor]
    value: tf.Tensor
    weight: tf.Tensor
    means: dict[str, tf.Tensor]
    maxima: dict[str, tf.Tensor]
    tally: tf.Tensor


class Replicas:
    """Of one learner process.

    Attributes:
      learner: This learner's number; 0 is the chief, which writes checkpoints.
      learners: How many there are.
      devices: Of this learner.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy | None = None,
        learner: int = 0,
        learners: int = 1,
        devices: Devices = Devices(),  # noqa: B008  # It is frozen.
    ) -> None:
        """Wraps a strategy; None: one replica on TensorFlow's default device."""
        self._strategy = strategy
        self.devices = devices
        self.learner = learner
        self.learners = learners
        self.local = 1 if strategy is None else strategy.num_replicas_in_sync // learners

    @property
    def is_alone(self) -> bool:
        """Whether there is one replica: nothing is to be combined."""
        return self._strategy is None

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Variables that are made in it exist once in each replica."""
        return contextlib.nullcontext() if self._strategy is None else self._strategy.scope()

    def run(self, step: Callable[..., Any], arrays: Sequence[tf.Tensor]) -> list[Any]:
        """Runs a step in each replica of this learner; inside a graph.

        Args:
          step: Called with the replica's part of each array.
          arrays: [B, ...] each; B is a multiple of `local`.

        Returns:
          What each local replica has returned.
        """
        strategy = self._strategy
        if strategy is None:
            return [step(*arrays)]
        if self.local == 1:
            return list(_local_results(strategy, strategy.run(step, tuple(arrays)), 1))
        with tf.device("CPU:0"):
            parts = [tf.split(array, self.local) for array in arrays]
        first = self.learner * self.local

        def part(context: tf.distribute.ReplicaContext) -> Any:
            at = context.replica_id_in_sync_group - first
            return tuple(pieces[at] for pieces in parts)

        values = strategy.experimental_distribute_values_from_function(part)
        return _local_results(strategy, strategy.run(step, values), self.local)

    def combine(self, own: Contribution) -> Contribution:
        """The same for all replicas, of what each has; inside `run`."""
        if self._strategy is None:
            return own
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int32)
        count = self._strategy.num_replicas_in_sync
        means = [*own.gradients, own.value, *own.means.values()]
        flat = [tf.reshape(tf.cast(x, tf.float32), [-1]) * own.weight for x in means]
        # Each replica writes into a place of its own.
        counts = tf.cast(own.weight > 0, tf.float32)
        maxima = [tf.one_hot(replica, count) * x * counts for x in own.maxima.values()]
        # Of a learner's replicas the first one speaks for it.
        tally = own.tally * tf.cast(replica % self.local == 0, tf.float32)
        pieces = [own.weight[None], tally, *maxima, *flat]
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat(pieces, axis=0))
        weight, tally, *rest = tf.split(total, [piece.shape[0] for piece in pieces])
        maxima, flat = rest[: len(maxima)], rest[len(maxima) :]
        averages = [
            tf.reshape(x / tf.maximum(weight, 1.0), mean.shape)
            for x, mean in zip(flat, means, strict=True)
        ]
        gradients, value = averages[: len(own.gradients)], averages[len(own.gradients)]
        return Contribution(
            gradients=gradients,
            value=value,
            weight=weight[0],
            means=dict(zip(own.means, averages[len(own.gradients) + 1 :], strict=True)),
            maxima=dict(zip(own.maxima, map(tf.reduce_max, maxima), strict=True)),
            tally=tally,
        )

    def broadcast(
        self, arrays: dict[str, npt.NDArray[np.generic]]
    ) -> dict[str, npt.NDArray[np.generic]]:
        """The chief's arrays, for all learners; each gives arrays of the same names and shapes.

        Waits until all learners are here.

        Raises:
          PeerLost: One of them has gone.
        """
        if self.learners == 1:
            return arrays
        data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
        padded = data + bytes(-len(data) % 4)
        # Bits, whatever they mean: all others add zeros.
        bits = np.frombuffer(padded, np.int32) * np.int32(self.learner == 0)
        with self.watch():
            taken = self._sum(tf.constant(bits)).numpy().tobytes()
        values, at = {}, 0
        for name, array in arrays.items():
            piece = taken[at : at + array.nbytes]
            values[name] = np.frombuffer(piece, array.dtype).reshape(array.shape)
            at += array.nbytes
        return values

    def check_alike(self, own: dict[str, str]) -> None:
        """Refuses what would make another update than the chief's; waits until all are here.

        Args:
          own: What all learners must have in common, by name.

        Raises:
          PeerLost: This learner differs from the chief, or another one has gone.
        """
        if self.learners == 1:
            return
        text = np.frombuffer(json.dumps(own).encode(), np.uint8)
        size = int(self.broadcast({"size": np.array(len(text), np.int64)})["size"])
        padded = text if self.learner == 0 else np.zeros(size, np.uint8)
        chief: dict[str, str] = json.loads(self.broadcast({"text": padded})["text"].tobytes())
        faults = [
            f"{name} is {own.get(name)} here, {chief.get(name)} there"
            for name in sorted({*own, *chief})
            if own.get(name) != chief.get(name)
        ]
        if faults:
            raise PeerLost("this learner is unlike the first one: " + "; ".join(faults))

    def _sum(self, vector: tf.Tensor) -> tf.Tensor:
        """Over learners, outside of graphs."""

        def add() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            first = tf.cast(context.replica_id_in_sync_group, tf.int32) % self.local == 0
            own = vector * tf.cast(first, vector.dtype)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

        strategy = self._strategy
        assert strategy is not None, "there are other learners"
        total = tf.function(lambda: strategy.run(add), autograph=False)()
        return strategy.experimental_local_results(total)[0]

    def watch(self) -> contextlib.AbstractContextManager[None]:
        """Turns what a collective says of a learner that has gone into `PeerLost`."""
        return contextlib.nullcontext() if self.learners == 1 else _peers_watched()


ALONE = Replicas()


@contextlib.contextmanager
def _peers_watched() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        lost = _loss(error)
        if lost is None:
            raise
        lines = str(lost.message).splitlines()
        reason = next((line for line in lines if "aborted by" in line), lines[-1])
        raise PeerLost(f"another learner has gone, or cannot be reached: {reason}") from error


def _loss(error: BaseException | None) -> tf.errors.OpError | None:
    """What TensorFlow said of a learner that has gone, if that is why there was this error."""
    while error is not None:
        if isinstance(error, _LOST):
            return error
        # One that came back as a stranger makes it an InvalidArgumentError.
        if isinstance(error, tf.errors.OpError) and _ABORTED in str(error.message):
            return error
        error = error.__cause__
    return None


def form(cluster: Cluster | None, devices: Devices = Devices()) -> Replicas:  # noqa: B008
    """Makes the replicas of this learner, together with the other learners.

    Call it in the main thread, before anything else uses TensorFlow, and after `peers.wait`.

    Args:
      cluster: All learners; None: there is only this one.
      devices: What this learner computes on.

    Raises:
      PeerLost: Another learner has gone meanwhile.
    """
    strategy = None
    if cluster is not None:
        _log.info("connecting with the other learners, for at most %.0f s", _REGISTER_SECONDS)
        with _peers_watched():
            _limit_waits(cluster)
            strategy = tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=tf.distribute.experimental.CommunicationOptions(
                    implementation=communication(devices)
                )
            )
        # TensorFlow has taken SIGTERM for itself and does nothing with it.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        _log.info("one of %d learners, number %d", len(cluster.addresses), cluster.index)
        return Replicas(strategy, cluster.index, len(cluster.addresses), devices)
    if devices.assignment is not None:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        strategy = tf.distribute.TPUStrategy(
            resolver, experimental_device_assignment=devices.assignment
        )
    elif len(devices.training) > 1:
        strategy = tf.distribute.MirroredStrategy(list(devices.training))
    return Replicas(strategy, devices=devices)


def communication(devices: Devices) -> tf.distribute.experimental.CommunicationImplementation:
    """How learners add up: NVIDIA's library between GPUs, rings over gRPC between CPUs."""
    kinds = tf.distribute.experimental.CommunicationImplementation
    return kinds.NCCL if "GPU" in devices.training[0] else kinds.RING


def _limit_waits(cluster: Cluster) -> None:
    """Makes TensorFlow notice within seconds that a learner has gone; its default is an hour."""
    context = eager_context.context()
    protobuf = eager_context.coordination_config_pb2
    job = protobuf.CoordinatedJob(name="worker", num_tasks=len(cluster.addresses))
    # The strategy would do the same without the limits; there is no public way to set them.
    context.configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=int(1000 * _REGISTER_SECONDS),
        heartbeat_timeout_in_ms=int(1000 * _HEARTBEAT_SECONDS),
        coordinated_jobs=[job],
    )
    # Else the first learner waits for ever for one that has gone since `peers.wait` saw it.
    context._coordination_service_config.cluster_register_with_barrier = True


def _local_results(strategy: tf.distribute.Strategy, results: Any, count: int) -> list[Any]:
    """A structure of values by replica to a structure for each replica."""
    flat = [strategy.experimental_local_results(x) for x in tf.nest.flatten(results)]
    return [
        tf.nest.pack_sequence_as(results, [values[at] for values in flat]) for at in range(count)
    ]
