"""Layers that the networks are built of.

Each computes in its input's precision, whatever that is, while its variables stay float32: that
is all there is to mixed precision here. Variables are made at the first call, eagerly, from
TensorFlow's global seed (see `registry.create`), and are named by the attributes that lead to
them (see `base.named_variables`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

Initializer = Callable[[tuple[int, ...]], tf.Tensor]

# Standard deviation of a unit normal that is cut at two standard deviations.
_TRUNCATED_STD = 0.87962566


def lecun_normal(shape: tuple[int, ...]) -> tf.Tensor:
    """Truncated normal of variance 1 / fan-in; what SEED RL's networks start from."""
    fan_in = math.prod(shape[:-1])
    stddev = math.sqrt(1.0 / fan_in) / _TRUNCATED_STD
    return tf.random.truncated_normal(shape, stddev=stddev)


def orthogonal(gain: float = 1.0) -> Initializer:
    """Orthogonal rows or columns (Saxe et al. 2013, arXiv 1312.6120), scaled by `gain`."""

    def initialize(shape: tuple[int, ...]) -> tf.Tensor:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        normal = tf.random.normal([max(rows, columns), min(rows, columns)])
        q, r = tf.linalg.qr(normal)
        # Without the signs of r's diagonal q would not be uniformly distributed.
        q *= tf.sign(tf.linalg.diag_part(r))
        if rows < columns:
            q = tf.transpose(q)
        return gain * tf.reshape(q, shape)

    return initialize


class Linear(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """x W + b on the last axis."""

    def __init__(self, size: int, initializer: Initializer = lecun_normal) -> None:
        """Sets the output's size and where the kernel starts; the bias starts at 0."""
        super().__init__()
        self._size = size
        self._initializer = initializer
        self.kernel: Any = None
        self.bias: Any = None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [N, F] to [N, size]."""
        if self.kernel is None:
            self.kernel = tf.Variable(self._initializer((x.shape[-1], self._size)))
            self.bias = tf.Variable(tf.zeros([self._size]))
        return tf.nn.bias_add(
            tf.matmul(x, tf.cast(self.kernel, x.dtype)), tf.cast(self.bias, x.dtype)
        )


class Conv2D(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """A convolution of NHWC images."""

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: Literal["SAME", "VALID"] = "SAME",
        initializer: Initializer = lecun_normal,
    ) -> None:
        """Sets the shape and where the kernel starts; the bias starts at 0.

        Args:
          channels: C'.
          kernel_size: Of both sides.
          stride: In both directions.
          padding: `SAME` keeps height and width, but for the stride; `VALID` pads nothing.
          initializer: Of the kernel.
        """
        super().__init__()
        self._padding = padding
        self._channels = channels
        self._kernel_size = kernel_size
        self._stride = stride
        self._initializer = initializer
        self.kernel: Any = None
        self.bias: Any = None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Maps [N, H, W, C] to [N, H', W', channels]; `SAME`: H' = ceil(H / stride)."""
        if self.kernel is None:
            shape = (self._kernel_size, self._kernel_size, x.shape[-1], self._channels)
            self.kernel = tf.Variable(self._initializer(shape))
            self.bias = tf.Variable(tf.zeros([self._channels]))
        y = tf.nn.conv2d(x, tf.cast(self.kernel, x.dtype), self._stride, self._padding)
        return tf.nn.bias_add(y, tf.cast(self.bias, x.dtype))


class LayerNorm(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """Zero mean and unit variance over each record's features, then scaled and shifted.

    Ba et al. 2016 (arXiv 1607.06450). Computed in float32 at any precision.
    """

    def __init__(self, size: int) -> None:
        """Makes the variables for `size` features."""
        super().__init__()
        self.scale = tf.Variable(tf.ones([size]))
        self.shift = tf.Variable(tf.zeros([size]))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[N, size] to [N, size]."""
        wide = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(wide, axes=[-1], keepdims=True)
        y = tf.nn.batch_normalization(wide, mean, variance, self.shift, self.scale, 1e-6)
        return tf.cast(y, x.dtype)


class LstmCore(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped.
    """A long short-term memory whose state is zeroed at the first record of an episode.

    Hochreiter and Schmidhuber 1997, with the forget gate's bias starting at 1 (Jozefowicz et al.
    2015). Split in two, so that an unroll projects all its inputs with one matrix product and
    only the recurrent half runs step by step. Gates and state are float32 at any precision:
    stored and restored, a state loses nothing.
    """

    def __init__(self, size: int, horizon: int | None = None) -> None:
        """Sets the number of units.

        Args:
          size: Units.
          horizon: Records that something may have to be remembered for. The units' forget gates
            then start with time constants from 1 to `horizon` records and their entry gates as
            far closed (Tallec and Ollivier 2018, arXiv 1804.11188, section 3; evenly spread
            instead of drawn). None: forget biases of 1, a time constant of about 3 records.
        """
        super().__init__()
        self._size = size
        self._horizon = horizon
        self.input_kernel: Any = None
        self.recurrent_kernel: Any = None
        self.bias: Any = None

    def initial_state(self, batch_size: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Hidden and cell state, zeros float32 [B, size] each."""
        zeros = tf.zeros([batch_size, self._size])
        return zeros, zeros

    def project(self, x: tf.Tensor) -> tf.Tensor:
        """The inputs' share of the gates: [N, F] to [N, 4 size]."""
        if self.input_kernel is None:
            size = self._size
            self.input_kernel = tf.Variable(lecun_normal((x.shape[-1], 4 * size)))
            blocks = [orthogonal()((size, size)) for _ in range(4)]
            self.recurrent_kernel = tf.Variable(tf.concat(blocks, axis=1))
            if self._horizon is None:
                forget, entry = tf.ones([size]), tf.zeros([size])
            else:
                forget = tf.math.log(tf.linspace(1.0, max(2.0, self._horizon - 1.0), size))
                entry = -forget
            bias = [entry, forget, tf.zeros([2 * size])]
            self.bias = tf.Variable(tf.concat(bias, axis=0))
        return tf.nn.bias_add(
            tf.matmul(x, tf.cast(self.input_kernel, x.dtype)), tf.cast(self.bias, x.dtype)
        )

    def advance(
        self, projected: tf.Tensor, first: tf.Tensor, state: tuple[tf.Tensor, ...]
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """One step.

        Args:
          projected: [B, 4 size] from `project`.
          first: bool [B], where the episode starts.
          state: Hidden and cell state, float32 [B, size] each.

        Returns:
          The output [B, size] in the precision of `projected`, and the new state.
        """
        dtype = projected.dtype
        hidden, cell = (tf.where(first[:, None], 0.0, x) for x in state)
        recurrent = tf.matmul(tf.cast(hidden, dtype), tf.cast(self.recurrent_kernel, dtype))
        gates = tf.cast(projected + recurrent, tf.float32)
        entry, forget, candidate, exit_ = tf.split(gates, 4, axis=-1)
        cell = tf.sigmoid(forget) * cell + tf.sigmoid(entry) * tf.tanh(candidate)
        hidden = tf.sigmoid(exit_) * tf.tanh(cell)
        return tf.cast(hidden, dtype), (hidden, cell)
