"""IMPALA's actor-critic, trained with V-trace."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from services.learner import agent, distributions, losses
from services.learner.networks.heads import ActorCritic, ActorCriticHead
from services.shared.config import LearnerConfig
from services.shared.specs import EnvironmentSpec


class VtraceAgent(agent.Agent):
    """See the module."""

    def __init__(self, config: LearnerConfig, spec: EnvironmentSpec, greedy: bool = False) -> None:
        """Makes the network and traces both functions.

        Args:
          config: The learner's settings.
          spec: What the environments look like.
          greedy: Take the most probable action instead of drawing one.

        Raises:
          NetworkError: The network does not exist or cannot take these observations.
        """
        self._distribution = distributions.for_action_spec(spec.action)
        self._greedy = greedy
        size = self._distribution.parameter_size
        super().__init__(config, spec, ActorCriticHead(size), size, config.unroll_length + 1)
        self._entropy_cost = losses.EntropyCost(config.vtrace.entropy, config.total_frames)
        self._trace(trainable=("network", "entropy_cost"))

    def _modules(self) -> dict[str, tf.Module]:
        return {**super()._modules(), "entropy_cost": self._entropy_cost}

    def _choose(
        self, output: ActorCritic, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        del epsilon
        parameters = output.policy_parameters
        if self._greedy:
            return self._distribution.mode(parameters), parameters
        return self._distribution.sample(parameters, seed), parameters

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
        return agent.Loss(loss, metrics, tf.zeros([0]))
