"""What serving an action costs: `make bench-inference`.

Light clients (two processes, eight groups of k environments each; with the football network two,
or a batch would take seconds) keep the learner's serving path busy: without a network, with an MLP
and with the football network. CPU time is what the processes' own clocks say; the learner's share
is its front end and all of its inference process except for the calls of the policy, which stand
in a column of their own.

The last line is one JSON object with the same figures and the estimate for a host of many cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil

from services.shared.config import LearnerConfig
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from tests.benchmarks import clock, inference_server, light_clients

_CLIENTS = 2
_GROUPS = {"none": 8, "mlp": 8, "football": 2}  # of a client
_WARM_UP_ANSWERS = 100
_HOST_CORES = 96

_ACTION = DiscreteActionSpec((19,))
OBSERVATIONS = {
    "460 B": TensorSpec("vector", DataType.FLOAT32, (115,)),
    "3.5 KB": TensorSpec("smm", DataType.BIT, (72, 96, 4), stack=4),
    "13.8 KB": TensorSpec("smm", DataType.BIT, (72, 96, 16)),
}
NETWORKS: dict[str, dict[str, Any]] = {
    "none": {},
    "mlp": {"name": "mlp", "arguments": {"sizes": [256, 256]}},
    "football": {"name": "football"},
}
# SEED RL's C++ TensorFlow operation, trivial function, loopback, two clients: server microseconds
# per query by environments of a call.
_SEED = {"8 floats": {16: 13.0, 64: 3.7, 256: 1.2}, "13.8 KB": {16: 27.0, 64: 18.0, 256: 15.0}}


class Row(NamedTuple):
    """What a row of the table measures."""

    network: str
    observation: str
    k: int


ROWS = [
    *(Row("none", size, k) for size in OBSERVATIONS for k in (1, 8, 32, 128)),
    *(Row("mlp", "460 B", k) for k in (1, 8, 32, 128)),
    *(Row("football", "3.5 KB", k) for k in (8, 32)),
]


def measure(row: Row, seconds: float) -> dict[str, Any]:
    """Serves the row's clients for so long; returns its figures."""
    context = multiprocessing.get_context("spawn")
    spec = EnvironmentSpec((OBSERVATIONS[row.observation],), _ACTION)
    groups = _CLIENTS * _GROUPS[row.network]
    config = LearnerConfig.model_validate(
        {
            "address": "localhost:0",
            "max_slots": groups * row.k,
            # Half of the groups: the others' messages travel meanwhile.
            "inference_batch_size": groups * row.k // 2,
            "threads": 1,
            **({"network": NETWORKS[row.network]} if row.network != "none" else {}),
        }
    )
    answers, served = (
        [context.Value("q", 0, lock=False) for _ in range(_CLIENTS)] for _ in range(2)
    )
    latencies = [context.Array("d", light_clients.KEPT, lock=False) for _ in range(_CLIENTS)]
    with (
        inference_server.running(config, row.network != "none") as (server, counts),
        contextlib.ExitStack() as stack,
    ):
        address = f"localhost:{counts.port.value}"
        clients = [
            context.Process(
                target=light_clients.run,
                args=(address, spec, _GROUPS[row.network], row.k, *shared),
            )
            for shared in zip(answers, served, latencies, strict=True)
        ]
        for client in clients:
            client.start()
            stack.callback(client.join)
            stack.callback(client.kill)
        inference_server.wait_for(
            lambda: min(a.value for a in answers) >= _WARM_UP_ANSWERS,
            *(process.is_alive for process in (server, *clients)),
        )
        (front_end,) = psutil.Process(server.pid).children()
        pids = [server.pid or 0, front_end.pid, *(client.pid or 0 for client in clients)]
        before = _Snapshot.take(pids, counts, answers)
        time.sleep(seconds)
        after = _Snapshot.take(pids, counts, answers)
    newest = [
        np.frombuffer(kept)[: count.value] for kept, count in zip(latencies, answers, strict=True)
    ]
    return _figures(row, config, spec, after - before, np.concatenate(newest))


