"""The file with what changes after insertion: priorities, times sampled, the limiter's counts."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import zlib
from typing import Any

import numpy as np

from services.replay.table import Table

_NAME = "priorities.snapshot"
_DTYPES = {"keys": "<u8", "priorities": "<f8", "times_sampled": "<u4"}


@dataclasses.dataclass
class Snapshot:
    """One table's state; taken in the event loop, written by a thread.

    Attributes:
      counters: next_generation, inserted, sampled, evicted, used_up, stale.
      arrays: See `Table.state`.
    """

    counters: dict[str, int]
    arrays: dict[str, Any]


def take(table: Table) -> Snapshot:
    """Copies the state."""
    counters = {
        "next_generation": table.next_generation,
        "inserted": table.limiter.inserted,
        "sampled": table.limiter.sampled,
        "evicted": table.evicted,
        "used_up": table.used_up,
        "stale": table.stale,
    }
    return Snapshot(counters, table.state())


def write(snapshot: Snapshot, directory: pathlib.Path) -> None:
    """Replaces the file; a kill at any time leaves the old or the new one.

    Raises:
      OSError: The volume does not take it.
    """
    body = b"".join(
        np.ascontiguousarray(snapshot.arrays[name], dtype).tobytes()
        for name, dtype in _DTYPES.items()
    )
    counters = json.dumps(
        {**snapshot.counters, "items": len(snapshot.arrays["keys"])}, sort_keys=True
    ).encode()
    head = zlib.crc32(body, zlib.crc32(counters)).to_bytes(4, "little")
    new = directory / f"{_NAME}.new"
    with new.open("wb") as file:
        file.write(head + len(counters).to_bytes(4, "little") + counters)
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / _NAME)
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read(directory: pathlib.Path) -> Snapshot | None:
    """The newest snapshot; None if there is none.

    Raises:
      ValueError: It is damaged; the message names it.
    """
    path = directory / _NAME
    if not path.exists():
        return None
    data = path.read_bytes()
    size = int.from_bytes(data[4:8], "little")
    counters, body = data[8 : 8 + size], data[8 + size :]
    if len(data) < 8 or zlib.crc32(body, zlib.crc32(counters)).to_bytes(4, "little") != data[:4]:
        raise ValueError(f"{path}: wrong checksum")
    document = json.loads(counters)
    items = document.pop("items")
    arrays, at = {}, 0
    for name, dtype in _DTYPES.items():
        arrays[name] = np.frombuffer(body, dtype, items, at)
        at += arrays[name].nbytes
    return Snapshot(document, arrays)
