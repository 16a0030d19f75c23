"""Traces of real processes: one whose time is over, and a service that is asked to end."""

from __future__ import annotations

import argparse
import json
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from services.local import cli
from services.shared import profiling
from services.shared.profiling import Profile

TIMEOUT = 60.0
# Waits for its own trace, so the file is there while `trace` goes on.
WORK = """
import pathlib, sys, threading, time
from services.shared import profiling, rpc

def connect():
    rpc.channel("localhost:1").close()

folder = pathlib.Path(sys.argv[1])
with profiling.trace(profiling.Profile(directory=str(folder), seconds=1.0), "a/b"):
    connect()
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    while not list(folder.glob("a-b-*[0-9].json")):
        time.sleep(0.05)
    connect()
"""


def profiling_only(arguments: list[str]) -> None:
    """A service's command line, as far as profiles go."""
    parser = argparse.ArgumentParser()
    profiling.add_arguments(parser)
    parser.parse_args(arguments)


def events(folder: pathlib.Path, pattern: str) -> list[dict[str, Any]]:
    (file,) = folder.glob(pattern)
    found: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return found


def test_a_trace_is_written_when_its_time_is_over(tmp_path: pathlib.Path) -> None:
    subprocess.run([sys.executable, "-c", WORK, tmp_path], check=True, timeout=TIMEOUT)
    found = events(tmp_path, "a-b-*.json")
    channels = [event for event in found if event["name"].startswith("channel")]
    assert len(channels) == 2  # the third came after
    assert len({event["tid"] for event in channels}) == 2
    assert all(event["ph"] == "X" and event["dur"] > 0 for event in channels)
    assert any(e["name"] == "process_name" and e["args"]["name"] == "a-b" for e in found)


def test_a_service_that_is_asked_to_end_writes_its_trace(tmp_path: pathlib.Path) -> None:
    document = tmp_path / "replay.yaml"
    document.write_text("replay: {address: '127.0.0.1:0', tables: {t: {}}}")
    command = [sys.executable, "-m", "services.replay", f"--experiment={document}"]
    command += [f"--profile={tmp_path / 'traces'}", "--profile-seconds=600"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "serving" in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(TIMEOUT) == 0, rest
    names = {event["name"] for event in events(tmp_path / "traces", "replay-*.json")}
    assert any(name.startswith("serve") for name in names), sorted(names)[:20]


def test_no_profile_costs_nothing_and_bad_seconds_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sys.getprofile()
    with profiling.trace(None, "a"):
        assert sys.getprofile() is before
    parser = argparse.ArgumentParser()
    profiling.add_arguments(parser)
    assert profiling.given(parser.parse_args([])) is None
    parsed = parser.parse_args(["--profile=x", "--profile-seconds=3"])
    assert profiling.given(parsed) == Profile(directory=str(pathlib.Path("x").resolve()), seconds=3)
    with pytest.raises(SystemExit):
        parser.parse_args(["--profile-seconds=0"])
    assert "allowed: above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "arguments"),
    [(cli.main, ["train", "--profile"]), (profiling_only, ["--profile=x"])],
)
def test_without_the_tracer_nothing_starts(
    main: Callable[[list[str]], object],
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "viztracer", None)  # as if it were not installed
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    message = "--profile: needs viztracer, which is not installed: pip install 'seedpod[profile]'"
    assert message in capsys.readouterr().err
