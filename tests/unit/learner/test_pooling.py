"""The pooling's own gradient against TensorFlow's, ties and odd sizes included."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from services.learner.networks import pooling


@pytest.mark.parametrize("shape", [(3, 6, 8, 2), (2, 9, 7, 3), (1, 1, 2, 1)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_equals_tensorflow(shape: tuple[int, ...], dtype: tf.DType) -> None:
    rng = np.random.default_rng(0)
    # Few distinct values: most windows have ties, as the empty parts of a map do.
    x = tf.constant(rng.integers(-1, 2, size=shape), dtype)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        pooled = pooling.max_pool(x)
        expected = tf.nn.max_pool2d(x, 3, 2, "SAME")
    np.testing.assert_array_equal(pooled, expected)
    upstream = tf.constant(rng.integers(-8, 9, size=pooled.shape), dtype)
    np.testing.assert_array_equal(
        tape.gradient(pooled, x, output_gradients=upstream),
        tape.gradient(expected, x, output_gradients=upstream),
    )


def test_works_in_a_graph_with_a_free_batch() -> None:
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(pooling.max_pool(x))
        return tape.gradient(y, x)

    graph = tf.function(gradient, input_signature=[tf.TensorSpec([None, 4, 4, 1])])
    x = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
    expected = [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    np.testing.assert_array_equal(graph(x)[0, :, :, 0], expected)
