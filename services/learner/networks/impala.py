"""The two networks of IMPALA: Espeholt et al. 2018 (arXiv 1802.01561), figure 3."""

from __future__ import annotations

import tensorflow as tf

from services.learner.networks import heads, image, layers, residual
from services.shared import specs


class ImpalaDeep(image.ImageNetwork):
    """Fifteen convolutions in three residual sections, a dense layer, an LSTM (figure 3, right).

    The LSTM also takes the previous action and reward. The paper's instruction encoder belongs
    to DeepMind Lab and is left out.
    """

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        lstm_size: int | None = 256,
    ) -> None:
        """See `image.ImageNetwork`; `lstm_size` null for the paper's Atari variant."""
        super().__init__(
            environment_spec,
            head,
            mixed_precision,
            convolutions=residual.Sections((16, 32, 32)),
            dense_size=256,
            lstm_size=lstm_size,
        )


class ImpalaShallow(image.ImageNetwork):
    """Two convolutions, a dense layer, an LSTM (figure 3, left)."""

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        lstm_size: int | None = 256,
    ) -> None:
        """See `image.ImageNetwork`; `lstm_size` null for no memory."""
        super().__init__(
            environment_spec,
            head,
            mixed_precision,
            convolutions=_ShallowConvolutions(),
            dense_size=256,
            lstm_size=lstm_size,
        )


class _ShallowConvolutions(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """8x8 with stride 4 to 16 channels, 4x4 with stride 2 to 32, ReLU after each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_0 = layers.Conv2D(16, 8, stride=4)
        self.conv_1 = layers.Conv2D(32, 4, stride=2)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(self.conv_1(tf.nn.relu(self.conv_0(x))))
