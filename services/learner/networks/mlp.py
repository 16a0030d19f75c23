"""Multi-layer perceptrons, for environments whose observations are vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from services.learner.networks import base, heads, layers
from services.shared import specs

_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "elu": tf.nn.elu,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
}


class Mlp(base.Network):
    """Dense layers on all observation tensors, flattened and concatenated in the spec's order."""

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        sizes: Sequence[int] = (256, 256),
        activation: str = "tanh",
        lstm_size: int | None = None,
        lstm_horizon: int | None = None,
    ) -> None:
        """Makes the layers.

        Args:
          environment_spec: See `base.Network`.
          head: See `base.Network`.
          mixed_precision: See `base.Network`.
          sizes: Units of each hidden layer.
          activation: `elu`, `relu` or `tanh`, which Andrychowicz et al. 2020 (arXiv 2006.05990,
            section 3.2) recommend for small networks.
          lstm_size: See `base.Network`.
          lstm_horizon: See `base.Network`.
        """
        super().__init__(
            environment_spec,
            head,
            mixed_precision,
            lstm_size=lstm_size,
            lstm_horizon=lstm_horizon,
        )
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}, allowed: {sorted(_ACTIVATIONS)}")
        if any(size < 1 for size in sizes):
            raise ValueError(f"sizes is {list(sizes)}, allowed: numbers of 1 or more")
        self._activation = _ACTIVATIONS[activation]
        self.hidden = [layers.Linear(size, layers.orthogonal(math.sqrt(2))) for size in sizes]

    def torso(self, inputs: base.NetworkInputs) -> tf.Tensor:
        """Features [N, sizes[-1]]."""
        x = flatten_observation(self.environment_spec.observation, inputs.observation)
        for layer in self.hidden:
            x = self._activation(layer(x))
        return x


class MlpLstm(Mlp):
    """`Mlp` with memory."""

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        sizes: Sequence[int] = (256, 256),
        activation: str = "tanh",
        lstm_size: int = 256,
        lstm_horizon: int | None = None,
    ) -> None:
        """See `Mlp`."""
        super().__init__(
            environment_spec,
            head,
            mixed_precision,
            sizes=sizes,
            activation=activation,
            lstm_size=lstm_size,
            lstm_horizon=lstm_horizon,
        )


def flatten_observation(
    tensors: Sequence[specs.TensorSpec], observation: dict[str, tf.Tensor]
) -> tf.Tensor:
    """Concatenates the named tensors, [N, ...] each, to [N, F]."""
    parts = []
    for spec in tensors:
        x = observation[spec.name]
        parts.append(tf.reshape(x, [-1, math.prod(x.shape[1:])]))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)
