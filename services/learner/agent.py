"""The agent: network, loss and optimizer behind two numpy-facing calls.

The inference thread calls `act`, the trainer thread `train`; both use the same variables, so
inference always has the newest parameters. Both are concrete functions, traced once: calling
them costs a fraction of what an ordinary `tf.function` call does.

What is particular to an algorithm is in `vtrace_agent` and `r2d2_agent`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from services.learner import checkpoint, optimizer, preprocess, unrolls
from services.learner.agreement import NO_TALLY, Tally
from services.learner.inference import Arrays, Decisions
from services.learner.networks import heads, registry
from services.learner.networks.base import NetworkInputs, named_variables
from services.learner.replicas import ALONE, Contribution, Replicas
from services.learner.trainer import TrainingBatch, Update
from services.learner.unrolls import RecordBatch
from services.shared.config import LearnerConfig
from services.shared.specs import EnvironmentSpec, StepType


class Records(NamedTuple):
    """A `RecordBatch` inside the graph, time-major; see `unrolls`."""

    inputs: NetworkInputs
    action: tf.Tensor
    reward: tf.Tensor
    discount: tf.Tensor
    step_type: tf.Tensor
    policy_parameters: tf.Tensor
    initial_state: tuple[tf.Tensor, ...]


class Loss(NamedTuple):
    """What an algorithm makes of a batch.

    Attributes:
      value: float32 scalar to minimize, a mean.
      weight: float32 scalar, of how many: transitions or sequences.
      metrics: float32 scalars by name. `behaviour_difference` is the largest difference between
        policy parameters as inference recorded them and as training computes them.
      priorities: float32 [B], or empty.
    """

    value: tf.Tensor
    weight: tf.Tensor
    metrics: dict[str, tf.Tensor]
    priorities: tf.Tensor


class Agent(abc.ABC):
    """What all algorithms share."""

    def __init__(
        self,
        config: LearnerConfig,
        spec: EnvironmentSpec,
        make_head: Callable[[], heads.Head],
        parameter_size: int,
        batch_records: int,
        replicas: Replicas = ALONE,
    ) -> None:
        """Makes the network; the subclass calls `_trace` when it has made the rest.

        Both happen in `replicas.scope()`.

        Args:
          config: The learner's settings.
          spec: What the environments look like.
          make_head: Makes what the algorithm makes of a network's features.
          parameter_size: P, the numbers that `act` returns for each record.
          batch_records: Consecutive records of each slot in a training batch.
          replicas: What makes an update together.

        Raises:
          NetworkError: The network does not exist or cannot take these observations.
        """
        self._config = config
        self._spec = spec
        self._batch_records = batch_records
        self._replicas = replicas
        # Networks begin alike in all learners, but each draws actions of its own.
        self._act_seed = config.seed + replicas.learner
        self.parameter_size = parameter_size
        self._make_head = make_head
        self._network = self._make_network()
        pool = config.self_play
        self._past = [self._make_network() for _ in range(pool.pool_size if pool else 0)]
        self._snapshot_period = pool.snapshot_period if pool else 1
        # Counts the calls of `act`: with the run's seed it makes each call's random numbers.
        self._act_calls = 0
        self._version = 0

    @property
    def version(self) -> int:
        """Updates so far."""
        return self._version

    @property
    def past_policies(self) -> int:
        """Policies of the pool to choose from: the first one, which knows nothing, and later ones.

        Only with `learner.self_play`.
        """
        return min(1 + self._version // self._snapshot_period, len(self._past))

    def initial_state(self, slots: int) -> Arrays:
        """The recurrent state of so many slots, zeros [slots, ...] a tensor."""
        return tuple(part.numpy() for part in self._network.initial_state(slots))

    def act(
        self,
        slots: npt.NDArray[np.int64],
        observation: Arrays,
        previous_action: npt.NDArray[np.generic],
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        state: Arrays,
        past: int | None = None,
    ) -> Decisions:
        """Chooses actions; see `inference.Policy`, and for `past` `self_play.PolicyWithPast`."""
        act = self._act if past is None else self._past_acts[past]
        self._act_calls += 1
        seed = np.array([self._act_seed, self._act_calls], np.int64)
        rows = [*observation, previous_action, reward, first, self._explore(slots), *state]
        count, devices = len(slots), self._replicas.devices
        if devices.fixed_sizes:
            size = padded_size(count, len(devices.inference))
            rows = [pad_rows(array, size) for array in rows]
        outputs = act(*map(tf.convert_to_tensor, (*rows, seed)))
        action, parameters, value, *new_state = (output.numpy()[:count] for output in outputs)
        return Decisions(action, parameters, value, tuple(new_state))

    def train(self, batch: TrainingBatch, frames: int, tally: Tally = NO_TALLY) -> Update:
        """Makes one update; see `trainer.Updater`."""
        records, weights = batch.records, batch.weights
        arrays = (
            *records.observation,
            *records.stack_index,
            records.previous_action,
            records.action,
            records.reward,
            records.discount,
            records.step_type,
            records.policy_parameters,
            *records.initial_state,
            np.ones(len(records.reward), np.float32) if weights is None else weights,
            # Not a number of Python's: TensorFlow keeps a tensor of each that it has ever seen.
            np.int64(frames),
            tally,
        )
        with self._replicas.watch():
            values, priorities, total = self._train(*map(tf.convert_to_tensor, arrays))
            metrics = {name: float(value.numpy()) for name, value in values.items()}
        if not metrics["skipped"]:
            self._version += 1
            self._publish()
            if self._past and self._version % self._snapshot_period == 0:
                newest = self._version // self._snapshot_period
                copy_variables(self._network, self._past[newest % len(self._past)])
        return Update(metrics, total.numpy(), priorities.numpy() if len(priorities) else None)

    def empty_batch(self) -> TrainingBatch:
        """Zeros of a weight of zero: what a learner gives that has no batch in hand."""
        zeros: list[Any] = [
            np.zeros(x.shape, x.dtype.as_numpy_dtype) for x in self._record_signature()
        ]
        count = len(self._spec.observation)
        previous, action, reward, discount, step_type, parameters = zeros[2 * count :][:6]
        length, batch = self._batch_records, self._config.batch_size
        records = RecordBatch(
            observation=tuple(zeros[:count]),
            stack_index=tuple(zeros[count : 2 * count]),
            previous_action=previous,
            action=action,
            reward=reward,
            discount=discount,
            step_type=step_type,
            policy_parameters=parameters,
            initial_state=tuple(zeros[2 * count + 6 :]),
            policy_version=np.zeros((batch, length), np.int64),
        )
        return TrainingBatch(records, np.zeros(batch, np.float32))

    def variables(self) -> dict[str, npt.NDArray[np.generic]]:
        """Everything that training changes, by name."""
        values = {name: v.numpy() for name, v in self._named_variables().items()}
        values["act_calls"] = np.array(self._act_calls, np.int64)
        return values

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Sets what `variables` returned when the checkpoint was saved.

        Raises:
          CheckpointError: A variable is missing, unexpected or has another shape or type.
        """
        self._assign(saved.variables(self.variables()))

    def begin_with(self, saved: checkpoint.Checkpoint) -> None:
        """Takes over a checkpoint's network; the optimizer and all that is counted begin anew.

        Raises:
          CheckpointError: It has another network.
        """
        self._read_network(saved, [self._network, *self._past])
        self._publish()

    def play_against(self, saved: checkpoint.Checkpoint) -> None:
        """Makes a checkpoint's network the only one of the pool.

        Raises:
          CheckpointError: It has another network.
        """
        self._read_network(saved, self._past)

    def _read_network(self, saved: checkpoint.Checkpoint, into: Sequence[tf.Module]) -> None:
        expected = {f"network/{n}": v for n, v in named_variables(self._network).items()}
        arrays = {n: a for n, a in saved.variables().items() if n.startswith("network/")}
        checkpoint.check_variables(arrays, expected, str(saved.path))
        for network in into:
            for name, variable in named_variables(network).items():
                variable.assign(arrays[f"network/{name}"])

    def synchronize(self, counters: dict[str, int], settings: dict[str, str]) -> dict[str, int]:
        """Takes over the chief's variables; waits until all learners call it.

        Args:
          counters: Integers by name, which are taken over too.
          settings: What must be the chief's, by name.

        Returns:
          The chief's counters.

        Raises:
          PeerLost: Another learner has gone, or the settings differ.
        """
        self._replicas.check_alike(settings)
        ours = {f"counters/{name}": np.array(n, np.int64) for name, n in counters.items()}
        values = self._replicas.broadcast({**self.variables(), **ours})
        theirs = {name: int(values.pop(f"counters/{name}")) for name in counters}
        if self._replicas.learner:
            self._assign(values)
        return theirs

    def _assign(self, values: Mapping[str, npt.NDArray[np.generic]]) -> None:
        for name, variable in self._named_variables().items():
            variable.assign(values[name])
        self._version = int(values["optimizer/updates"])
        self._act_calls = int(values["act_calls"])
        self._publish()

    def parameters(self) -> dict[str, npt.NDArray[np.float32]]:
        """What acting needs: the network's arrays, by name."""
        return {name: v.numpy() for name, v in named_variables(self._network).items()}

    def set_parameters(self, values: dict[str, npt.NDArray[np.float32]], version: int) -> None:
        """Takes what `parameters` of another learner's agent were after `version` updates."""
        for name, variable in named_variables(self._network).items():
            variable.assign(values[name])
        self._version = version

    # What a subclass adds.

    @abc.abstractmethod
    def _choose(
        self, output: Any, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Actions [n, A], policy parameters float32 [n, P] and values float32 [n].

        Args:
          output: The head's.
          epsilon: What `_explore` gave.
          seed: int64 [2], of the random numbers.
        """

    @abc.abstractmethod
    def _loss(self, records: Records, weights: tf.Tensor, frames: tf.Tensor) -> Loss:
        """The loss of a batch."""

    def _explore(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """How much each of n slots explores, for `_choose`; [0] where all do alike."""
        return np.zeros(0, np.float32)

    def _modules(self) -> dict[str, tf.Module]:
        """All that has variables, by the name that these begin with."""
        past = {f"past_policies/{n}": network for n, network in enumerate(self._past)}
        return {"network": self._network, **past}

    # What the subclasses share.

    def _make_network(self) -> Any:
        """A network; all have the same seed, so they begin with the same values."""
        config = self._config
        return registry.create(config.network, self._spec, self._make_head(), seed=config.seed)

    def _trace(self, trainable: Sequence[str]) -> None:
        """Makes the optimizer and traces both functions.

        Args:
          trainable: Names of the modules that gradients are meant for.
        """
        config, modules = self._config, self._modules()
        self._trainable = {
            f"{part}/{name}": variable
            for part in trainable
            for name, variable in named_variables(modules[part], trainable_only=True).items()
        }
        self._optimizer = optimizer.Optimizer(
            config.optimizer, self._trainable, config.total_frames
        )
        self._train: Any = self._trace_train()

    def _trace_acting(self) -> None:
        """Traces what answers actors; after `_trace`, outside of `replicas.scope()`.

        Inference devices that do not train have copies of the network, renewed by every update.
        """
        devices = self._replicas.devices
        acting: list[tuple[str | None, Any]] = [(None, self._network)]
        self._publish: Callable[[], object] = lambda: None
        if devices.divided:
            acting = []
            for device in devices.inference:
                with tf.device(device):
                    acting.append((device, self._make_network()))
            self._publish = concrete(lambda: self._copy_to(n for _, n in acting), [])
            self._publish()
        elif devices.assignment is not None:
            acting = [(devices.inference[0], self._network)]
        self._act: Any = self._trace_act(acting)
        self._past_acts: list[Any] = [self._trace_act([(None, past)]) for past in self._past]

    def _copy_to(self, networks: Iterable[tf.Module]) -> None:
        for network in networks:
            copy_variables(self._network, network)

    def _named_variables(self) -> dict[str, Any]:
        parts = {part: named_variables(module) for part, module in self._modules().items()}
        parts["optimizer"] = self._optimizer.variables
        return {f"{part}/{name}": v for part, vs in parts.items() for name, v in vs.items()}

    def _inputs(self, observation: list[Any], previous: Any, reward: Any, first: Any) -> Any:
        named = {
            tensor.name: value
            for tensor, value in zip(self._spec.observation, observation, strict=True)
        }
        return NetworkInputs(named, previous, reward, first)

    def _trace_act(self, acting: Sequence[tuple[str | None, Any]]) -> Any:
        """Traces one call of networks, each of which answers its part of the rows on its device."""
        spec = self._spec
        count = len(spec.observation)

        def act(*arguments: Any) -> Any:
            *rows, seed = arguments
            if len(acting) == 1:
                ((device, network),) = acting
                with tf.device(device):
                    return answer(network, rows, seed)
            parts = zip(*(tf.split(x, len(acting)) for x in rows), strict=True)
            answers = []
            for number, ((device, network), part) in enumerate(zip(acting, parts, strict=True)):
                # No two parts draw the same, nor as a later call does.
                own = seed + tf.constant([0, number << 48], tf.int64)
                with tf.device(device):
                    answers.append(answer(network, part, own))
            return [tf.concat(output, axis=0) for output in zip(*answers, strict=True)]

        def answer(network: Any, arguments: Sequence[tf.Tensor], seed: tf.Tensor) -> Any:
            frames = arguments[:count]
            previous, reward, first, epsilon, *state = arguments[count:]
            observation = [
                preprocess.decode(
                    tensor,
                    value if tensor.stack > 1 else value[:, None],
                    network.compute_dtype,
                )
                for tensor, value in zip(spec.observation, frames, strict=True)
            ]
            inputs = self._inputs(observation, previous, reward, first)
            output, new_state = network.step(inputs, tuple(state))
            action, parameters, value = self._choose(output, epsilon, seed)
            return action, parameters, value, *new_state

        signature = []
        for tensor in spec.observation:
            stack = (tensor.stack,) if tensor.stack > 1 else ()
            signature.append(_spec((None, *stack, *tensor.storage_shape), tensor.storage_dtype))
        signature += [
            _spec((None, spec.action.size), spec.action.dtype),
            _spec((None,), np.float32),
            _spec((None,), np.bool_),
            _spec((None,), np.float32),
            *(_spec((None, *part.shape[1:]), part.dtype) for part in self.initial_state(1)),
            _spec((2,), np.int64),
        ]
        # Never compiled by XLA: the number of slots is free, and each would be compiled anew.
        return concrete(act, signature)

    def _trace_train(self) -> Any:
        xla, alone = self._config.xla, self._replicas.is_alone
        # XLA compiles for one device and knows no sum over several: with others, what each does.
        contribute = compiled(self._contribute) if xla and not alone else self._contribute

        def train(*arguments: Any) -> Any:
            *batch, frames, tally = arguments

            def step(*part: Any) -> Any:
                *arrays, weights = part
                own, priorities = contribute(arrays, weights, frames, tally)
                total = self._replicas.combine(own)
                update = self._optimizer.apply(total.gradients, total.value, frames)
                return {**total.means, **total.maxima, **update}, priorities, total.tally

            results = self._replicas.run(step, batch)
            metrics, _, total = results[0]
            priorities = [result[1] for result in results]
            return metrics, tf.concat(priorities, axis=0), total

        signature = [
            *self._record_signature(),
            _spec((self._config.batch_size,), np.float32),
            _spec((), np.int64),
            _spec(NO_TALLY.shape, np.float32),
        ]
        return concrete(train, signature, compiled=xla and alone)

    def _contribute(
        self, arrays: Sequence[tf.Tensor], weights: tf.Tensor, frames: tf.Tensor, tally: tf.Tensor
    ) -> tuple[Contribution, tf.Tensor]:
        """What a batch, or a replica's part of it, says; and its priorities."""
        records = self._decode(arrays)
        with tf.GradientTape() as tape:
            loss = self._loss(records, weights, frames)
        gradients = tape.gradient(loss.value, list(self._trainable.values()))
        metrics = {name: tf.stop_gradient(value) for name, value in loss.metrics.items()}
        maxima = {name: metrics.pop(name) for name in ("behaviour_difference",)}
        counts = tf.cast(tf.reduce_max(weights) > 0, tf.float32)
        own = Contribution(
            self._optimizer.dense(gradients),
            loss.value,
            loss.weight * counts,
            metrics,
            maxima,
            tally,
        )
        return own, loss.priorities

    def _decode(self, arrays: Sequence[tf.Tensor]) -> Records:
        spec = self._spec
        count = len(spec.observation)
        frames, stack_index = arrays[:count], arrays[count : 2 * count]
        time_first = [time_major(x) for x in arrays[2 * count : 2 * count + 6]]
        previous, action, reward, discount, step_type, parameters = time_first
        observation = [
            preprocess.stack_and_decode(tensor, value, index, self._network.compute_dtype)
            for tensor, value, index in zip(spec.observation, frames, stack_index, strict=True)
        ]
        inputs = self._inputs(observation, previous, reward, step_type == StepType.FIRST)
        state = tuple(arrays[2 * count + 6 :])
        return Records(inputs, action, reward, discount, step_type, parameters, state)

    def _record_signature(self) -> list[Any]:
        spec, batch, length = self._spec, self._config.batch_size, self._batch_records
        with_context = length + unrolls.context_length(spec)
        return [
            *(
                _spec((batch, with_context, *tensor.storage_shape), tensor.storage_dtype)
                for tensor in spec.observation
            ),
            *(_spec((batch, length, tensor.stack), np.int32) for tensor in spec.observation),
            _spec((batch, length, spec.action.size), spec.action.dtype),
            _spec((batch, length, spec.action.size), spec.action.dtype),
            _spec((batch, length), np.float32),
            _spec((batch, length), np.float32),
            _spec((batch, length), np.uint8),
            _spec((batch, length, self.parameter_size), np.float32),
            *(_spec((batch, *part.shape[1:]), part.dtype) for part in self.initial_state(1)),
        ]


def padded_size(count: int, parts: int) -> int:
    """The number of rows that so many are padded to: `parts` times 8, 16, 32, ..."""
    size = 8 * parts
    while size < count:
        size *= 2
    return size


def pad_rows(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """[n, ...] with zeros to [size, ...]; an array without rows stays so."""
    if not len(array):
        return array
    return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])


def copy_variables(source: tf.Module, target: tf.Module) -> None:
    """Gives a module the values of another one that is made alike."""
    values = named_variables(source)
    for name, variable in named_variables(target).items():
        variable.assign(values[name])


def time_major(x: Any) -> Any:
    """[B, T, ...] to [T, B, ...]."""
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


def _spec(shape: tuple[int | None, ...], dtype: Any) -> Any:
    return tf.TensorSpec(shape, tf.as_dtype(dtype))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a part of a traced function by XLA."""
    result: Callable[..., Any] = tf.function(function, jit_compile=True, autograph=False)
    return result


def concrete(function: Callable[..., Any], signature: Sequence[Any], compiled: bool = False) -> Any:
    """A TensorFlow function, traced at once and for good.

    Without AutoGraph: that writes each function it has looked at into a temporary file, which
    stays when the process is killed. Networks use `tf.cond` and `tf.while_loop` themselves.

    Args:
      function: Of tensors.
      signature: Their `tf.TensorSpec`s.
      compiled: By XLA.
    """
    traced = tf.function(function, input_signature=signature, jit_compile=compiled, autograph=False)
    return traced.get_concrete_function()
