"""`--profile DIR`: what a process's threads do, as a trace that opens in Perfetto.

Each service's process writes one file of its own, DIR/NAME-PID.json, when its time is over or when
it ends in order. Needs the extra `profile`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pydantic

if TYPE_CHECKING:
    import viztracer

# The newest ones are kept; one takes some 100 bytes of the file.
_MAX_EVENTS = 300_000
# Shorter calls are left out.
_MIN_MICROSECONDS = 10.0
_log = logging.getLogger(__name__)


class Profile(pydantic.BaseModel):
    """Where traces go, and after how many seconds one is complete."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    directory: str
    seconds: float = 60.0

    def arguments(self) -> list[str]:
        """The command line of another service that shall do the same."""
        return [f"--profile={self.directory}", f"--profile-seconds={self.seconds}"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--profile` and `--profile-seconds`; see `given`."""
    parser.add_argument(
        "--profile", type=_directory, metavar="DIR", help="write a trace for Perfetto into a folder"
    )
    parser.add_argument(
        "--profile-seconds",
        type=_positive,
        default=60.0,
        metavar="N",
        help="of the first so many seconds, the start included (%(default)s)",
    )


def given(parsed: argparse.Namespace) -> Profile | None:
    """What the command line asks for; None: nothing."""
    if parsed.profile is None:
        return None
    return Profile(directory=parsed.profile, seconds=parsed.profile_seconds)


def require_tracer() -> None:
    """To be called while arguments are parsed, before anything starts.

    Raises:
      argparse.ArgumentTypeError: The extra `profile` is not installed.
    """
    if importlib.util.find_spec("viztracer") is None:
        raise argparse.ArgumentTypeError(
            "needs viztracer, which is not installed: pip install 'seedpod[profile]' (`make setup`"
            " does; the images are without)"
        )


@contextlib.contextmanager
def trace(profile: Profile | None, name: str) -> Iterator[None]:
    """Traces what is called inside, and the threads that are started there.

    Args:
      profile: Where to and for how long; None: nothing is traced.
      name: Of the file and the process in it; slashes become dashes.

    Raises:
      OSError: The folder cannot be made.
    """
    if profile is None:
        yield
        return
    tracer = _start(profile, name.replace("/", "-"))
    written = threading.Lock()
    file = pathlib.Path(tracer.output_file)

    def write() -> None:
        if not written.acquire(blocking=False):
            return
        tracer.stop()
        # Whoever looks on sees a whole file or none.
        tracer.save(str(file.with_suffix(".new.json")), verbose=0)
        file.with_suffix(".new.json").replace(file)
        _log.info("trace: %s", file)

    timer = threading.Timer(profile.seconds, write)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        write()


def _start(profile: Profile, name: str) -> viztracer.VizTracer:
    import viztracer

    directory = pathlib.Path(profile.directory)
    directory.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "tracer_entries": _MAX_EVENTS,
        "ignore_c_function": True,
        "min_duration": _MIN_MICROSECONDS,
        "process_name": name,
        "file_info": False,
        "verbose": 0,
    }
    tracer = viztracer.VizTracer(
        output_file=str(directory / f"{name}-{os.getpid()}.json"), **options
    )
    tracer.start()
    return tracer


def _directory(text: str) -> str:
    require_tracer()
    return str(pathlib.Path(text).resolve())


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}, allowed: above 0")
    return value