class _Snapshot:
    """Clocks and counters at one moment."""

    def __init__(self, values: npt.NDArray[np.float64]) -> None:
        self.values = values

    @classmethod
    def take(
        cls, pids: list[int], counts: inference_server.Counts, answers: list[Any]
    ) -> _Snapshot:
        """Reads them."""
        cpu = [clock.cpu_seconds(pid) for pid in pids]
        return cls(
            np.array(
                [
                    time.monotonic(),
                    *cpu[:2],
                    sum(cpu[2:]),
                    counts.calls.value,
                    counts.slots.value,
                    counts.policy_cpu_seconds.value,
                    counts.loop_cpu_seconds.value,
                    sum(a.value for a in answers),
                ]
            )
        )

    def __sub__(self, other: _Snapshot) -> npt.NDArray[np.float64]:
        return self.values - other.values


def _figures(
    row: Row,
    config: LearnerConfig,
    spec: EnvironmentSpec,
    passed: npt.NDArray[np.float64],
    latencies: npt.NDArray[np.float64],
) -> dict[str, Any]:
    seconds, process, front_end, clients, calls, slots, policy, loop, answers = passed.tolist()
    queries = answers * row.k
    (tensor,) = spec.observation
    # Into the step store, and each frame of the stack into the batch.
    copied = tensor.storage_bytes * (1 + tensor.stack)
    p50, p99 = np.percentile(latencies, (50, 99))
    return {
        **row._asdict(),
        "queries_per_second": queries / seconds,
        "learner_us": (process - policy + front_end) / queries * 1e6,
        "front_end_us": front_end / queries * 1e6,
        "loop_us": loop / queries * 1e6,
        "policy_us": policy / queries * 1e6,
        "client_us": clients / queries * 1e6,
        "message_us": (process - policy + front_end) / answers * 1e6,
        "copied_bytes": copied,
        "p50_ms": p50 * 1e3,
        "p99_ms": p99 * 1e3,
        "batch_fill": slots / calls / config.inference_batch_size,
    }


def host_estimate(figures: list[dict[str, Any]], cores: int) -> dict[str, float]:
    """Queries/s of a host whose cores run front ends, beside one inference thread.

    Args:
      figures: Of the rows.
      cores: Of the host; one is the inference thread's.

    Returns:
      By row, for those without a network: the smaller of what the front ends and what the
      thread could do.
    """
    return {
        f"{f['observation']}, k={f['k']}": 1e6
        / max(f["front_end_us"] / (cores - 1), f["learner_us"] - f["front_end_us"])
        for f in figures
        if f["network"] == "none"
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each row (%(default)s)")
    parser.add_argument("--network", choices=list(NETWORKS), help="only these rows")
    parser.add_argument("--observation", choices=list(OBSERVATIONS), help="only these rows")
    parser.add_argument("--k", type=int, help="only these rows")
    parsed = parser.parse_args()
    rows = [
        row
        for row in ROWS
        if all(getattr(parsed, name) in (None, value) for name, value in row._asdict().items())
    ]
    print(
        "network   observed    k  queries/s  learner us (front end + loop)  policy us  client us"
        "  copied B  p50 ms  p99 ms  fill"
    )
    figures = []
    for row in rows:
        f = measure(row, parsed.seconds)
        figures.append(f)
        print(
            f"{row.network:9} {row.observation:8} {row.k:4}  {f['queries_per_second']:9,.0f}"
            f"  {f['learner_us']:10.2f} ({f['front_end_us']:7.2f} + {f['loop_us']:6.2f})"
            f"  {f['policy_us']:9.2f}  {f['client_us']:9.2f}  {f['copied_bytes']:8,}"
            f"  {f['p50_ms']:6.2f}  {f['p99_ms']:6.2f}  {f['batch_fill']:4.0%}",
            flush=True,
        )
    host = host_estimate(figures, _HOST_CORES)
    for name, rate in host.items():
        print(f"{_HOST_CORES} cores, {name}: {rate:,.0f} queries/s if front ends add up")
    print(json.dumps({"rows": figures, "host_queries_per_second": host, "seed_us": _SEED}))


if __name__ == "__main__":
    main()
