"""R2D2: recurrent Q-learning from replayed sequences."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from services.learner import agent, checkpoint, r2d2
from services.learner.agreement import NO_TALLY, Tally
from services.learner.exploration import Exploration
from services.learner.networks import heads, registry
from services.learner.networks.base import NetworkInputs
from services.learner.replicas import ALONE, Replicas
from services.learner.trainer import TrainingBatch, Update
from services.shared.config import LearnerConfig
from services.shared.specs import DiscreteActionSpec, EnvironmentSpec


class R2d2Agent(agent.Agent):
    """See the module. What `act` returns as policy parameters are the Q-values, rescaled by h."""

    def __init__(
        self,
        config: LearnerConfig,
        spec: EnvironmentSpec,
        exploration: Exploration,
        replicas: Replicas = ALONE,
    ) -> None:
        """Makes both networks and traces the functions.

        Args:
          config: The learner's settings.
          spec: What the environments look like; their action must be one discrete choice.
          exploration: How often each slot acts at random.
          replicas: What makes an update together.

        Raises:
          NetworkError: The network does not exist or cannot take these observations, or the
            action is not one discrete choice.
        """
        action = spec.action
        if not isinstance(action, DiscreteActionSpec) or action.size != 1:
            raise registry.NetworkError(
                f"r2d2 learns the value of each action; the environment's action is {action},"
                " allowed: one discrete choice (learner.algorithm vtrace takes any)"
            )
        self._explore_slots = exploration
        self._settings = config.r2d2
        self._burn_in = config.r2d2.burn_in
        num_actions = action.num_values[0]
        records = self._burn_in + config.unroll_length + 1
        make_head = functools.partial(heads.DuelingHead, num_actions, config.r2d2.dueling_size)
        with replicas.scope():
            super().__init__(config, spec, make_head, num_actions, records, replicas)
            self._target = self._make_network()
            self._trace(trainable=("network",))
        self._trace_acting()
        self._copy_to_target: Any = agent.concrete(
            lambda: agent.copy_variables(self._network, self._target), []
        )
        self._priorities: Any = self._trace_priorities()
        self._copy_to_target()

    def train(self, batch: TrainingBatch, frames: int, tally: Tally = NO_TALLY) -> Update:
        """Makes one update, and now and then a new target network; see `trainer.Updater`."""
        update = super().train(batch, frames, tally)
        if self.version % self._settings.target_update_period == 0:
            self._copy_to_target()
        return update

    def initial_priorities(
        self,
        q: npt.NDArray[np.float32],
        action: npt.NDArray[np.int32],
        reward: npt.NDArray[np.float32],
        discount: npt.NDArray[np.float32],
        step_type: npt.NDArray[np.uint8],
    ) -> npt.NDArray[np.float32]:
        """Priorities of sequences that no update has seen, from the Q-values of inference.

        Args:
          q: float32 [n, T + 1, A], of the records after the burn-in.
          action: int32 [n, T + 1, 1].
          reward: float32 [n, T + 1].
          discount: float32 [n, T + 1].
          step_type: uint8 [n, T + 1].

        Returns:
          float32 [n].
        """
        arrays = (q, action, reward, discount, step_type)
        priorities: npt.NDArray[np.float32] = self._priorities(
            *map(tf.convert_to_tensor, arrays)
        ).numpy()
        return priorities

    def begin_with(self, saved: checkpoint.Checkpoint) -> None:
        """See `Agent.begin_with`; the target network begins with it too."""
        super().begin_with(saved)
        self._copy_to_target()

    def _modules(self) -> dict[str, tf.Module]:
        return {**super()._modules(), "target_network": self._target}

    def _explore(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return self._explore_slots(slots)

    def _choose(
        self, output: tf.Tensor, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        shape = tf.shape(epsilon)
        best = tf.argmax(output, axis=-1, output_type=tf.int32)
        which, whether = tf.unstack(tf.random.split(seed, 2))
        anything = tf.random.stateless_uniform(
            shape, which, minval=0, maxval=output.shape[-1], dtype=tf.int32
        )
        explores = tf.random.stateless_uniform(shape, whether) < epsilon
        return tf.where(explores, anything, best)[:, None], output, tf.reduce_max(output, axis=-1)

    def _loss(self, records: agent.Records, weights: tf.Tensor, frames: tf.Tensor) -> agent.Loss:
        del frames
        q = self._unroll(self._network, records)
        target_q = self._unroll(self._target, records)
        at = self._burn_in
        errors, real = r2d2.td_errors(
            self._settings,
            q,
            target_q,
            action=records.action[at:, :, 0],
            reward=records.reward[at:],
            discount=records.discount[at:],
            step_type=records.step_type[at:],
        )
        count = tf.reduce_sum(tf.cast(real, tf.float32), axis=0)
        by_sequence = 0.5 * tf.reduce_sum(tf.square(errors), axis=0) / tf.maximum(count, 1.0)
        loss = tf.reduce_mean(weights * by_sequence)
        total = tf.maximum(tf.reduce_sum(count), 1.0)
        metrics = {
            "loss": loss,
            "td_error": tf.reduce_sum(tf.abs(errors)) / total,
            "q": tf.reduce_mean(tf.reduce_max(q, axis=-1)),
            "behaviour_difference": tf.reduce_max(tf.abs(q - records.policy_parameters[at:])),
        }
        priorities = r2d2.sequence_priorities(errors, real, self._settings.priority_eta)
        sequences = tf.cast(tf.size(weights), tf.float32)
        return agent.Loss(loss, sequences, metrics, tf.stop_gradient(priorities))

    def _unroll(self, network: Any, records: agent.Records) -> tf.Tensor:
        """Q-values [T + 1, B, A] after the burn-in, which no gradient passes through."""
        state, at = records.initial_state, self._burn_in
        if at and state:
            _, state = network.unroll(_slice(records.inputs, slice(None, at)), state)
            state = tuple(map(tf.stop_gradient, state))
        q, _ = network.unroll(_slice(records.inputs, slice(at, None)), state)
        return q

    def _trace_priorities(self) -> Any:
        def priorities(q: Any, action: Any, reward: Any, discount: Any, step_type: Any) -> Any:
            q, action, reward, discount, step_type = (
                agent.time_major(x) for x in (q, action, reward, discount, step_type)
            )
            errors, real = r2d2.td_errors(
                self._settings,
                q,
                q,
                action=action[..., 0],
                reward=reward,
                discount=discount,
                step_type=step_type,
            )
            return r2d2.sequence_priorities(errors, real, self._settings.priority_eta)

        length = self._config.unroll_length + 1
        signature = [
            tf.TensorSpec((None, length, self.parameter_size), tf.float32),
            tf.TensorSpec((None, length, 1), tf.int32),
            tf.TensorSpec((None, length), tf.float32),
            tf.TensorSpec((None, length), tf.float32),
            tf.TensorSpec((None, length), tf.uint8),
        ]
        return agent.concrete(priorities, signature)


def _slice(inputs: NetworkInputs, time: slice) -> Any:
    return tf.nest.map_structure(lambda x: x[time], inputs)
