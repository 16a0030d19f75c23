"""What a frame costs the whole system, and where: `make bench-system`.

Trains each row with `seedpod train` and prints frames/s, and the CPU seconds of 1,000 frames by
part. The floor is the environments and the network's arithmetic, as TensorFlow does
it on these cores (inference and training); what is above it is the system's overhead: actors beside
their environments, front ends, the rest of the learner. Idle is what the cores had left.

The last line is one JSON object with the same figures and those of other systems.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
from typing import Any, NamedTuple

import yaml

from services.shared.cores import usable_cores
from tests.benchmarks import steady

_SYNTHETIC = "tests.benchmarks.synthetic:Synthetic"
_NATURE = {"name": "nature", "arguments": {"lstm_size": None}}  # 1.7 million parameters
_MLP = {"name": "mlp", "arguments": {"sizes": [256, 256]}}
_PIXELS: dict[str, Any] = {"shape": [84, 84, 4], "actions": 18}
_COSTLY = {"cpu_milliseconds": 2}


class Row(NamedTuple):
    """A run.

    Attributes:
      experiment: A preset's name, or the document.
      peers: Other systems on the same two cores with the same environment, network, batch and
        unroll, the best of several settings: frames/s, CPU seconds of 1,000 frames.
    """

    experiment: str | dict[str, Any]
    peers: tuple[tuple[str, float, float], ...] = ()


def _synthetic(
    environment: dict[str, Any],
    network: dict[str, Any],
    *,
    workers: int,
    k: int,
    inference_batch_size: int,
) -> dict[str, Any]:
    """An experiment; one TensorFlow thread, because two cores have enough else to do."""
    return {
        "version": 1,
        "name": "synthetic",
        "actor": {
            "environment": _SYNTHETIC,
            "environment_arguments": environment,
            "workers": workers,
            "groups": 2,
            "environments_per_group": k,
        },
        "learner": {
            "threads": 1,
            "unroll_length": 32,
            "batch_size": 32,
            "inference_batch_size": inference_batch_size,
            "network": network,
        },
    }


ROWS = {
    "pixels": Row(
        _synthetic(_PIXELS, _NATURE, workers=1, k=32, inference_batch_size=32),
        peers=(
            ("RLlib IMPALA", 856, 1.92),
            ("Sample Factory", 648, 2.14),
            ("MonoBeast", 469, 2.99),
        ),
    ),
    "pixels, 2 ms": Row(
        _synthetic(_PIXELS | _COSTLY, _NATURE, workers=2, k=16, inference_batch_size=32),
        peers=(
            ("RLlib IMPALA", 498, 3.91),
            ("Sample Factory", 442, 4.12),
            ("RLlib APPO", 414, 4.66),
            ("MonoBeast", 371, 5.10),
        ),
    ),
    "115 floats": Row(
        _synthetic({}, _MLP, workers=2, k=64, inference_batch_size=128),
        peers=(
            ("Sample Factory", 12_651, 0.151),
            ("RLlib IMPALA", 10_013, 0.169),
            ("MonoBeast", 8_283, 0.234),
        ),
    ),
    "football, MLP": Row("football"),
    "football, residual": Row("football-smm"),
}
_FLOOR = ("environment", "inference", "training")


def measure(row: Row, seconds: float, overrides: list[str]) -> dict[str, float]:
    """A run's figures; CPU seconds are of 1,000 frames."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = row.experiment
        if isinstance(experiment, dict):
            document = pathlib.Path(folder) / "synthetic.yaml"
            document.write_text(yaml.safe_dump(experiment))
            experiment = str(document)
        arguments = [f"--set={override}" for override in overrides]
        costs = steady.measure(experiment, *arguments, seconds=seconds)
    total = costs.cpu["total"]
    return {
        "frames": costs.frames,
        "received_share": costs.received_share,
        "frames_per_second": costs.frames_per_second,
        **costs.cpu,
        "idle": max(0.0, usable_cores() * 1000 / costs.frames_per_second - total),
        "overhead_share": 1 - sum(costs.cpu[part] for part in _FLOOR) / total,
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run (%(default)s)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="of each run")
    parsed = parser.parse_args()
    parts = {
        "environment": "environ.",
        "actor": "actor",
        "front_ends": "front ends",
        "inference": "inference",
        "training": "training",
        "learner_other": "rest",
        "total": "total",
        "idle": "idle",
    }
    print(
        f"{'CPU seconds of 1,000 frames':28} {'frames/s':>9} "
        + " ".join(f"{title:>10}" for title in parts.values())
        + "  overhead"
    )
    table: dict[str, Any] = {}
    for name in parsed.rows:
        row = ROWS[name]
        figures = measure(row, parsed.seconds, parsed.overrides)
        rounded = {part: round(value, 4) for part, value in figures.items()}
        table[name] = {"seedpod": rounded, "peers": row.peers}
        print(
            f"{name:28} {figures['frames_per_second']:9,.0f} "
            + " ".join(f"{figures[part]:10.3f}" for part in parts)
            + f" {figures['overhead_share']:9.1%}",
            flush=True,
        )
        for peer, rate, total in row.peers:
            print(f"  {peer:26} {rate:9,.0f} {'':65} {total:10.3f}")
    print(json.dumps({"rows": table}))


if __name__ == "__main__":
    main()
