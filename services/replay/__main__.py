"""`python -m services.replay --experiment FILE`: stores and samples sequences until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from services.shared import processes


def main() -> int:
    """Runs the service.

    Returns:
      The exit status: 0 on SIGTERM, 2 if it cannot start with these settings.
    """
    processes.exit_on_sigterm()
    from services.replay import server
    from services.shared import config, profiling

    parser = argparse.ArgumentParser(prog="python -m services.replay", description=__doc__)
    parser.add_argument("--experiment", required=True, help="a YAML file or a preset's name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument(
        "--child", action="store_true", help="end when the parent process ends, however it ends"
    )
    profiling.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.child:
        processes.die_with_parent()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s replay: %(levelname)s %(message)s", force=True
    )
    try:
        settings = config.load_replay(arguments.experiment, arguments.overrides)
        with profiling.trace(profiling.given(arguments), "replay"):
            asyncio.run(server.serve(settings))
    except (config.ConfigError, server.CannotStart, OSError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
