"""Subcommands of `seedpod` that look at a run, here or in a cluster, and change its size.

With `--release` they speak of a release in the cluster that the kubeconfig names, without of the
newest run on this machine.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import rich.console
import rich.table

from services.learner import checkpoint
from services.local import launcher
from services.local.process import LaunchError

if TYPE_CHECKING:
    from services.local.cluster import Cluster

# What `seedpod status` shows of a learner: name of the metric, and how it is written.
_SHOWN: tuple[tuple[str, str, str], ...] = (
    ("frames", "seedpod_environment_frames_total", "{:,.0f}"),
    ("frames/s", "seedpod_frames_per_second", "{:,.0f}"),
    ("updates", "seedpod_updates_total", "{:,.0f}"),
    ("episodes", "seedpod_episodes_total", "{:,.0f}"),
    ("return", "seedpod_episode_return_mean", "{:.3f}"),
    ("evaluation", "seedpod_evaluation_return_mean", "{:.3f}"),
    ("live slots", "seedpod_live_slots", "{:,.0f}"),
    ("batch fill", "seedpod_inference_batch_fill", "{:.0%}"),
    ("policy lag", "seedpod_policy_lag", "{:.1f}"),
)


def add_parsers(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Adds the subcommands."""
    status = add("status", help="show how a run is doing")
    status.set_defaults(run=_status)
    scale = add("scale", help="change the number of a release's actors")
    scale.set_defaults(run=_scale)
    scale.add_argument("actors", type=int)
    logs = add("logs", help="show the logs of a run's services")
    logs.set_defaults(run=_logs)
    logs.add_argument("component", nargs="?", choices=("learner", "actor", "evaluator", "replay"))
    logs.add_argument("--tail", type=int, default=20, help="lines of each (%(default)s)")
    logs.add_argument("--follow", action="store_true", help="go on with what comes")
    for name, port, what in (("metrics", 0, "metrics"), ("tensorboard", 6006, "TensorBoard")):
        forward = add(name, help=f"make a release's {what} a port of this machine")
        forward.set_defaults(run=_forward, port_name=name)
        forward.add_argument("--port", type=int, default=port, help="0: any free one (%(default)s)")
        _add_place(forward)
    for parser in (status, scale, logs):
        _add_place(parser)
    checkpoints = add("checkpoint", help="list checkpoints, or copy one from the cluster")
    checkpoints.set_defaults(run=_checkpoint)
    checkpoints.add_argument("action", choices=("ls", "get"))
    checkpoints.add_argument("name", nargs="?", help="for `get`; the newest if left out")
    checkpoints.add_argument(
        "--to", type=pathlib.Path, default=pathlib.Path("checkpoints"), help="(%(default)s)"
    )
    _add_place(checkpoints)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", help="of a cluster; the name that `helm install` was given")
    parser.add_argument("--namespace", "-n", help="default: the context's")
    parser.add_argument("--context", help="of the kubeconfig; default: the current one")
    parser.add_argument(
        "--runs", type=pathlib.Path, default=pathlib.Path("runs"), help="where local runs are kept"
    )


def _cluster(parsed: argparse.Namespace) -> Cluster:
    if parsed.release is None:
        raise LaunchError("--release is missing: this is about a release in a cluster")
    # The client takes a second to import; local runs do without.
    from services.local.cluster import Cluster

    return Cluster(parsed.release, parsed.namespace, parsed.context)


def _run(parsed: argparse.Namespace) -> pathlib.Path:
    return launcher.newest_run(parsed.runs)


def _status(parsed: argparse.Namespace) -> int:
    console = rich.console.Console()
    if parsed.release is None:
        run = _run(parsed)
        console.print(_table(f"run {run}", launcher.describe(run)))
        return 0
    cluster = _cluster(parsed)
    pods = cluster.pods()
    table = rich.table.Table("pod", "state", "ready", "restarts", "age", "node")
    for pod in pods:
        age = f"{pod.age_seconds / 3600:.1f} h"
        ready = "yes" if pod.ready else "no"
        table.add_row(pod.name, pod.state, ready, str(pod.restarts), age, pod.node)
    console.print(table)
    for pod in pods:
        if pod.component == "learner" and pod.state == "Running":
            values = cluster.values(pod.name)
            shown = {
                name: text.format(values[metric])
                for name, metric, text in _SHOWN
                if not math.isnan(values.get(metric, math.nan))
            }
            shown["bottleneck"] = cluster.bottleneck(pod.name)
            console.print(_table(pod.name, shown))
    return 0


def _table(title: str, values: dict[str, str]) -> rich.table.Table:
    table = rich.table.Table(title=title, show_header=False)
    for name, value in values.items():
        table.add_row(name, value)
    return table


def _scale(parsed: argparse.Namespace) -> int:
    if parsed.actors < 0:
        raise LaunchError(f"{parsed.actors} actors, allowed: 0 or more")
    _cluster(parsed).scale(parsed.actors)
    print(f"{parsed.release}: {parsed.actors} actors asked for; `seedpod status` shows them come")
    return 0


def _logs(parsed: argparse.Namespace) -> int:
    if parsed.release is None:
        for path in sorted(_run(parsed).glob(f"{parsed.component or ''}*.log")):
            for line in path.read_text(errors="replace").splitlines()[-parsed.tail :]:
                print(f"{path.stem}: {line}")
        return 0
    cluster = _cluster(parsed)
    pods = cluster.pods(parsed.component)

    def show(name: str) -> None:
        from services.local.cluster import ClusterError

        try:
            for line in cluster.log(name, parsed.tail, parsed.follow):
                print(f"{name}: {line}", flush=True)
        except ClusterError as error:
            print(f"seedpod: {error}", file=sys.stderr)

    if not parsed.follow:
        for pod in pods:
            show(pod.name)
        return 0
    threads = [threading.Thread(target=show, args=(pod.name,), daemon=True) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


def _forward(parsed: argparse.Namespace) -> int:
    cluster = _cluster(parsed)
    pod = next(pod.name for pod in cluster.pods("learner"))
    forward = cluster.forward(pod, cluster.port(pod, parsed.port_name), parsed.port)
    print(f"http://localhost:{forward.port} is {parsed.port_name} of {pod}; Ctrl-C ends it")
    try:
        forward.serve()
    except KeyboardInterrupt:
        pass
    finally:
        forward.close()
    return 0


def _checkpoint(parsed: argparse.Namespace) -> int:
    if parsed.release is None:
        folder = _run(parsed) / "checkpoints"
        if parsed.action == "get":
            raise LaunchError(f"without --release there is nothing to copy: they are in {folder}")
        for path in sorted(folder.glob("checkpoint-*")):
            counters = checkpoint.read(path).counters
            print(f"{path}  {counters['updates']:,} updates  {counters['frames']:,} frames")
        return 0
    cluster = _cluster(parsed)
    pod = cluster.pods("learner")[0].name
    names = cluster.checkpoints(pod)
    if parsed.action == "ls":
        print("\n".join(names))
        return 0
    if not names:
        raise LaunchError(f"{pod} has no checkpoint yet")
    path = cluster.fetch_checkpoint(pod, parsed.name or names[-1], parsed.to)
    checkpoint.read(path).variables()  # compares the digest
    print(path)
    return 0
