"""What the replay service costs: items per second and CPU time on both sides.

Run by `make bench-replay`; prints a table, then one JSON object. A server process with log, rate
limiter and acknowledgements is filled step by step by writers of several slots, then a learner
takes batches of 64 and returns their priorities. MB are of the decoded steps.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from services.shared.replay import Field, ReplayClient, SequenceLayout, SlotWriter
from tests.integration.replay_server import ReplayServer

BATCH = 64
Steps = Callable[[int], dict[str, Any]]


class Workload:
    """Items of one kind."""

    def __init__(
        self,
        name: str,
        layout: SequenceLayout,
        length: int,
        period: int,
        items: int,
        batches: int,
        steps: Steps,
    ) -> None:
        self.name = name
        self.layout = layout
        self.length = length
        self.period = period
        self.items = items
        self.batches = batches
        self.steps = steps

    @property
    def item_bytes(self) -> int:
        return self.length * sum(field.bytes for field in self.layout.steps)


def make_frames() -> np.ndarray[Any, Any]:
    """Frames that compress like an Atari game's: a still scene, some sprites that move."""
    rng = np.random.default_rng(0)
    scene = np.repeat(np.repeat(rng.integers(0, 8, (12, 6)), 7, 0), 14, 1).astype(np.uint8) * 20
    frames = np.repeat(scene[None], 512, 0)
    for sprite in range(12):
        y, x, pattern = sprite * 7, rng.integers(0, 70), rng.integers(0, 255, (6, 8))
        for n in range(len(frames)):
            left = (x + n * (1 + sprite % 3)) % 76
            frames[n, y : y + 6, left : left + 8] = pattern
    return frames


def workloads(scale: float) -> Iterator[Workload]:
    def count(number: int) -> int:
        return max(BATCH, int(number * scale))

    tiny = np.random.default_rng(0).integers(0, 255, (512, 100), np.uint8)
    yield Workload(
        "tiny 100 B",
        SequenceLayout((Field("data", "uint8", (100,)),)),
        1, 1, count(50_000), count(800), lambda n: {"data": tiny[n % 512]},
    )  # fmt: skip
    frames = make_frames()
    layout = SequenceLayout(
        (
            Field("frame", "uint8", (84, 84)),
            Field("reward", "float32"),
            Field("discount", "float32"),
            Field("action", "int32"),
        ),
        (Field("state", "float32", (512,)),),
    )
    state = np.zeros(512, np.float32)

    def step(n: int) -> dict[str, Any]:
        return {
            "frame": frames[n % 512], "reward": 0.0, "discount": 1.0, "action": n, "state": state
        }  # fmt: skip

    yield Workload("atari 80x84x84", layout, 80, 40, count(3_000), count(50), step)
    noise = np.random.default_rng(0).integers(0, 255, (512, 84, 84), np.uint8)

    def noisy(n: int) -> dict[str, Any]:
        return {**step(n), "frame": noise[n % 512]}

    yield Workload("incompressible", layout, 80, 40, count(1_000), count(20), noisy)


def insert(writers: list[SlotWriter], work: Workload) -> int:
    """Steps all slots until there are enough items; returns their number."""
    made = n = 0
    while made < work.items:
        step = work.steps(n)
        n += 1
        is_due = n >= work.length and (n - work.length) % work.period == 0
        for writer in writers:
            writer.append(step)
            if is_due:
                writer.create_item(work.length, 1.0 + n % 7, step)
                made += 1
    return made


class Phase:
    """CPU and wall time of a part of the run."""

    def __init__(self, server: ReplayServer) -> None:
        self._server = server
        self._cpu = server.full_status().cpu_seconds
        self._client = time.process_time()
        self._wall = time.perf_counter()

    def end(self, items: int, item_bytes: int) -> dict[str, float]:
        wall = time.perf_counter() - self._wall
        client = time.process_time() - self._client
        server = self._server.full_status().cpu_seconds - self._cpu
        return {
            "items": items,
            "items_per_second": round(items / wall, 1),
            "megabytes_per_second": round(items * item_bytes / wall / 1e6, 1),
            "client_cpu_us_per_item": round(client / items * 1e6, 2),
            "server_cpu_us_per_item": round(server / items * 1e6, 2),
        }


def measure(work: Workload, folder: pathlib.Path, slots: int) -> dict[str, Any]:
    table = {
        "max_items": work.items,
        "samples_per_insert": 1.0,
        "error_buffer": 10.0 * BATCH * (work.items + work.batches),
    }
    server = ReplayServer(folder, table, persistence={"directory": str(folder / "data")})
    server.start()
    try:
        with ReplayClient([server.address], work.layout) as client:
            writers = [client.writer(slot, work.length) for slot in range(slots)]
            phase = Phase(server)
            items = insert(writers, work)
            client.flush(120)
            result: dict[str, Any] = {"insert": phase.end(items, work.item_bytes)}
            stored = server.status().bytes
            sampler = client.sampler(BATCH, work.length)
            sampler.next(60)
            phase = Phase(server)
            waits = []
            for _ in range(work.batches):
                started = time.perf_counter()
                batch = sampler.next(60)
                waits.append(time.perf_counter() - started)
                sampler.update_priorities(batch, batch.priorities)
            result["sample"] = phase.end(BATCH * work.batches, work.item_bytes)
            p50, p99 = np.quantile(waits, [0.5, 0.99]) * 1e3
            result["sample"] |= {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}
            result["stored_bytes_per_item"] = round(stored / items, 1)
            result["item_bytes"] = work.item_bytes
        return result
    finally:
        server.terminate()
        server.close()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the amount of work")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--only", default="", help="workloads whose names have this in them")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    print(f"{'':16} {'':7} {'items/s':>9} {'MB/s':>8} {'CPU us/item':>22} {'p50 ms':>8} {'p99':>8}")
    print(f"{'':16} {'':7} {'':9} {'':8} {'client':>11} {'server':>10}")
    for work in workloads(arguments.scale):
        if arguments.only not in work.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = results[work.name] = measure(work, pathlib.Path(folder), arguments.slots)
        for phase in ("insert", "sample"):
            r = result[phase]
            line = (
                f"{work.name:16} {phase:7} {r['items_per_second']:9.0f}"
                f" {r['megabytes_per_second']:8.0f} {r['client_cpu_us_per_item']:11.1f}"
                f" {r['server_cpu_us_per_item']:10.1f}"
            )
            if "p50_ms" in r:
                line += f" {r['p50_ms']:8.2f} {r['p99_ms']:8.2f}"
            print(line, flush=True)
    print(json.dumps({"benchmark": "replay", "batch": BATCH, "results": results}))


if __name__ == "__main__":
    main()
