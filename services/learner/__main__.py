"""`python -m services.learner --experiment FILE`: runs a learner until training is over."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

from services.shared import config, processes


def main() -> int:
    """Runs the service; the last line on stdout is a JSON summary of the run."""
    parser = argparse.ArgumentParser(prog="python -m services.learner", description=main.__doc__)
    parser.add_argument("--experiment", required=True, help="a YAML file or a preset's name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument(
        "--child", action="store_true", help="end when the parent process ends, however it ends"
    )
    arguments = parser.parse_args()
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
    # Until the service is there, which takes seconds, nothing needs saving.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # TensorFlow takes seconds to import; a wrong experiment is refused before that.
    from services.learner import devices

    devices.configure(experiment.learner.threads)
    from services.learner.checkpoint import CheckpointError
    from services.learner.service import LearnerService

    try:
        service = LearnerService(experiment)
    except (OSError, ValueError, CheckpointError) as error:
        print(f"learner: {error}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.request_stop())
    return service.run()


if __name__ == "__main__":
    sys.exit(main())
