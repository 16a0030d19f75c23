"""`python -m services.learner --experiment FILE`: runs a learner until training is over."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

from services.shared import processes


def main() -> int:
    """Runs the service; the last line on stdout is a JSON summary of the run."""
    # Until the service is there, which takes seconds, nothing needs saving.
    processes.exit_on_sigterm()
    from services.shared import config, profiling

    parser = argparse.ArgumentParser(prog="python -m services.learner", description=main.__doc__)
    parser.add_argument("--experiment", required=True, help="a YAML file or a preset's name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument(
        "--child", action="store_true", help="end when the parent process ends, however it ends"
    )
    parser.add_argument(
        "--evaluate",
        type=int,
        metavar="EPISODES",
        help="play so many episodes with the newest checkpoint instead of training",
    )
    parser.add_argument(
        "--recordings",
        type=int,
        default=0,
        metavar="N",
        help="with --evaluate: wait for so many recordings, too",
    )
    parser.add_argument(
        "--opponent",
        metavar="CHECKPOINT",
        help="with --evaluate: the policy that all past policies become",
    )
    profiling.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.opponent and arguments.evaluate is None:
        parser.error("--opponent is for --evaluate")
    if arguments.child:
        processes.die_with_parent()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s learner: %(levelname)s %(message)s", force=True
    )
    try:
        experiment = config.load(arguments.experiment, arguments.overrides)
    except config.ConfigError as error:
        print(f"learner: {error}", file=sys.stderr)
        return 2
    processes.restart_for_large_arrays("services.learner")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # TensorFlow takes seconds to import; a wrong experiment is refused before that.
    from services.learner import devices, peers

    devices.configure(experiment.learner.threads)
    from services.learner.checkpoint import CheckpointError
    from services.learner.evaluator import Evaluation
    from services.learner.service import LearnerService

    evaluation = None
    if arguments.evaluate is not None:
        evaluation = Evaluation(arguments.evaluate, arguments.recordings, arguments.opponent)
    try:
        cluster = peers.from_environment() if evaluation is None else None
        found = devices.Devices()
        if evaluation is None:
            found = devices.choose(experiment.learner, len(cluster.addresses) if cluster else 1)
        service = LearnerService(experiment, evaluation, cluster, found)
    except (OSError, ValueError, CheckpointError) as error:
        print(f"learner: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.request_stop())
    try:
        with profiling.trace(profiling.given(arguments), "learner"):
            status = service.run()
        if cluster is None:
            return status
        # Without the destructors: TensorFlow's wait for learners that have gone.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)
    except (OSError, CheckpointError) as error:  # a metrics port that is taken, for example
        print(f"learner: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
