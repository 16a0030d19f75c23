from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several processes, one runs a whole file, and one all tests of the images."""
    for item in items:
        alone = item.get_closest_marker("containers")
        item.add_marker(pytest.mark.xdist_group("containers" if alone else item.path.stem))
