"""The examples of docs/replay.md, run against a server."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from services.shared.config import load_replay
from tests.integration.replay_server import ReplayServer

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "replay.md"


def blocks(language: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_settings_are_valid(tmp_path: pathlib.Path) -> None:
    (settings,) = blocks("yaml")
    path = tmp_path / "replay.yaml"
    path.write_text(settings)
    assert load_replay(str(path)).tables["sequences"].samples_per_insert == 4.0


def test_the_examples_run(tmp_path: pathlib.Path) -> None:
    server = ReplayServer(tmp_path, {}).start()
    names: dict[str, Any] = {}
    try:
        for block in blocks("py"):
            exec(block.replace("localhost:50052", server.address), names)
        assert names["batch"].steps["frame"].shape == (64, 80, 84, 84)
        assert server.status().items == 4
        names["client"].close()
    finally:
        server.close()
