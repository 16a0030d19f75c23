"""The work of `bench_replay` done by dm-reverb, in a virtual environment of its own.

`bench_replay` runs it for each kind of work and each of Reverb's writers; it prints one JSON
object. The learner takes its batches as Reverb advises, through a TensorFlow data set that reads
ahead, and returns priorities after each of them.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import reverb
import tensorflow as tf

from tests.benchmarks.replay_work import BATCH, Phase, Work, waits_in_milliseconds

TABLE = "sequences"


def serve(work: Work) -> None:
    """Runs a server until the process is killed; prints its port."""
    server = reverb.Server(
        [
            reverb.Table(
                name=TABLE,
                sampler=reverb.selectors.Prioritized(0.9),
                remover=reverb.selectors.Fifo(),
                max_size=work.capacity,
                rate_limiter=reverb.rate_limiters.SampleToInsertRatio(
                    1.0, 1, 10.0 * (work.items + BATCH * work.batches)
                ),
            )
        ]
    )
    print(server.port, flush=True)
    server.wait()


def legacy_writers(client: Any, work: Work, slots: int) -> list[tuple[Any, Callable[..., None]]]:
    """Writers with a function that makes an item of the last steps."""

    def make() -> tuple[Any, Callable[..., None]]:
        writer = client.writer(work.length, chunk_length=min(40, work.length))
        return writer, lambda priority: writer.create_item(TABLE, work.length, priority)

    return [make() for _ in range(slots)]


def trajectory_writers(
    client: Any, work: Work, slots: int
) -> list[tuple[Any, Callable[..., None]]]:
    """The same for its newer writer."""

    def make() -> tuple[Any, Callable[..., None]]:
        writer = client.trajectory_writer(work.length)
        if work.length > 1:
            for name in work.steps:
                writer.configure((name,), num_keep_alive_refs=work.length, max_chunk_length=40)

        def create(priority: float) -> None:
            trajectory = {name: column[-work.length :] for name, column in writer.history.items()}
            writer.create_item(TABLE, priority, trajectory)

        return writer, create

    return [make() for _ in range(slots)]


WRITERS = {"legacy": legacy_writers, "trajectory": trajectory_writers}


def insert(writers: list[tuple[Any, Callable[..., None]]], work: Work) -> None:
    """Steps all slots, one after the other, until there are enough items."""
    made = n = 0
    while made < work.items:
        step = work.step(n)
        n += 1
        for writer, create in writers:
            writer.append(step)
            if work.is_due(n):
                create(1.0 + n % 7)
                made += 1
    for writer, _ in writers:
        writer.flush()


def measure(work: Work, kind: str, slots: int) -> dict[str, Any]:
    """Runs a server and both phases."""
    command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            client = reverb.Client(f"127.0.0.1:{int(server.stdout.readline())}")
            phase = Phase(server.pid)
            insert(WRITERS[kind](client, work, slots), work)
            result: dict[str, Any] = {"insert": phase.end(work.items, work.item_bytes)}
            names = sorted(work.steps)
            dataset = reverb.TrajectoryDataset(
                client.server_address,
                TABLE,
                dtypes={name: work.steps[name].dtype for name in names},
                shapes={
                    name: tf.TensorShape((work.length, *work.steps[name].shape[1:]))
                    for name in names
                },
                max_in_flight_samples_per_worker=2 * BATCH,
            )
            batches = dataset.batch(BATCH, drop_remainder=True).as_numpy_iterator()
            next(batches)
            phase = Phase(server.pid)
            waits = []
            for _ in range(work.batches):
                started = time.perf_counter()
                batch = next(batches)
                waits.append(time.perf_counter() - started)
                keys, priorities = batch.info.key.tolist(), batch.info.priority.tolist()
                client.mutate_priorities(TABLE, dict(zip(keys, priorities, strict=True)))
            result["sample"] = phase.end(BATCH * work.batches, work.item_bytes)
            result["sample"] |= waits_in_milliseconds(waits)
            return result
        finally:
            server.kill()


def main() -> None:
    """Prints the JSON object; with --serve, is the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a file of Work.save")
    parser.add_argument("--writer", choices=sorted(WRITERS), required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    work = Work.load(arguments.work)
    if arguments.serve:
        serve(work)
    else:
        print(json.dumps(measure(work, arguments.writer, arguments.slots)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
