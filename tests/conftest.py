from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several processes, one runs a whole file, and one all tests of the images."""
    for item in items:
        group = "containers" if "containers" in item.path.parts else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
