"""The chaos suite in its shorter form; `make chaos` runs all of it."""

from __future__ import annotations

import pathlib

import pytest

from tests.chaos import outcome, suite


@pytest.mark.parametrize("part", ["vtrace", "r2d2"])
def test_nothing_is_lost_and_nothing_is_stuck(part: str, tmp_path: pathlib.Path) -> None:
    outcomes = []
    for found in suite.ALL[part](tmp_path, suite.SHORT):
        print(found)
        outcomes.append(found)
    table = outcome.table(outcomes)
    print(table)
    assert all(found.is_good for found in outcomes), table
    skipped = [found.fault for found in outcomes if found.note.startswith("SKIPPED")]
    if skipped:
        pytest.skip(f"all but {skipped}, which need root")
