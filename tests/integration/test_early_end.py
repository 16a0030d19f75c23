"""Services that are asked to end before they are there."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("service", ["actor", "learner", "replay"])
def test_sigterm_during_the_start(service: str, tmp_path: pathlib.Path) -> None:
    experiment = tmp_path / "experiment.yaml"
    os.mkfifo(experiment)
    process = subprocess.Popen(
        [sys.executable, "-m", f"services.{service}", f"--experiment={experiment}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with experiment.open("w"):  # returns when the service reads, and holds it there
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")
