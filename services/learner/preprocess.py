"""From frames as they are stored to tensors as networks see them, inside the graph.

The step store keeps single frames in their storage types; the inference loop passes the last
`stack` frames of each slot to `decode`, the losses pass whole unrolls with their context to
`stack_and_decode`. Gathering, stacking and unpacking all run on the small storage types, and one
cast at the end makes floats: for the football observation that moves an eighth of the memory.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from services.shared import specs

# Each byte's bits as eight bytes of 0 or 1, most significant bit first, in one element: looking
# up a wide element is much faster on a CPU than to gather rows of eight.
_BYTE_TO_BITS = (
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).copy().view(np.int64)[:, 0]
)

# Element types that hold as many bytes as there are channels: see `_stack_channels`.
_CELLS = {2: tf.uint16, 4: tf.int32, 8: tf.int64}


def network_shape(spec: specs.TensorSpec) -> tuple[int, ...]:
    """Shape of one tensor of one record as the networks see it; categories are one-hot."""
    if _is_category(spec):
        return (*spec.stacked_shape, spec.num_values)
    return spec.stacked_shape


def stack_and_decode(
    spec: specs.TensorSpec, frames: tf.Tensor, index: tf.Tensor, dtype: tf.DType = tf.float32
) -> tf.Tensor:
    """Makes time-major network inputs of stored rows.

    Args:
      spec: What the frames are.
      frames: [B, L, *storage_shape] in the storage type: L consecutive rows of each of B slots,
        those before the first record (context) included.
      index: int32 [B, T, stack], which of the L rows each record shows, oldest first.
      dtype: The result's type.

    Returns:
      [T, B, *network_shape].
    """
    batch, rows = tf.shape(frames)[0], tf.shape(frames)[1]
    length = index.shape[1]
    # One gather of whole frames stacks them and turns [B, T] into [T, B].
    offsets = tf.range(batch)[None, :, None] * rows
    flat_index = tf.reshape(tf.transpose(index, [1, 0, 2]) + offsets, [-1, spec.stack])
    flat_frames = tf.reshape(frames, [-1, *spec.storage_shape])
    decoded = decode(spec, tf.gather(flat_frames, flat_index), dtype)
    leading = tf.shape(index)[1] if length is None else length
    return tf.reshape(decoded, [leading, -1, *network_shape(spec)])


def decode(spec: specs.TensorSpec, frames: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Makes network inputs of frames that are gathered already.

    uint8 is scaled to [0, 1], bits become 0 and 1, categories one-hot vectors, other numbers are
    cast.

    Args:
      spec: What the frames are.
      frames: [N, stack, *storage_shape] in the storage type, oldest first.
      dtype: The result's type.

    Returns:
      [N, *network_shape].
    """
    if spec.data_type is specs.DataType.BIT:
        frames = _unpack_bits(spec, frames)
    stacked = _stack_channels(spec, frames)
    if _is_category(spec):
        return tf.one_hot(stacked, spec.num_values, dtype=dtype)
    if spec.data_type is specs.DataType.UINT8:
        return tf.cast(stacked, dtype) * tf.constant(1 / 255, dtype)
    return tf.cast(stacked, dtype)


def _is_category(spec: specs.TensorSpec) -> bool:
    return spec.data_type is specs.DataType.INT32 and spec.num_values > 0


def _unpack_bits(spec: specs.TensorSpec, packed: tf.Tensor) -> tf.Tensor:
    """Packed uint8 [N, stack, bytes] to uint8 [N, stack, *shape] of 0 and 1."""
    wide = tf.gather(tf.constant(_BYTE_TO_BITS), tf.cast(packed, tf.int32))
    bits = tf.reshape(tf.bitcast(wide, tf.uint8), [-1, spec.stack, 8 * spec.storage_shape[0]])
    bits = bits[..., : math.prod(spec.shape)]
    return tf.reshape(bits, [-1, spec.stack, *spec.shape])


def _stack_channels(spec: specs.TensorSpec, frames: tf.Tensor) -> tf.Tensor:
    """[N, stack, *shape] to [N, *stacked_shape], concatenated along the last axis."""
    if spec.stack == 1 or len(spec.shape) == 1:
        return tf.reshape(frames, [-1, *spec.stacked_shape])
    places, channels = math.prod(spec.shape[:-1]), spec.shape[-1]
    frames = tf.reshape(frames, [-1, spec.stack, places, channels])
    if frames.dtype == tf.uint8 and channels in _CELLS:
        # A place's channels move together: transposing them as one element is cheaper.
        cells = tf.bitcast(frames, _CELLS[channels])
        frames = tf.bitcast(tf.transpose(cells, [0, 2, 1]), tf.uint8)
    else:
        frames = tf.transpose(frames, [0, 2, 1, 3])
    return tf.reshape(frames, [-1, *spec.stacked_shape])
