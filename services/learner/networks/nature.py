"""The network of deep Q-learning on Atari, with R2D2's memory."""

from __future__ import annotations

import tensorflow as tf

from services.learner.networks import heads, image, layers
from services.shared import specs


class Nature(image.ImageNetwork):
    """Three convolutions, a dense layer of 512, an LSTM of 512.

    Mnih et al. 2015 (Nature 518), table 1 of the methods; with the LSTM and a dueling head it is
    the network of R2D2 (Kapturowski et al. 2019), figure 1.
    """

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        dense_size: int = 512,
        lstm_size: int | None = 512,
    ) -> None:
        """See `image.ImageNetwork`; `lstm_size` null for the Nature paper's network."""
        super().__init__(
            environment_spec,
            head,
            mixed_precision,
            convolutions=_NatureConvolutions(),
            dense_size=dense_size,
            lstm_size=lstm_size,
        )


class _NatureConvolutions(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """8x8 with stride 4 to 32 channels, 4x4 with 2 to 64, 3x3 with 1 to 64; no padding, ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_0 = layers.Conv2D(32, 8, stride=4, padding="VALID")
        self.conv_1 = layers.Conv2D(64, 4, stride=2, padding="VALID")
        self.conv_2 = layers.Conv2D(64, 3, padding="VALID")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.nn.relu(self.conv_0(x))
        x = tf.nn.relu(self.conv_1(x))
        return tf.nn.relu(self.conv_2(x))
