"""The agent: network, policy distribution, loss and optimizer behind two numpy-facing calls.

The inference thread calls `act`, the trainer thread `train`; both use the same variables, so
inference always has the newest parameters. Both are concrete functions, traced once: calling
them costs a fraction of what an ordinary `tf.function` call does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from services.learner import checkpoint, distributions, losses, optimizer, preprocess, unrolls
from services.learner.inference import Arrays
from services.learner.networks import registry
from services.learner.networks.base import NetworkInputs, named_variables
from services.learner.unrolls import UnrollBatch
from services.shared.config import LearnerConfig
from services.shared.specs import EnvironmentSpec, StepType


class Agent:
    """A V-trace actor-critic."""

    def __init__(self, config: LearnerConfig, spec: EnvironmentSpec, greedy: bool = False) -> None:
        """Makes the network and traces both functions.

        Args:
          config: The learner's settings.
          spec: What the environments look like.
          greedy: Take the most probable action instead of drawing one.

        Raises:
          NetworkError: The network does not exist or cannot take these observations.
        """
        self._config = config
        self._spec = spec
        self._greedy = greedy
        self._distribution = distributions.for_action_spec(spec.action)
        self.parameter_size: int = self._distribution.parameter_size
        self._network = registry.create(config.network, spec, self.parameter_size, seed=config.seed)
        self._entropy_cost = losses.EntropyCost(config.vtrace.entropy, config.total_frames)
        self._trainable = {
            f"{part}/{name}": variable
            for part, module in (("network", self._network), ("entropy_cost", self._entropy_cost))
            for name, variable in named_variables(module, trainable_only=True).items()
        }
        self._optimizer = optimizer.Optimizer(
            config.optimizer, self._trainable, config.total_frames
        )
        # Counts the calls of `act`: with the run's seed it makes each call's random numbers.
        self._act_calls = 0
        self._version = 0
        self._act: Any = self._trace_act()
        self._train: Any = self._trace_train()

    @property
    def version(self) -> int:
        """Updates so far."""
        return self._version

    def initial_state(self, slots: int) -> Arrays:
        """The recurrent state of so many slots, zeros [slots, ...] a tensor."""
        return tuple(part.numpy() for part in self._network.initial_state(slots))

    def act(
        self,
        observation: Arrays,
        previous_action: npt.NDArray[np.generic],
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        state: Arrays,
    ) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32], Arrays]:
        """Chooses actions; see `inference.Policy`."""
        self._act_calls += 1
        seed = np.array([self._config.seed, self._act_calls], np.int64)
        outputs = self._act(
            *(tf.convert_to_tensor(x) for x in (*observation, previous_action, reward, first)),
            *(tf.convert_to_tensor(part) for part in state),
            tf.convert_to_tensor(seed),
        )
        action, parameters, *new_state = (output.numpy() for output in outputs)
        return action, parameters, tuple(new_state)

    def train(self, batch: UnrollBatch, frames: int) -> dict[str, float]:
        """Makes one update; see `trainer.Updater`."""
        arrays = (
            *batch.observation,
            *batch.stack_index,
            batch.previous_action,
            batch.action,
            batch.reward,
            batch.discount,
            batch.step_type,
            batch.policy_parameters,
            *batch.initial_state,
        )
        values = self._train(*map(tf.convert_to_tensor, arrays), tf.constant(frames, tf.int64))
        metrics = {name: float(value.numpy()) for name, value in values.items()}
        self._version += not metrics["skipped"]
        return metrics

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
        values = saved.variables(self.variables())
        for name, variable in self._named_variables().items():
            variable.assign(values[name])
        self._version = int(values["optimizer/updates"])
        self._act_calls = int(values["act_calls"])

    def _named_variables(self) -> dict[str, Any]:
        parts = {
            "network": named_variables(self._network),
            "entropy_cost": named_variables(self._entropy_cost),
            "optimizer": self._optimizer.variables,
        }
        return {f"{part}/{name}": v for part, vs in parts.items() for name, v in vs.items()}

    def _inputs(self, observation: list[Any], previous: Any, reward: Any, first: Any) -> Any:
        named = {
            tensor.name: value
            for tensor, value in zip(self._spec.observation, observation, strict=True)
        }
        return NetworkInputs(named, previous, reward, first)

    def _trace_act(self) -> Any:
        spec, network = self._spec, self._network
        count = len(spec.observation)

        def act(*arguments: Any) -> Any:
            frames, (previous, reward, first, *state), seed = (
                arguments[:count],
                arguments[count:-1],
                arguments[-1],
            )
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
            parameters = output.policy_parameters
            action = (
                self._distribution.mode(parameters)
                if self._greedy
                else self._distribution.sample(parameters, seed)
            )
            return action, parameters, *new_state

        signature = []
        for tensor in spec.observation:
            stack = (tensor.stack,) if tensor.stack > 1 else ()
            signature.append(_spec((None, *stack, *tensor.storage_shape), tensor.storage_dtype))
        signature += [
            _spec((None, spec.action.size), spec.action.dtype),
            _spec((None,), np.float32),
            _spec((None,), np.bool_),
            *(_spec((None, *part.shape[1:]), part.dtype) for part in self.initial_state(1)),
            _spec((2,), np.int64),
        ]
        # Never compiled by XLA: the number of slots is free, and each would be compiled anew.
        return tf.function(act, input_signature=signature).get_concrete_function()

    def _trace_train(self) -> Any:
        spec, network, config = self._spec, self._network, self._config
        count = len(spec.observation)
        length = config.unroll_length + 1

        def train(*arguments: Any) -> Any:
            frames = arguments[:count]
            stack_index = arguments[count : 2 * count]
            previous, action, reward, discount, step_type, behaviour, *state, position = arguments[
                2 * count :
            ]
            observation = [
                preprocess.stack_and_decode(tensor, value, index, network.compute_dtype)
                for tensor, value, index in zip(spec.observation, frames, stack_index, strict=True)
            ]
            previous, action, reward, discount, step_type, behaviour = (
                _time_major(x) for x in (previous, action, reward, discount, step_type, behaviour)
            )
            inputs = self._inputs(observation, previous, reward, step_type == StepType.FIRST)
            with tf.GradientTape() as tape:
                output, _ = network.unroll(inputs, tuple(state))
                loss, metrics = losses.vtrace_loss(
                    config.vtrace,
                    self._distribution,
                    output,
                    behaviour_parameters=behaviour,
                    action=action,
                    reward=reward,
                    discount=discount,
                    step_type=step_type,
                    entropy_cost=self._entropy_cost(position),
                )
            gradients = tape.gradient(loss, list(self._trainable.values()))
            return {**metrics, **self._optimizer.apply(gradients, loss, position)}

        context = unrolls.context_length(spec)
        b = config.batch_size
        signature = [
            _spec((b, length + context, *tensor.storage_shape), tensor.storage_dtype)
            for tensor in spec.observation
        ]
        signature += [_spec((b, length, tensor.stack), np.int32) for tensor in spec.observation]
        signature += [
            _spec((b, length, spec.action.size), spec.action.dtype),
            _spec((b, length, spec.action.size), spec.action.dtype),
            _spec((b, length), np.float32),
            _spec((b, length), np.float32),
            _spec((b, length), np.uint8),
            _spec((b, length, self.parameter_size), np.float32),
            *(_spec((b, *part.shape[1:]), part.dtype) for part in self.initial_state(1)),
            _spec((), np.int64),
        ]
        function = tf.function(train, input_signature=signature, jit_compile=config.xla)
        return function.get_concrete_function()


def _time_major(x: Any) -> Any:
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])


def _spec(shape: tuple[int | None, ...], dtype: Any) -> Any:
    return tf.TensorSpec(shape, tf.as_dtype(dtype))
