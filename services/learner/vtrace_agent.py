"""IMPALA's actor-critic, trained with V-trace."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from services.learner import agent, distributions, losses
from services.learner.networks.heads import ActorCritic, ActorCriticHead
from services.learner.replicas import ALONE, Replicas
from services.shared.config import LearnerConfig
from services.shared.specs import EnvironmentSpec


class VtraceAgent(agent.Agent):
    """See the module."""

    def __init__(
        self,
        config: LearnerConfig,
        spec: EnvironmentSpec,
        evaluated: npt.NDArray[np.bool_],
        replicas: Replicas = ALONE,
    ) -> None:
        """Makes the network and traces both functions.

        Args:
          config: The learner's settings.
          spec: What the environments look like.
          evaluated: bool [slots], see `LeaseTable`: with `evaluation.greedy` these take the most
            probable action.
          replicas: What makes an update together.

        Raises:
          NetworkError: The network does not exist or cannot take these observations.
        """
        self._distribution = distributions.for_action_spec(spec.action)
        self._evaluated = evaluated
        size = self._distribution.parameter_size
        make_head = functools.partial(ActorCriticHead, size)
        with replicas.scope():
            super().__init__(config, spec, make_head, size, config.unroll_length + 1, replicas)
            self._entropy_cost = losses.EntropyCost(config.vtrace.entropy, config.total_frames)
            self._trace(trainable=("network", "entropy_cost"))
        self._trace_acting()

    def _modules(self) -> dict[str, tf.Module]:
        return {**super()._modules(), "entropy_cost": self._entropy_cost}

    def _explore(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        if not self._config.evaluation.greedy:
            return super()._explore(slots)
        draws: npt.NDArray[np.float32] = (~self._evaluated[slots]).astype(np.float32)
        return draws

    def _choose(
        self, output: ActorCritic, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        parameters = output.policy_parameters
        action = self._distribution.sample(parameters, seed)
        if self._config.evaluation.greedy:
            drawn = epsilon[:, None] > 0
            action = tf.where(drawn, action, self._distribution.mode(parameters))
        return action, parameters, output.baseline

    def _loss(self, records: agent.Records, weights: tf.Tensor, frames: tf.Tensor) -> agent.Loss:
        del weights  # Unrolls come from the newest policies, none more than others.
        output: Any
        output, _ = self._network.unroll(records.inputs, records.initial_state)
        loss, metrics = losses.vtrace_loss(
            self._config.vtrace,
            self._distribution,
            output,
            behaviour_parameters=records.policy_parameters,
            action=records.action,
            reward=records.reward,
            discount=records.discount,
            step_type=records.step_type,
            entropy_cost=self._entropy_cost(frames),
        )
        transitions = losses.count_transitions(records.step_type)
        return agent.Loss(loss, transitions, metrics, tf.zeros([0]))
