from __future__ import annotations

from services.local.ports import free_port


def test_no_port_is_given_twice() -> None:
    # Of the some 28,000 that the system chooses from it names about 160 of 3,000 again.
    assert len({free_port() for _ in range(3000)}) == 3000
