"""Tables filled without a network."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.replay.items import PLACE_BITS, ItemArrays
from services.replay.table import Table
from services.shared.config import TableConfig


def make_table(seed: int = 0, **settings: Any) -> Table:
    return Table("sequences", TableConfig.model_validate(settings), seed)


def fill(table: Table, priorities: Any, block: bytes = b"12345678") -> list[int]:
    """Inserts one item of one block for each priority; returns the keys."""
    priorities = np.asarray(priorities, np.float64)
    count = len(priorities)
    payload = memoryview(block * count)
    sizes = np.full(count, len(block), np.int64)
    first = table.next_generation
    chunk, rows = table.add_message(payload, len(payload), sizes, count)
    items = ItemArrays(
        rows=rows,
        counts=np.ones(count, np.int64),
        offsets=np.arange(count, dtype=np.uint32),
        lengths=np.ones(count, np.uint32),
        priorities=priorities,
        chunk=chunk,
        generations=np.arange(first, first + count, dtype=np.uint64),
    )
    table.check_priorities(items.priorities)
    table.check_sizes(items)
    table.insert(items)
    table.blocks.release(rows)
    present = {int(key) >> PLACE_BITS: int(key) for key in table.state()["keys"].tolist()}
    return [present[g] for g in range(first, first + count) if g in present]


def chi_square_limit(degrees: int) -> float:
    """The 99.99 % quantile (Wilson and Hilferty 1931); seeds are fixed, so it is met or not."""
    z = 3.719
    a = 2 / (9 * degrees)
    return float(degrees * (1 - a + z * a**0.5) ** 3)
