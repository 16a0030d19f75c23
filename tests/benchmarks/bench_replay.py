"""What the replay service costs, beside dm-reverb: items per second and CPU time on both sides.

Run by `make bench-replay`; prints a table, then one JSON object. A server process with log, rate
limiter and acknowledgements is filled by writers of several slots, then a learner takes batches
of 64 and returns their priorities. MB are of the decoded steps. Reverb does the same, without a
log, which it does not have, in a virtual environment that is made under build/. Its writers take
step after step, ours the runs of steps from one item to the next, as each one's learner has them.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from services.shared import processes
from services.shared.replay import Field, ReplayClient, SequenceLayout, SlotWriter
from tests.benchmarks.replay_work import BATCH, Phase, Work, waits_in_milliseconds, works
from tests.integration.replay_server import ReplayServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
REVERB = ROOT / "build/reverb"
# With the TensorFlow that it was built for: 2.15.
REQUIREMENT = "dm-reverb[tensorflow]==0.14.0"
REVERB_WRITERS = ("legacy", "trajectory")


def insert(writers: list[SlotWriter], work: Work) -> None:
    """Gives all slots, one after the other, steps until there are enough items."""
    made = n = 0
    while made < work.items:
        start, n = n, n + work.period if n else work.length
        step, run = work.step(start), work.run(start, n)
        for writer in writers:
            if work.period == 1:
                writer.append(step)
            else:
                writer.extend(run)
            writer.create_item(work.length, 1.0 + n % 7)
            made += 1


def measure(work: Work, folder: pathlib.Path, slots: int) -> dict[str, Any]:
    """Runs our server and both phases."""
    table = {
        "max_items": work.capacity,
        "samples_per_insert": 1.0,
        "error_buffer": 10.0 * (work.items + BATCH * work.batches),
    }
    layout = SequenceLayout(
        tuple(Field(name, v.dtype.str, v.shape[1:]) for name, v in work.steps.items())
    )
    server = ReplayServer(folder, table, persistence={"directory": str(folder / "data")}).start()
    assert server.process is not None
    try:
        with ReplayClient([server.address], layout) as client:
            writers = [client.writer(slot, work.length) for slot in range(slots)]
            phase = Phase(server.process.pid)
            insert(writers, work)
            client.flush(120)
            result: dict[str, Any] = {"insert": phase.end(work.items, work.item_bytes)}
            stored = server.status()
            result["stored_bytes_per_item"] = round(stored.bytes / stored.items, 1)
            sampler = client.sampler(BATCH, work.length)
            sampler.next(60)
            phase = Phase(server.process.pid)
            waits = []
            for _ in range(work.batches):
                started = time.perf_counter()
                batch = sampler.next(60)
                waits.append(time.perf_counter() - started)
                sampler.update_priorities(batch, batch.priorities)
            result["sample"] = phase.end(BATCH * work.batches, work.item_bytes)
            result["sample"] |= waits_in_milliseconds(waits)
        return result
    finally:
        server.terminate()
        server.close()


def install_reverb() -> str | None:
    """Makes the virtual environment if it is not there; what went wrong, or None."""
    python = REVERB / "bin/python"
    try:
        if not (REVERB / "bin/pip").exists():
            subprocess.run([sys.executable, "-m", "venv", REVERB], check=True, timeout=120)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", REQUIREMENT],
            check=True, timeout=1200, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return str(detail).strip().splitlines()[-1]
    return None


def measure_reverb(work: Work, writer: str, folder: pathlib.Path, slots: int) -> dict[str, Any]:
    """The same with Reverb and one of its writers."""
    path = folder / "work.npz"
    work.save(path)
    output = subprocess.run(
        [REVERB / "bin/python", "-m", "tests.benchmarks.replay_reverb", "--work", path,
         "--writer", writer, "--slots", str(slots)],
        cwd=ROOT, check=True, timeout=1200, capture_output=True,
    ).stdout  # fmt: skip
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def total_cpu(result: dict[str, Any]) -> float:
    """CPU time of one insert and one sample on both sides, in microseconds."""
    total = 0.0
    for phase in ("insert", "sample"):
        for side in ("client", "server"):
            total += result[phase][f"{side}_cpu_us_per_item"]
    return total


def print_head() -> None:
    """The table's first lines."""
    print(f"{'':22} {'':17} {'insert':^31} {'sample':^47} {'insert + sample'}")
    side = f"{'items/s':>8} {'MB/s':>6} {'us/item':>15}"
    print(f"{'work':22} {'service':17} {side} {side} {'p50 ms':>7} {'p99 ms':>7} {'us':>8}")
    print(
        f"{'':22} {'':17} {'':15} {'client':>8} {'server':>7} {'':15} {'client':>8} {'server':>7}"
    )


def print_row(work: str, service: str, result: dict[str, Any]) -> None:
    """One service at one kind of work."""
    line = f"{work:22} {service:17}"
    for phase in ("insert", "sample"):
        r = result[phase]
        line += f" {r['items_per_second']:8.0f} {r['megabytes_per_second']:6.0f}"
        line += f" {r['client_cpu_us_per_item']:8.1f} {r['server_cpu_us_per_item']:7.1f}"
    sample = result["sample"]
    line += f" {sample['p50_ms']:7.2f} {sample['p99_ms']:7.2f} {total_cpu(result):8.1f}"
    print(line, flush=True)


def compare(work: Work, slots: int, has_reverb: bool) -> dict[str, Any]:
    """Measures all services at one kind of work, and prints their rows."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        results["seedpod"] = measure(work, folder, slots)
        print_row(work.name, "seedpod", results["seedpod"])
        for writer in REVERB_WRITERS if has_reverb else ():
            service = f"reverb {writer}"
            results[service] = measure_reverb(work, writer, folder, slots)
            print_row("", service, results[service])
    if has_reverb:
        least = min(total_cpu(results[f"reverb {writer}"]) for writer in REVERB_WRITERS)
        results["cpu_of_reverb"] = round(total_cpu(results["seedpod"]) / least, 3)
        print(f"{'':22} CPU of Reverb's better writer: {results['cpu_of_reverb']:.0%}")
    return results


def main() -> None:
    """Measures and prints."""
    # The client's side as it is in a learner; the services have the system's memory settings.
    processes.restart_for_large_arrays("tests.benchmarks.bench_replay")
    del os.environ["GLIBC_TUNABLES"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the amount of work")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--only", default="", help="work whose name has this in it")
    parser.add_argument("--no-reverb", action="store_true", help="measure seedpod alone")
    arguments = parser.parse_args()
    problem = "left out by --no-reverb" if arguments.no_reverb else install_reverb()
    print_head()
    if problem is not None:
        print(f"{'':22} reverb: not measured: {problem}")
    results = {
        work.name: compare(work, arguments.slots, problem is None)
        for work in works(arguments.scale)
        if arguments.only in work.name
    }
    print(
        json.dumps(
            {
                "benchmark": "replay",
                "batch": BATCH,
                "slots": arguments.slots,
                "reverb": problem or REQUIREMENT,
                "results": results,
            }
        )
    )


if __name__ == "__main__":
    main()
