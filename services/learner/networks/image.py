"""The frame around convolutions: one image in, a dense layer out."""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from services.learner import preprocess
from services.learner.networks import base, heads, layers
from services.shared import specs


class ImageNetwork(base.Network):
    """Convolutions of the observation's one image, then a dense layer with ReLU.

    Other observation tensors, which the papers' environments do not have, are flattened and
    concatenated to what the convolutions make of the image.
    """

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        convolutions: Callable[[tf.Tensor], tf.Tensor],
        dense_size: int,
        lstm_size: int | None,
        layer_norm: bool = False,
    ) -> None:
        """Makes the dense layer.

        Args:
          environment_spec: See `base.Network`; must have exactly one image.
          head: See `base.Network`.
          mixed_precision: See `base.Network`.
          convolutions: A `tf.Module` that maps [N, H, W, C] to [N, H', W', C'].
          dense_size: Units of the dense layer.
          lstm_size: See `base.Network`.
          layer_norm: Normalize the dense layer before its ReLU. A picture that is almost all
            zeros makes features so small that the heads take long to learn from them.

        Raises:
          ValueError: The observation has no image, or several.
        """
        super().__init__(environment_spec, head, mixed_precision, lstm_size=lstm_size)
        shapes = {
            spec.name: preprocess.network_shape(spec) for spec in environment_spec.observation
        }
        images = [name for name, shape in shapes.items() if len(shape) == 3]
        if len(images) != 1:
            raise ValueError(
                f"the observation tensors have the shapes {shapes}, allowed: exactly one image"
                " (height, width, channels); mlp takes anything"
            )
        self._image = images[0]
        self._others = [name for name in shapes if name != self._image]
        self.convolutions = convolutions
        self.dense = layers.Linear(dense_size)
        self.norm = layers.LayerNorm(dense_size) if layer_norm else None

    def torso(self, inputs: base.NetworkInputs) -> tf.Tensor:
        """Features [N, dense_size]."""
        image = self.convolutions(inputs.observation[self._image])
        parts = [image, *(inputs.observation[name] for name in self._others)]
        flat = [tf.reshape(x, [-1, math.prod(x.shape[1:])]) for x in parts]
        features = self.dense(flat[0] if len(flat) == 1 else tf.concat(flat, axis=-1))
        return tf.nn.relu(features if self.norm is None else self.norm(features))
