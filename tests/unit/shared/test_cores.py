"""The CPU limits of containers."""

import pathlib

from services.shared.cores import usable_cores


def test_container_limits(tmp_path: pathlib.Path) -> None:
    everything = usable_cores(tmp_path)
    assert everything >= 1
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(tmp_path) == everything
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == everything
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(tmp_path) == 1
