"""`python -m tests.chaos`: does to real processes what happens to runs that last for days.

Prints a table of what was done and what held, and as the last line one JSON object. Cutting
networks and filling disks needs root; without it those rows say so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time

import psutil

from tests.chaos import outcome, suite
from tests.chaos.system import ChaosError


def main() -> int:
    """Runs the suite; returns 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(suite.ALL)}")
    parser.add_argument("--short", action="store_true", help="as the tests run it")
    for field in ("random", "stop"):
        parser.add_argument(f"--{field}-seconds", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep", action="store_true", help="leave the folder with the logs")
    arguments = parser.parse_args()
    given = {k: v for k, v in vars(arguments).items() if v is not None}
    fields = {f.name for f in dataclasses.fields(suite.Settings)}
    settings = dataclasses.replace(
        suite.SHORT if arguments.short else suite.Settings(),
        **{name: value for name, value in given.items() if name in fields},
    )
    if unknown := sorted(set(arguments.parts) - set(suite.ALL)):
        parser.error(f"parts {unknown}, allowed: {sorted(suite.ALL)}")
    outcomes: list[outcome.Outcome] = []
    root = pathlib.Path(tempfile.mkdtemp(prefix="seedpod-chaos-"))
    failed = False
    for name in arguments.parts or suite.ALL:
        (root / name).mkdir()
        try:
            for found in suite.ALL[name](root / name, settings):
                print(f"{time.strftime('%H:%M:%S')} {found}", file=sys.stderr, flush=True)
                outcomes.append(found)
        except (ChaosError, OSError, psutil.Error) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            outcomes.append(
                outcome.Outcome(f"{name} broke off", 1, 0, note=str(error).splitlines()[0][:200])
            )
            failed = True
    failed |= not all(found.is_good for found in outcomes)
    print(outcome.table(outcomes))
    print(json.dumps(outcome.summary(outcomes)))
    if arguments.keep or failed:
        print(f"logs: {root}", file=sys.stderr)
    else:
        shutil.rmtree(root)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
