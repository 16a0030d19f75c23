"""SEED against IMPALA: `make bench-impala`.

Trains the same football scenario with inference by the learner (SEED) and by actors (IMPALA,
`learner.inference=actors`), and prints what each costs: CPU time on the actors' side and on the
learner's, bytes, frames/s.

What it would cost in a data centre follows from prices and from an assumption: how many of these
cores one accelerator replaces for the network's arithmetic. IMPALA's actors have none.

The last line is one JSON object with the same figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from tests.benchmarks import steady

# Smaller batches than the preset's: larger networks take seconds for one of them.
_SMM = ("football-smm", "--set=learner.batch_size=4")
_SIZE = "--set=actor.environment_arguments.smm_size={}"
_CHANNELS = "--set=learner.network.arguments.channels={}"


ROWS = {
    "142 floats, MLP 2x256": ("football",),
    "smm 96x72, default": _SMM,
    "smm 120x90, medium": (*_SMM, _SIZE.format("120x90"), _CHANNELS.format("[32,64,64,64]")),
    "smm 144x108, large": (*_SMM, _SIZE.format("144x108"), _CHANNELS.format("[64,128,128,128]")),
}
DESIGNS = {"SEED": "learner", "IMPALA": "actors"}


def measure(arguments: Sequence[str], seconds: float, design: str) -> dict[str, float]:
    """One run; CPU seconds are of 1,000 frames, bytes of one."""
    inference = f"--set=learner.inference={DESIGNS[design]}"
    costs = steady.measure(*arguments, inference, seconds=seconds)
    actors = costs.cpu["environment"] + costs.cpu["actor"]
    figures = {
        "frames": costs.frames,
        "received_share": costs.received_share,
        "frames_per_second": costs.frames_per_second,
        "actors_cpu": actors,
        "environment_cpu": costs.cpu["environment"],
        "learner_cpu": costs.cpu["total"] - actors,
        # What an accelerator would do of it.
        "learner_network_cpu": costs.cpu["inference"] + costs.cpu["training"],
        "received_bytes": costs.received_bytes,
        "parameter_bytes": costs.parameter_bytes,
    }
    return {name: round(value, 4) for name, value in figures.items()}


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
    parser.add_argument("--seconds", type=float, default=12.0, help="of each run (%(default)s)")
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
        result = {d: measure(ROWS[name], prices.seconds, d) for d in DESIGNS}
        _print(name, result, prices)
        # By the environments' own time, which is the same in both but for the machine's moods and
        # the lengths of episodes: football's resets are dear.
        seed, impala = (r["actors_cpu"] / r["environment_cpu"] for r in result.values())
        ratio = impala / seed
        for run in result.values():
            run["dollars_per_million_frames"] = round(dollars(run, prices), 4)
        table[name] = {**result, "actors_cpu_ratio": round(ratio, 3)}
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
