"""`seedpod plan`: what a frame rate needs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib

from services.local.plan import calibration, planner
from services.local.plan.system import DEVICES, Costs, System
from services.shared import config

# Between two pods of one zone.
_LATENCY_SECONDS = 0.0002
_BYTES_PER_SECOND = 10e9 / 8
_GIVEN = {
    "environment_seconds": "CPU seconds of a step of one environment, resets included",
    "inference_call_seconds": "seconds of a batched call, whatever is in it",
    "inference_slot_seconds": "seconds of each environment in it",
    "update_seconds": "seconds of an update",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments; --set is the caller's."""
    parser.add_argument(
        "--experiment", default="football", help="a preset's name or a YAML file (%(default)s)"
    )
    parser.add_argument(
        "--frames-per-second", type=_positive, required=True, metavar="N", help="wanted"
    )
    parser.add_argument(
        "--run",
        type=pathlib.Path,
        metavar="DIR",
        dest="folder",
        help="a finished run's folder: what it has measured, and its experiment",
    )
    for name, text in _GIVEN.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=_positive,
            metavar="S",
            help=f"{text}; default: as measured on a CPU",
        )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="where the networks run: on the learner's cores, both on one accelerator, or on one"
        " each (%(default)s)",
    )
    parser.add_argument(
        "--learner-cores", type=_positive, default=8.0, metavar="N", help="(%(default)s)"
    )
    parser.add_argument(
        "--actor-cores",
        type=_positive,
        default=4.0,
        metavar="N",
        help="of an actor, which has a worker for each, or as actor.workers says (%(default)s)",
    )
    for name in ("core", "accelerator"):
        parser.add_argument(
            f"--{name}-price",
            type=_positive,
            default=getattr(planner.Prices(), name),
            metavar="DOLLARS",
            help="an hour (%(default)s)",
        )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}, allowed: above 0")
    return value


def run(parsed: argparse.Namespace) -> int:
    """Prints a plan, with one JSON object as the last line; returns the exit status.

    Raises:
      ConfigError: The experiment cannot be planned; the message says what is missing.
    """
    source = parsed.experiment
    if parsed.folder is not None:
        source = str(parsed.folder / "experiment.yaml")
    experiment = config.load(source, parsed.overrides)
    costs, system, origin = describe(experiment, parsed)
    prices = planner.Prices(parsed.core_price, parsed.accelerator_price)
    try:
        found = planner.plan(costs, system, parsed.frames_per_second, prices)
    except planner.PlanError as error:
        raise config.ConfigError(str(error)) from None
    figures = _figures(found, prices)
    print(f"what the parts cost: {origin}")
    for name, (value, note) in figures.items():
        print(f"{name.replace('_', ' '):28} {_text(value):>14}  {note}")
    slots = found.system.environments
    if slots > experiment.learner.max_slots:
        print(f"needs: --set learner.max_slots={slots}, which is {experiment.learner.max_slots}")
    plain = {name: value for name, (value, _) in figures.items()}
    print(json.dumps({**plain, "busy": found.result.busy, "costs": dataclasses.asdict(costs)}))
    return 0


def describe(
    experiment: config.Experiment, parsed: argparse.Namespace
) -> tuple[Costs, System, str]:
    """What the parts cost, a learner without its actors' number, and where that comes from.

    Raises:
      ConfigError: The experiment is R2D2's, or its costs are not known.
    """
    learner = experiment.learner
    if learner.algorithm != "vtrace":
        raise config.ConfigError(
            f"learner.algorithm is {learner.algorithm}, allowed here: vtrace; replay is not"
            " simulated"
        )
    if learner.inference != "learner":
        raise config.ConfigError(
            f"learner.inference is {learner.inference}, allowed here: learner; actors that hold"
            " the policy are not simulated"
        )
    if parsed.folder is not None:
        measured = calibration.of_run(parsed.folder)
    else:
        measured = calibration.of_preset(experiment.name)
    given = {name: value for name in _GIVEN if (value := getattr(parsed, name)) is not None}
    costs = dataclasses.replace(measured.costs(experiment), **given)
    system = measured.system(
        experiment,
        actors=1,
        workers=experiment.actor.workers or max(1, int(parsed.actor_cores)),
        actor_cores=parsed.actor_cores,
        learner_cores=parsed.learner_cores,
        device=parsed.device,
        latency_seconds=_LATENCY_SECONDS,
        bytes_per_second=_BYTES_PER_SECOND,
    )
    origin = measured.source + (f"; given: {', '.join(given)}" if given else "")
    return costs, system, origin


def _figures(found: planner.Plan, prices: planner.Prices) -> dict[str, tuple[float | str, str]]:
    """Values and what there is to say about them, by name."""
    system, result = found.system, found.result
    return {
        "frames_per_second": (found.frames_per_second, "by simulation"),
        "learners": (found.learners, f"{system.learner_cores:g} cores each"),
        "front_ends": (system.front_ends, "of each learner"),
        "actors": (found.actors, f"pods of {system.actor_cores:g} cores, {system.workers} workers"),
        "environments": (found.learners * system.environments, ""),
        "cores": (found.cores, f"${prices.core:g} an hour each"),
        "accelerators": (found.accelerators, f"${prices.accelerator:g} an hour each"),
        "bottleneck": (result.bottleneck, _busy(result.busy)),
        "policy_lag": (result.policy_lag, "updates"),
        "round_trip_milliseconds": (result.round_trip_seconds * 1000, "from request to answer"),
        "batch_fill": (result.batch_fill, f"of {system.inference_batch_size}"),
        "dollars_per_hour": (found.dollars_per_hour, ""),
        "dollars_per_million_frames": (found.dollars_per_million_frames, ""),
    }


def _busy(shares: dict[str, float]) -> str:
    return "at work: " + ", ".join(
        f"{name.replace('_', ' ')} {share:.0%}" for name, share in shares.items()
    )


def _text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
