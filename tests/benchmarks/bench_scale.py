"""What thousands of environments cost a learner: `make bench-scale`.

Whole learners (front end, inference, training of a small MLP) serve light clients: groups of a
fixed size k, as many streams as the environments need, in two processes. What an actor adds by
connecting is a stream, so the CPU time of a query shall not depend on how many there are; the last
rows do it with two learners, each with half of the environments.

CPU time is what the processes' own clocks say; inference and training are told apart as
services/learner/cpu_time.py does. The clients run on the same cores, so the learner could answer
more queries/s than these. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from tests.benchmarks import clock, light_clients
from tests.e2e import runs

_CLIENT_PROCESSES = 2
_READY_SECONDS = 120.0
# As football's: 460 bytes an observation, 19 actions.
SPEC = EnvironmentSpec((TensorSpec("vector", DataType.FLOAT32, (115,)),), DiscreteActionSpec((19,)))


class Learner:
    """A learner's process, and what it has used."""

    def __init__(self, folder: pathlib.Path, max_slots: int, batch_size: int) -> None:
        """Starts it; `address` waits until it serves."""
        self._folder = folder
        folder.mkdir()
        document = folder / "experiment.yaml"
        settings = {
            "address": "127.0.0.1:0",
            "metrics_port": 0,
            "threads": 1,
            "max_slots": max_slots,
            "inference_batch_size": batch_size,
            "unroll_length": 16,
            "batch_size": 32,
            "network": {"name": "mlp", "arguments": {"sizes": [64, 64]}},
        }
        document.write_text(json.dumps({"actor": {"environment": "none"}, "learner": settings}))
        command = [sys.executable, "-m", "services.learner", "--child", f"--experiment={document}"]
        with (folder / "learner.log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def address(self) -> str:
        """host:port."""
        pattern, log = re.compile(r"serving on (\S+)"), self._folder / "learner.log"
        return str(_wait(lambda: pattern.findall(log.read_text()), "the learner to serve")[0])

    def cpu_seconds(self) -> dict[str, float]:
        """So far: of the front ends, and of the learner's own process by part."""
        front_ends = runs.descendants(self._process.pid, "services.learner.front_end")
        process = clock.cpu_seconds(self._process.pid)
        metrics = runs.scrape(self._folder)
        # A part that has used nothing yet has no sample.
        inference, training = (
            metrics.get(("seedpod_cpu_seconds_total", part), 0.0)
            for part in ("inference", "training")
        )
        return {
            "front_end": sum(clock.cpu_seconds(p.pid) for p in front_ends),
            "inference": inference,
            "training": training,
            "other": process - inference - training,
        }

    def wait_until_idle(self) -> None:
        """Waits until it has heard that its clients are gone."""
        _wait(
            lambda: runs.scrape(self._folder)["seedpod_live_slots", ""] == 0,
            "the streams of the row before to end",
        )

    def kill(self) -> None:
        """Ends it; its front end follows."""
        self._process.kill()
        self._process.wait()


def _wait(condition: Callable[[], Any], what: str) -> Any:
    return runs.wait_for(condition, what, _READY_SECONDS)


@contextlib.contextmanager
def _learners(count: int, max_slots: int, batch_size: int) -> Iterator[list[Learner]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        learners = []
        for i in range(count):
            learners.append(Learner(pathlib.Path(folder) / str(i), max_slots, batch_size))
            stack.callback(learners[-1].kill)
        yield learners


@contextlib.contextmanager
def _clients(
    learners: Sequence[Learner], environments: int, k: int
) -> Iterator[tuple[Callable[[], int], list[int]]]:
    """Clients that are all served.

    Yields:
      What counts the answers so far, and the clients' process numbers.
    """
    context = multiprocessing.get_context("spawn")
    streams = environments // k // _CLIENT_PROCESSES
    counters, clients = [], []
    for i in range(_CLIENT_PROCESSES):
        shared = [context.Value("q", 0, lock=False) for _ in range(2)]
        counters.append(shared)
        arguments = (learners[i % len(learners)].address, SPEC, streams, k, *shared)
        clients.append(context.Process(target=light_clients.run, args=arguments))
        clients[-1].start()

    def all_served() -> bool:
        if not all(client.is_alive() for client in clients):
            raise RuntimeError("a client process has ended; its error is above")
        return bool(sum(served.value for _, served in counters) == streams * _CLIENT_PROCESSES)

    try:
        _wait(all_served, f"{environments} environments to be served")
        pids = [int(client.pid) for client in clients if client.pid is not None]
        yield lambda: sum(answers.value for answers, _ in counters), pids
    finally:
        for client in clients:
            client.kill()
            client.join()


def measure(
    learners: Sequence[Learner], environments: int, k: int, seconds: float
) -> dict[str, float]:
    """Serves so many environments for so long; returns a row's figures."""
    with _clients(learners, environments, k) as (answers, pids):
        time.sleep(1.0)

        def look() -> dict[str, float]:
            parts = [learner.cpu_seconds() for learner in learners]
            return {
                "at": time.monotonic(),
                "answers": answers(),
                "client": sum(clock.cpu_seconds(pid) for pid in pids),
                **{name: sum(part[name] for part in parts) for name in parts[0]},
            }

        before = look()
        time.sleep(seconds)
        after = look()
    for learner in learners:
        learner.wait_until_idle()
    passed = {name: after[name] - before[name] for name in after}
    queries = passed.pop("answers") * k
    row = {
        "learners": len(learners),
        "environments": environments,
        "streams": environments // k,
        "queries_per_second": queries / passed.pop("at"),
        **{f"{name}_us": value / queries * 1e6 for name, value in passed.items()},
    }
    serving = ("front_end_us", "inference_us", "other_us")
    row["serving_us"] = sum(row[name] for name in serving)
    row["learner_us"] = row["serving_us"] + row["training_us"]
    return row


def spread(rows: Sequence[dict[str, float]]) -> float:
    """How far the dearest row's CPU time of a query is above the cheapest's, as a share."""
    costs = [row["learner_us"] for row in rows]
    return max(costs) / min(costs) - 1


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=int, nargs="+", default=[100, 400, 1000, 2000, 4000])
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--k", type=int, default=10, help="of a group (%(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each row (%(default)s)")
    parsed = parser.parse_args()
    for n in parsed.environments:
        if n % (_CLIENT_PROCESSES * parsed.k):
            parser.error(
                f"--environments {n}, allowed with --k {parsed.k}: multiples of"
                f" {_CLIENT_PROCESSES * parsed.k}"
            )
    # Half of what the fewest environments of a learner have: then all rows have full batches.
    batch_size = max(parsed.k, min(parsed.environments) // max(parsed.learners) // 2)
    columns = ("front_end", "inference", "other", "training", "learner", "client")
    print(
        f"groups of {parsed.k}, batches of {batch_size}; microseconds of CPU a query\n"
        "learners environments streams queries/s " + " ".join(f"{c:>9}" for c in columns)
    )
    rows = []
    for count in parsed.learners:
        # The slots of a row before may still be leased.
        with _learners(count, sum(parsed.environments), batch_size) as learners:
            for n in parsed.environments:
                row = measure(learners, n, parsed.k, parsed.seconds)
                rows.append(row)
                print(
                    f"{count:8} {n:12} {row['streams']:7} {row['queries_per_second']:9,.0f} "
                    + " ".join(f"{row[f'{c}_us']:9.1f}" for c in columns),
                    flush=True,
                )
    spreads = {
        str(count): spread([row for row in rows if row["learners"] == count])
        for count in parsed.learners
    }
    for count, share in spreads.items():
        print(f"{count} learner(s): dearest query {share:.0%} above the cheapest")
    figures = [{name: round(value, 3) for name, value in row.items()} for row in rows]
    print(json.dumps({"rows": figures, "spread": spreads}))


if __name__ == "__main__":
    main()
