"""The `seedpod` command."""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import sys
from typing import Any

from services.learner.checkpoint import CheckpointError
from services.local import cluster_cli, launcher
from services.local.plan import command as plan_command
from services.local.process import LaunchError
from services.shared import config, profiling


def main(arguments: list[str] | None = None) -> int:
    """Runs a subcommand; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="seedpod", description="Distributed reinforcement learning the SEED way."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_train(commands.add_parser("train", help="train an agent on this machine"))
    _add_eval(commands.add_parser("eval", help="play episodes with a checkpoint's policy"))
    _add_report(commands.add_parser("report", help="write a page about runs, as one HTML file"))
    _add_plan(commands.add_parser("plan", help="say what a frame rate needs and costs"))
    presets = commands.add_parser("presets", help="list the experiments that come with seedpod")
    presets.set_defaults(run=_presets)
    cluster_cli.add_parsers(commands.add_parser)
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="seedpod: %(message)s")
    try:
        status: int = parsed.run(parsed)
    except (config.ConfigError, CheckpointError, LaunchError, OSError) as error:
        print(f"seedpod: {error}", file=sys.stderr)
        return 1
    return status


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_train)
    parser.add_argument(
        "--experiment", default="football", help="a preset's name or a YAML file (%(default)s)"
    )
    parser.add_argument("--frames", type=_count, help="environment frames to train on")
    _add_overrides(parser)
    parser.add_argument(
        "--runs", type=pathlib.Path, default=pathlib.Path("runs"), help="where runs are kept"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="newest",
        metavar="RUN",
        help="go on with a run's folder; without RUN with the experiment's newest one",
    )
    parser.add_argument(
        "--profile",
        nargs="?",
        type=_profile_seconds,
        const="60",
        metavar="SECONDS",
        help="trace the first seconds of each service (60) into the run's folder",
    )


def _profile(parsed: argparse.Namespace, run: pathlib.Path) -> profiling.Profile | None:
    if parsed.profile is None:
        return None
    return profiling.Profile(directory=str((run / "profile").resolve()), seconds=parsed.profile)


def _profile_seconds(text: str) -> int:
    profiling.require_tracer()
    return _count(text)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}, allowed: 1 or more")
    return value


def _train(parsed: argparse.Namespace) -> int:
    overrides = list(parsed.overrides)
    if parsed.frames is not None:
        overrides.append(f"learner.total_frames={parsed.frames}")
    source = parsed.experiment
    if parsed.resume is not None:
        name = config.load(source).name
        run = (
            launcher.newest_run(parsed.runs, name)
            if parsed.resume == "newest"
            else pathlib.Path(parsed.resume)
        )
        source = str(run / "experiment.yaml")
        experiment = config.load(source, overrides)
    else:
        experiment = config.load(source, overrides)
        run = launcher.new_run(parsed.runs, experiment.name)
    return _summarize(launcher.train(experiment, run, _profile(parsed, run)))


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_evaluate)
    parser.add_argument(
        "--checkpoint", type=pathlib.Path, required=True, help="a checkpoint's folder"
    )
    parser.add_argument("--episodes", type=_count, default=100, help="at least (%(default)s)")
    parser.add_argument(
        "--greedy", action="store_true", help="take the most probable actions, draw none"
    )
    parser.add_argument(
        "--opponent",
        type=pathlib.Path,
        metavar="CHECKPOINT",
        help="with self-play: let this one's policy play the opponents of every episode",
    )
    parser.add_argument(
        "--video", type=pathlib.Path, metavar="DIR", help="record episodes, as GIFs in this folder"
    )
    parser.add_argument(
        "--video-episodes", type=_count, default=1, metavar="N", help="how many (%(default)s)"
    )
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="write the result there, too"
    )
    _add_overrides(parser)


def _evaluate(parsed: argparse.Namespace) -> int:
    summary = launcher.evaluate(
        parsed.checkpoint,
        parsed.episodes,
        parsed.greedy,
        parsed.overrides,
        parsed.video,
        parsed.video_episodes,
        parsed.opponent,
    )
    if parsed.json is not None:
        parsed.json.write_text(json.dumps(summary, indent=2) + "\n")
    return _summarize(summary)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_report)
    parser.add_argument(
        "folders", nargs="+", type=pathlib.Path, metavar="RUN", help="a run's folder"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("report.html"), help="(%(default)s)"
    )


def _report(parsed: argparse.Namespace) -> int:
    # Only here: numbers and messages of event files take a while to import.
    from services.local.report import page, run

    text = page.report(run.read_all(parsed.folders))
    parsed.output.write_text(text, encoding="utf-8")
    print(parsed.output)
    return 0


def _add_plan(parser: argparse.ArgumentParser) -> None:
    plan_command.add_arguments(parser)
    _add_overrides(parser)
    parser.set_defaults(run=plan_command.run)


def _summarize(summary: dict[str, Any]) -> int:
    """Prints how a run ended; returns the exit status."""
    if summary["failure"]:
        print(f"seedpod: {summary['failure']}", file=sys.stderr)
    print(json.dumps(summary), flush=True)
    return 1 if summary["failure"] else 0


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a value of the experiment, e.g. learner.batch_size=64",
    )


def _presets(_: argparse.Namespace) -> int:
    for name in config.presets():
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
