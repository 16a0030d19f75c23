"""Residual convolution sections, shared by the football network and IMPALA's deep network."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from services.learner.networks import layers, pooling


class ResidualBlock(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        """Sets the channels, of the input and the output alike."""
        super().__init__()
        self.conv_0 = layers.Conv2D(channels, 3)
        self.conv_1 = layers.Conv2D(channels, 3)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [N, H, W, channels] to the same shape."""
        return x + self.conv_1(tf.nn.relu(self.conv_0(tf.nn.relu(x))))


class Section(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """Convolution 3x3, max-pooling 3x3 with stride 2, two residual blocks."""

    def __init__(self, channels: int) -> None:
        """Sets the output's channels."""
        super().__init__()
        self.conv = layers.Conv2D(channels, 3)
        self.blocks = [ResidualBlock(channels), ResidualBlock(channels)]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [N, H, W, C] to [N, ceil(H / 2), ceil(W / 2), channels]."""
        x = pooling.max_pool(self.conv(x))
        for block in self.blocks:
            x = block(x)
        return x


class Sections(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """A section for each of `channels`, then ReLU."""

    def __init__(self, channels: Sequence[int]) -> None:
        """Sets each section's channels."""
        super().__init__()
        self.sections = [Section(count) for count in channels]

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [N, H, W, C] to [N, H', W', channels[-1]]."""
        for section in self.sections:
            x = section(x)
        return tf.nn.relu(x)
