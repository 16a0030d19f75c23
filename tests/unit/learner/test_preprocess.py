"""In-graph decoding against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from services.learner import preprocess
from services.shared.specs import DataType, TensorSpec

Array = npt.NDArray[Any]


def _random_frames(
    spec: TensorSpec, leading: tuple[int, ...], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Stored frames and what they mean, [*leading, *shape]."""
    shape = (*leading, *spec.shape)
    if spec.data_type is DataType.BIT:
        bits = rng.integers(0, 2, size=shape, dtype=np.uint8)
        return np.packbits(bits.reshape(*leading, -1), axis=-1), bits.astype(np.float32)
    if spec.data_type is DataType.UINT8:
        pixels = rng.integers(0, 256, size=shape, dtype=np.uint8)
        return pixels, pixels.astype(np.float32) / np.float32(255)
    if spec.data_type is DataType.INT32:
        numbers = rng.integers(0, spec.num_values or 1000, size=shape, dtype=np.int32)
        return numbers, numbers
    reals = rng.normal(size=shape).astype(np.float32)
    return reals, reals


def _expected(spec: TensorSpec, meaning: Array) -> Array:
    """[..., stack, *shape] to [..., *network_shape]."""
    axis = meaning.ndim - len(spec.shape) - 1
    if spec.stack == 1:
        stacked = np.squeeze(meaning, axis)
    else:
        stacked = np.concatenate(list(np.moveaxis(meaning, axis, 0)), axis=-1)
    if spec.num_values and spec.data_type is DataType.INT32:
        one_hot: Array = np.eye(spec.num_values, dtype=np.float32)[stacked]
        return one_hot
    return np.asarray(stacked, np.float32)


SPECS = [
    TensorSpec("smm", DataType.BIT, (72, 96, 4), stack=4),
    TensorSpec("bits", DataType.BIT, (5, 7, 3), stack=4),
    TensorSpec("bit_pairs", DataType.BIT, (3, 3, 2), stack=3),
    TensorSpec("bit_vector", DataType.BIT, (11,), stack=2),
    TensorSpec("one_bit", DataType.BIT, ()),
    TensorSpec("gray", DataType.UINT8, (8, 9, 1), stack=4),
    TensorSpec("color", DataType.UINT8, (8, 9, 3), stack=2),
    TensorSpec("image", DataType.UINT8, (8, 9, 3)),
    TensorSpec("deep", DataType.UINT8, (4, 5, 8), stack=2),
    TensorSpec("vector", DataType.FLOAT32, (115,)),
    TensorSpec("stacked_vector", DataType.FLOAT32, (3,), stack=4),
    TensorSpec("stacked_matrix", DataType.FLOAT32, (2, 3), stack=4),
    TensorSpec("scalar", DataType.FLOAT32, ()),
    TensorSpec("category", DataType.INT32, (), num_values=5),
    TensorSpec("categories", DataType.INT32, (2,), stack=3, num_values=7),
    TensorSpec("count", DataType.INT32, (2,)),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_equals_numpy(spec: TensorSpec) -> None:
    rng = np.random.default_rng(0)
    batch, rows, length = 3, 9, 6
    stored, meaning = _random_frames(spec, (batch, rows), rng)
    index = rng.integers(0, rows, size=(batch, length, spec.stack), dtype=np.int32)
    gathered = np.stack([meaning[b][index[b]] for b in range(batch)])
    expected = _expected(spec, gathered)

    result = preprocess.stack_and_decode(spec, tf.constant(stored), tf.constant(index))
    assert result.dtype == tf.float32
    assert result.shape == (length, batch, *preprocess.network_shape(spec))
    np.testing.assert_allclose(result, np.swapaxes(expected, 0, 1), rtol=1e-6)

    stored_steps = np.stack([stored[b][index[b, 0]] for b in range(batch)])
    step = preprocess.decode(spec, tf.constant(stored_steps))
    np.testing.assert_array_equal(step, result[0])


@pytest.mark.parametrize("channels", range(1, 33))
def test_every_number_of_bit_channels(channels: int) -> None:
    rng = np.random.default_rng(channels)
    spec = TensorSpec("bits", DataType.BIT, (3, 5, channels), stack=2)
    stored, meaning = _random_frames(spec, (4, 2), rng)
    np.testing.assert_array_equal(
        preprocess.decode(spec, tf.constant(stored)), _expected(spec, meaning)
    )


def test_football_planes_survive_exactly() -> None:
    rng = np.random.default_rng(1)
    spec = TensorSpec("smm", DataType.BIT, (72, 96, 16))
    stored, meaning = _random_frames(spec, (2, 1), rng)
    np.testing.assert_array_equal(preprocess.decode(spec, tf.constant(stored)), meaning[:, 0])


def test_shapes_stay_static_in_a_graph_with_a_free_batch() -> None:
    spec = SPECS[0]

    def trace(frames: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        result = preprocess.stack_and_decode(spec, frames, index, tf.bfloat16)
        assert result.shape.as_list() == [5, None, 72, 96, 16]
        return result

    graph = tf.function(
        trace,
        input_signature=[
            tf.TensorSpec([None, None, *spec.storage_shape], tf.uint8),
            tf.TensorSpec([None, 5, spec.stack], tf.int32),
        ],
    )
    frames = tf.zeros([2, 8, 3456], tf.uint8)
    result = graph(frames, tf.zeros([2, 5, 4], tf.int32))
    assert result.dtype == tf.bfloat16
    assert result.shape == (5, 2, 72, 96, 16)


def test_network_shapes() -> None:
    shapes = {spec.name: preprocess.network_shape(spec) for spec in SPECS}
    assert shapes["smm"] == (72, 96, 16)
    assert shapes["category"] == (5,)
    assert shapes["categories"] == (6, 7)
    assert shapes["scalar"] == ()
