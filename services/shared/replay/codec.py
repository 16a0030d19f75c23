"""Blocks as bytes: the writer makes them, the sampler decodes them into its buffers.

A block is a header (uint32 steps, then uint32 for each stream: size << 1 | compressed) and the
streams: one for all small fields of the steps together, one for each large field. A stream is
LZ4, or raw where LZ4 does not save a third.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import cramjam
import numpy as np
import numpy.typing as npt

from services.shared.replay.layout import SequenceLayout

_WORTHWHILE = 2 / 3
_LEAST_COMPRESSED_BYTES = 512

Tensors = dict[str, npt.NDArray[Any]]


class MalformedBlock(ValueError):
    """Bytes that are not a block of the layout."""


class StepBuffer:
    """Steps of one slot on their way into a block."""

    def __init__(self, layout: SequenceLayout, capacity: int) -> None:
        """Makes room for `capacity` steps."""
        self.steps = 0
        large = [np.zeros((capacity, *f.shape), f.dtype) for f in layout.large]
        records = np.zeros(capacity, layout.record)
        self._by_name: Tensors = dict(zip((f.name for f in layout.large), large, strict=True))
        for name in layout.record.names or ():
            self._by_name[name] = records[name]
        streams = [records, *large] if layout.record.names else large
        # The bytes of each step, [capacity, bytes].
        self._streams = [s.reshape(capacity, -1).view(np.uint8) for s in streams]
        self._header = struct.Struct(f"<{1 + len(streams)}I")

    def append(self, step: dict[str, Any]) -> None:
        """Copies one step: a value or array for each field.

        Raises:
          KeyError: A field is missing.
        """
        at = self.steps
        for name, target in self._by_name.items():
            target[at] = step[name]
        self.steps = at + 1

    def extend(self, steps: Tensors, start: int, stop: int) -> None:
        """Copies steps `start` to `stop`, for which there must be room, of fields [n, ...].

        Raises:
          KeyError: A field is missing.
        """
        at, end = self.steps, self.steps + stop - start
        for name, target in self._by_name.items():
            target[at:end] = steps[name][start:stop]
        self.steps = end

    def encode(self) -> bytes:
        """The steps as a block; the buffer is empty then."""
        count, self.steps = self.steps, 0
        header = [count]
        parts: list[Any] = []
        for stream in self._streams:
            part: Any = stream[:count]
            size = part.nbytes
            header.append(size << 1)
            if size >= _LEAST_COMPRESSED_BYTES:
                compressed = cramjam.lz4.compress_block(part.data, store_size=False)
                if len(compressed) <= size * _WORTHWHILE:
                    part = compressed
                    header[-1] = len(compressed) << 1 | 1
            parts.append(part)
        return b"".join((self._header.pack(*header), *parts))


def encode_context(layout: SequenceLayout, context: dict[str, Any]) -> bytes:
    """An item's context as a block."""
    record = np.zeros(1, layout.context_record)
    for name in layout.context_record.names or ():
        record[name][0] = context[name]
    return record.tobytes()


