"""`python -m services.actor`: steps environments for a learner until training is finished."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys

from services.shared import processes


def main() -> int:
    """Runs the actor.

    Returns:
      The exit status: 0 when training is finished or on SIGTERM, 1 if the environments cannot
      be started or the learner refuses them, 2 for an experiment that is not valid.
    """
    processes.exit_on_sigterm()
    from services.actor.supervisor import Supervisor
    from services.shared import config, profiling
    from services.shared.cores import usable_cores

    parser = argparse.ArgumentParser(prog="python -m services.actor", description=__doc__)
    parser.add_argument("--experiment", required=True, help="a YAML file or a preset's name")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="overrides a setting"
    )
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
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {arguments.name}: %(message)s",
    )
    try:
        experiment = config.load(arguments.experiment, arguments.set)
    except config.ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    workers = experiment.actor.workers or usable_cores()
    try:
        supervisor = Supervisor(
            experiment.actor,
            arguments.name,
            workers,
            experiment.learner.keepalive_seconds,
            profiling.given(arguments),
        )
    except OSError as error:
        print(f"actor.metrics_port {experiment.actor.metrics_port}: {error}", file=sys.stderr)
        return 2
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
