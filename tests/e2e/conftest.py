from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

from tests.e2e import runs


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path: pathlib.Path) -> Iterator[None]:
    """Ends what a failed test left running."""
    yield
    for number in runs.processes(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