class BatchBuffer:
    """Arrays of a batch, decoded in place.

    Attributes:
      steps: For each step field [B, T, ...].
      context: For each context field [B, ...].
    """

    def __init__(self, layout: SequenceLayout, batch_size: int, sequence_length: int) -> None:
        """Allocates the arrays."""
        shape = (batch_size, sequence_length)
        self._layout = layout
        self._length = sequence_length
        self._large = [np.zeros((*shape, *f.shape), f.dtype) for f in layout.large]
        self._records = np.zeros(shape, layout.record)
        self._context = np.zeros(batch_size, layout.context_record)
        self.steps: Tensors = {
            **{f.name: array for f, array in zip(layout.large, self._large, strict=True)},
            **{name: self._records[name] for name in layout.record.names or ()},
        }
        self.context: Tensors = {n: self._context[n] for n in layout.context_record.names or ()}
        self._targets = [] if not layout.record.names else [self._records]
        self._targets += self._large
        self._header = struct.Struct(f"<{1 + len(self._targets)}I")

    def decode_raw(
        self, first_row: int, payload: memoryview, blocks: npt.NDArray[np.uint32], length: int
    ) -> bool:
        """Fills rows at once, if all blocks are raw and fill a row: what tiny items are.

        Args:
          first_row: Of the first item.
          payload: Blocks of one size, the one of raw blocks.
          blocks: [n], the block of each item.
          length: Steps of each item.

        Returns:
          False if they are of another kind; nothing was done then.
        """
        sizes = [length * t.dtype.itemsize * math.prod(t.shape[2:]) for t in self._targets]
        block_bytes = self._header.size + sum(sizes)
        count, rest = divmod(len(payload), block_bytes)
        if length != self._length or self._context.dtype.names or rest or blocks.max() >= count:
            return False
        matrix = np.frombuffer(payload, np.uint8).reshape(count, block_bytes)
        header = np.frombuffer(self._header.pack(length, *(s << 1 for s in sizes)), np.uint8)
        if (matrix[:, : len(header)] != header).any():
            return False
        at = len(header)
        for target, size in zip(self._targets, sizes, strict=True):
            part = matrix[:, at : at + size].take(blocks, axis=0).view(target.dtype)
            target[first_row : first_row + len(blocks)] = part.reshape(-1, *target.shape[1:])
            at += size
        return True

    def decode_item(self, row: int, blocks: list[memoryview], offset: int, length: int) -> None:
        """Fills a row: `length` steps from step `offset` of the blocks on, the rest zeros.

        Raises:
          MalformedBlock: The blocks are not such an item.
        """
        if length > self._length:
            raise MalformedBlock(f"an item has {length} steps, the buffer {self._length}")
        if self._context.dtype.names:
            *blocks, context = blocks
            if len(context) != self._context.dtype.itemsize:
                raise MalformedBlock(f"a context has {len(context)} bytes")
            self._context[row] = np.frombuffer(context, self._context.dtype)[0]
        at = -offset
        for block in blocks:
            at += self._decode(row, block, at, length)
        if at < length:
            raise MalformedBlock(f"an item of {length} steps from {offset} on has {at + offset}")
        if length < self._length:
            for target in self._targets:
                target[row, length:] = np.zeros((), target.dtype)

    def _decode(self, row: int, block: memoryview, at: int, length: int) -> int:
        """Decodes a block whose first step is step `at` of the row; returns its steps."""
        if len(block) < self._header.size:
            raise MalformedBlock(f"a block has {len(block)} bytes")
        count, *sizes = self._header.unpack_from(block)
        low, high = max(at, 0), min(at + count, length)
        position = self._header.size
        if low >= high:
            return int(count)
        for target, size in zip(self._targets, sizes, strict=True):
            stream = block[position : position + (size >> 1)]
            position += size >> 1
            if size & 1 and high - low == count:
                _decompress(stream, target[row, low:high])
                continue
            shape = (count, *target.shape[2:])
            if size & 1:
                part = np.empty(shape, target.dtype)
                _decompress(stream, part)
            else:
                part = _view(stream, target.dtype, shape)
            target[row, low:high] = part[low - at : high - at]
        return int(count)


def _view(stream: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        return np.frombuffer(stream, dtype).reshape(shape)
    except ValueError:
        text = f"a stream has {len(stream)} bytes, expected {dtype} {shape}"
        raise MalformedBlock(text) from None


def _decompress(stream: memoryview, target: npt.NDArray[Any]) -> None:
    flat = target.reshape(-1).view(np.uint8)
    try:
        written = cramjam.lz4.decompress_block_into(stream, flat.data, output_len=flat.nbytes)
    except cramjam.DecompressionError as error:
        raise MalformedBlock(str(error)) from None
    if written != flat.nbytes:
        raise MalformedBlock(f"a stream has {written} bytes, expected {flat.nbytes}")
