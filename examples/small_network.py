"""A network of one's own: a dense layer and residual blocks."""

import tensorflow as tf

from services.learner.networks import base, heads, layers, mlp
from services.shared import specs


class SmallNetwork(base.Network):
    """Dense, then x + relu(dense(x)) for each block."""

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        size: int = 64,
        blocks: int = 2,
        lstm_size: int | None = None,
    ) -> None:
        """The first three come from the learner, the others from `learner.network.arguments`."""
        super().__init__(environment_spec, head, mixed_precision, lstm_size=lstm_size)
        self.entry = layers.Linear(size)
        self.blocks = [layers.Linear(size) for _ in range(blocks)]

    def torso(self, inputs: base.NetworkInputs) -> tf.Tensor:
        """Features [N, size] of N records."""
        x = mlp.flatten_observation(self.environment_spec.observation, inputs.observation)
        x = tf.nn.relu(self.entry(x))
        for block in self.blocks:
            x += tf.nn.relu(block(x))
        return x
