"""SEED against IMPALA: `make bench-impala`.

Trains the same football scenario with inference by the learner (SEED) and by actors (IMPALA,
`learner.inference=actors`), for the same frames, and prints what each costs: CPU time on the
actors' side and on the learner's, bytes, frames/s. CPU times are those of the runs' summaries,
which leave starts out. Without XLA: it would compile for longer than the short runs train.

What it would cost in a data centre follows from prices and from an assumption: how many of these
cores one accelerator replaces for the network's arithmetic. IMPALA's actors have none.

The last line is one JSON object with the same figures.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
from typing import Any, NamedTuple

from tests.e2e import runs

_SMM = ("football-smm", "--set=learner.xla=false")
_SIZE = "--set=actor.environment_arguments.smm_size={}"
_CHANNELS = "--set=learner.network.arguments.channels={}"


class Row(NamedTuple):
    """A network with its observation, and frames that take about a minute on two cores."""

    frames: int
    arguments: tuple[str, ...]


ROWS = {
    "simple115, MLP 2x256": Row(12_000, ("football",)),
    "smm 96x72, default": Row(1_500, _SMM),
    "smm 120x90, medium": Row(
        500, (*_SMM, _SIZE.format("120x90"), _CHANNELS.format("[32,64,64,64]"))
    ),
    "smm 144x108, large": Row(
        256, (*_SMM, _SIZE.format("144x108"), _CHANNELS.format("[64,128,128,128]"))
    ),
}
DESIGNS = {"SEED": "learner", "IMPALA": "actors"}


def measure(row: Row, frames: int | None, design: str) -> dict[str, float]:
    """One run; CPU seconds are of 1,000 frames, bytes of one.

    What comes before training counts for the frames that arrived: in a short run many of them are
    in unrolls that are not finished at its end.
    """
    with tempfile.TemporaryDirectory() as folder:
        summary = runs.train(
            pathlib.Path(folder),
            *row.arguments,
            f"--frames={frames or row.frames}",
            f"--set=learner.inference={DESIGNS[design]}",
            "--set=local.page_port=null",
            timeout=900,
        )
    cpu: dict[str, float] = summary["cpu_seconds_per_1000_frames"]
    count, arrived = summary["frames"], summary["steps"]["received"]
    actors = cpu["environment"] + cpu["actor"]
    share = count / arrived
    return {
        "frames": count,
        "frames_per_second": summary["frames_per_second"],
        "actors_cpu": actors * share,
        "environment_cpu": cpu["environment"] * share,
        "learner_cpu": cpu["total"] - actors,
        # What an accelerator would do of it.
        "learner_network_cpu": cpu["inference"] + cpu["training"],
        "received_bytes": summary["received_bytes"] / arrived,
        "parameter_bytes": summary["parameter_bytes"] / count,
    }


def dollars(run: dict[str, float], prices: argparse.Namespace) -> float:
    """Of a million frames."""
    network = run["learner_network_cpu"] / prices.accelerator_cores
    cores = run["actors_cpu"] + run["learner_cpu"] - run["learner_network_cpu"]
    per_thousand = cores * prices.core_price + network * prices.accelerator_price
    return float(per_thousand * 1000 / 3600)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    default = [name for name in ROWS if "large" not in name]
    parser.add_argument(
        "--rows", nargs="+", choices=list(ROWS), default=default, help="(all but the large one)"
    )
    parser.add_argument("--frames", type=int, help="of each run; default: a minute's")
    parser.add_argument("--core-price", type=float, default=0.035, help="dollars an hour")
    parser.add_argument("--accelerator-price", type=float, default=1.0, help="dollars an hour")
    parser.add_argument(
        "--accelerator-cores",
        type=float,
        default=100.0,
        help="cores of this machine that an accelerator replaces for the network (assumed)",
    )
    return parser.parse_args()


def _print(name: str, result: dict[str, dict[str, float]], prices: argparse.Namespace) -> None:
    for design, run in result.items():
        print(
            f"{name:22} {design:7} {run['frames']:7.0f} {run['frames_per_second']:8.0f}"
            f" {run['actors_cpu']:8.2f} {run['environment_cpu']:8.2f} {run['learner_cpu']:8.2f}"
            f" {run['received_bytes']:8.0f} {run['parameter_bytes']:8.0f}"
            f" {dollars(run, prices):8.3f}",
            flush=True,
        )


def main() -> None:
    """Prints the table and the ratios."""
    prices = _parse()
    print(
        f"{'network':22} {'design':7} {'frames':>7} {'frames/s':>8} {'CPU-s of 1,000 frames:':>26}"
        f" {'bytes of a frame:':>17} {'$/million':>8}\n"
        f"{'':47} {'actors':>8} {'of them':>8} {'learner':>8} {'to the':>8} {'para-':>8}\n"
        f"{'':56} {'environ.':>8} {'':8} {'learner':>8} {'meters':>8}"
    )
    table: dict[str, Any] = {}
    for name in prices.rows:
        result = {d: measure(ROWS[name], prices.frames, d) for d in DESIGNS}
        _print(name, result, prices)
        # By the environments' own time, which is the same in both but for the machine's moods and
        # the steps of IMPALA's last unrolls, which never arrive.
        seed, impala = (r["actors_cpu"] / r["environment_cpu"] for r in result.values())
        ratio = impala / seed
        for run in result.values():
            run["dollars_per_million_frames"] = dollars(run, prices)
        table[name] = {**result, "actors_cpu_ratio": ratio}
        print(
            f"{'':22} actors' CPU time for the same environment time, IMPALA / SEED: {ratio:.2f}",
            flush=True,
        )
    print(
        f"a core ${prices.core_price:g} and an accelerator ${prices.accelerator_price:g} an hour;"
        f" assumed: an accelerator does the learner's network as {prices.accelerator_cores:g} of"
        " these cores"
    )
    names = ("core_price", "accelerator_price", "accelerator_cores")
    print(json.dumps({"rows": table, **{name: getattr(prices, name) for name in names}}))


if __name__ == "__main__":
    main()
