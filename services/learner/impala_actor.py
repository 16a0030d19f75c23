"""An actor that holds the policy, as in IMPALA (arXiv 1802.01561).

`python -m services.learner.impala_actor --experiment FILE` runs a local policy and, as its child,
an ordinary actor whose learner this process is. `actor.learner_address` names the learner's
trajectory service. It belongs to the learner's folder, for the network: an actor imports no
TensorFlow.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from services.shared import processes

if TYPE_CHECKING:
    from services.learner.local_policy import LocalPolicy

_POLL_SECONDS = 0.2
_STOP_SECONDS = 12.0  # an actor ends within 10
_log = logging.getLogger(__name__)


class _Stop:
    """Set by signal handlers, which must take no lock."""

    requested = False


def main() -> int:
    """Runs the actor.

    Returns:
      The exit status: 0 when training is finished or on SIGTERM, 1 if the environments cannot be
      started or the learner refuses them, 2 for an experiment that is not valid.
    """
    processes.exit_on_sigterm()
    from services.shared import config, profiling

    parser = argparse.ArgumentParser(prog="python -m services.learner.impala_actor")
    parser.add_argument("--experiment", required=True, help="a YAML file or a preset's name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument(
        "--name",
        default=f"{socket.gethostname()}-{os.getpid()}",
        help="for logs; environments' seeds derive from it",
    )
    parser.add_argument(
        "--child", action="store_true", help="end when the parent process ends, however it ends"
    )
    profiling.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.child:
        processes.die_with_parent()
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s {arguments.name}, policy: %(message)s",
        force=True,
    )
    try:
        experiment = config.load(arguments.experiment, arguments.overrides)
    except config.ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if experiment.learner.inference != "actors" or experiment.actor.role != "training":
        print(
            f"{arguments.experiment}: learner.inference is {experiment.learner.inference} and"
            f" actor.role {experiment.actor.role}, an actor that holds the policy needs actors and"
            " training",
            file=sys.stderr,
        )
        return 2
    processes.restart_for_large_arrays("services.learner.impala_actor")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from services.learner import devices

    devices.configure(experiment.learner.threads)
    from services.learner.local_policy import LocalPolicy

    stop = _Stop()
    try:
        policy = LocalPolicy(experiment, arguments.name)
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(stop, "requested", True))
    command = [
        *(sys.executable, "-m", "services.actor", "--child", f"--name={arguments.name}"),
        f"--experiment={arguments.experiment}",
        *(f"--set={override}" for override in arguments.overrides),
        *(f"--set=actor.learner_address={policy.address}", "--set=actor.tls=null"),
    ]
    profile = profiling.given(arguments)
    command += [] if profile is None else profile.arguments()
    with profiling.trace(profile, f"{arguments.name}-policy"):
        policy.start()
        try:
            return _watch(command, policy, stop)
        finally:
            policy.stop()


def _watch(command: list[str], policy: LocalPolicy, stop: _Stop) -> int:
    """Keeps the actor running until it ends by itself; returns the exit status."""
    from services.shared.rpc import Backoff

    backoff = Backoff()
    while True:
        # In a group of its own: Ctrl-C in a terminal reaches this process alone.
        actor = subprocess.Popen(command, process_group=0)
        while actor.poll() is None and not stop.requested and policy.failure is None:
            time.sleep(_POLL_SECONDS)
        if actor.returncode is None:
            return _end(actor, policy)
        if actor.returncode >= 0:
            return 1 if policy.failure is not None else actor.returncode
        wait = backoff.next()
        _log.warning("the actor was killed; starting it again in %.1f s", wait)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            if stop.requested:
                return 0
            time.sleep(_POLL_SECONDS)


def _end(actor: subprocess.Popen[bytes], policy: LocalPolicy) -> int:
    actor.terminate()
    try:
        actor.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _log.error("the actor did not end within %.0f s: killed", _STOP_SECONDS)
        actor.kill()
        actor.wait()
    if policy.failure is None:
        return 0
    _log.error("ended by %s: %s", type(policy.failure).__name__, policy.failure)
    return 1


if __name__ == "__main__":
    sys.exit(main())
