from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Generator, Iterator

import pytest

from tests.e2e import runs


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path: pathlib.Path) -> Iterator[None]:
    """Ends what a failed test left running."""
    yield
    for number in runs.processes(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows with a failed test what the processes of its runs have logged last."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for log in sorted(folder.glob("**/*.log")):
            lines = log.read_text(errors="replace").splitlines()[-20:]
            report.sections.append((str(log.relative_to(folder)), "\n".join(lines)))
    return report
