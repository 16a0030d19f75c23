"""`python -m services.replay --experiment FILE`: stores and samples sequences until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import sys

from services.shared import processes

# From malloc.h.
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_MAPPED_BYTES = 128 * 1024
# Linux allows a process 65,530 mappings; threads and files need some.
_MAPPED_MESSAGES = 48 * 1024


def _map_large_messages() -> None:
    """Keeps messages out of malloc's heap, whose fragmentation no capacity would bound.

    glibc raises the threshold by itself as soon as a large block is freed, unless it is set.
    Measured: 64 writers with messages of 120 KB took 26 MB less at a capacity of 128 MB.
    """
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_MMAP_MAX, _MAPPED_MESSAGES)


def main() -> int:
    """Runs the service.

    Returns:
      The exit status: 0 on SIGTERM, 2 if it cannot start with these settings.
    """
    processes.exit_on_sigterm()
    from services.replay import server
    from services.shared import config

    parser = argparse.ArgumentParser(prog="python -m services.replay", description=__doc__)
    parser.add_argument("--experiment", required=True, help="a YAML file or a preset's name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument(
        "--child", action="store_true", help="end when the parent process ends, however it ends"
    )
    arguments = parser.parse_args()
    if arguments.child:
        processes.die_with_parent()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s replay: %(levelname)s %(message)s", force=True
    )
    _map_large_messages()
    try:
        asyncio.run(server.serve(config.load_replay(arguments.experiment, arguments.overrides)))
    except (config.ConfigError, server.CannotStart, OSError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
