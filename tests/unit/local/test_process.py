from __future__ import annotations

import pathlib
import time

import pytest

from services.local import process
from services.local.process import LaunchError, Service


def _service(tmp_path: pathlib.Path, code: str) -> Service:
    return Service("thing", ["-c", code], tmp_path / "thing.log")


def _check_until(service: Service, may_end: bool, restarts: int) -> None:
    deadline = time.monotonic() + 20
    while service.restarts < restarts:
        assert time.monotonic() < deadline
        assert not service.check(may_end)
        time.sleep(0.01)


def test_an_end_that_is_expected(tmp_path: pathlib.Path) -> None:
    service = _service(tmp_path, "print('noise'); print('{\"frames\": 3}')")
    service.wait(20)
    assert service.check(may_end=True)
    assert service.summary() == {"frames": 3}


@pytest.mark.parametrize("output", ["", "print('[1]')", "print('{\"a\": 1}'); print('noise')"])
def test_no_summary(tmp_path: pathlib.Path, output: str) -> None:
    service = _service(tmp_path, output)
    service.wait(20)
    assert service.summary() is None


def test_an_early_end_counts_as_a_death(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_EARLY_END_SECONDS", 0.05)
    service = _service(tmp_path, "")
    _check_until(service, may_end=False, restarts=1)


def test_deaths_in_a_row_end_the_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_MAX_DEATHS_IN_A_ROW", 1)
    service = _service(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(LaunchError, match="the thing was killed by SIGKILL, 2 times in a row"):
        _check_until(service, may_end=True, restarts=2)


def test_an_error_of_its_own_ends_the_run_with_its_last_words(tmp_path: pathlib.Path) -> None:
    service = _service(tmp_path, "raise SystemExit('no such thing')")
    service.wait(20)
    with pytest.raises(LaunchError, match=r"ended with status 1; (.|\n)*no such thing"):
        service.check(may_end=True)
