"""The page's server: what it hands out, to whom, and that it never holds up a run."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from services.local.process import LaunchError
from services.local.report import live
from services.shared.config import LocalConfig
from tests.unit.local import run_folders


@contextlib.contextmanager
def serve(folder: pathlib.Path, values: dict[str, str] | None = None) -> Iterator[int]:
    """The page's port."""
    with live.serve(LocalConfig(), folder, lambda: values or {}) as address:
        assert address is not None
        yield int(address.rsplit(":", 1)[1].rstrip("/"))


def get(port: int, path: str, host: str = "localhost") -> tuple[int, str, bytes]:
    """Status, content type and body; the path is sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    with contextlib.closing(connection):
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read()


def blocks(port: int) -> dict[str, Any]:
    status, content_type, body = get(port, "/page.json")
    assert (status, content_type) == (200, "application/json")
    return {block["id"]: block for block in json.loads(body)["blocks"]}


def test_the_page_and_what_it_shows(tmp_path: pathlib.Path) -> None:
    values = {"frames": "10 of 20"}
    with serve(tmp_path / "run", values) as port:
        status, content_type, body = get(port, "/")
        assert (status, content_type) == (200, "text/html; charset=utf-8")
        assert b"connect-src 'self'" in body
        # The folder is not there yet.
        assert list(blocks(port)) == ["values"]
        run_folders.make(tmp_path / "run", run_folders.returns((10, 1), (20, 2)))
        (tmp_path / "run" / "videos").mkdir()
        (tmp_path / "run" / "videos" / "a.gif").write_bytes(b"GIF89a")
        values["frames"] = "20 of 20"
        deadline = time.monotonic() + 30
        while len(found := blocks(port)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert found["values"]["values"] == [["frames", "20 of 20"]]
        assert found["learning"]["charts"][0]["series"][0]["y"] == [1, 2]
        (video,) = found["videos"]["videos"]
        assert get(port, f"/{video['source']}") == (200, "image/gif", b"GIF89a")
    with pytest.raises(ConnectionRefusedError):
        get(port, "/")


def test_only_videos_of_the_run_are_handed_out(tmp_path: pathlib.Path) -> None:
    run_folders.make(tmp_path, [])
    videos = tmp_path / "videos"
    (videos / "folder.gif").mkdir(parents=True)
    (videos / "link.gif").symlink_to(tmp_path / "experiment.yaml")
    (videos / "notes.txt").write_text("secret")
    (tmp_path / "outside.gif").write_bytes(b"secret")
    with serve(tmp_path) as port:
        for path in (
            "/videos/../outside.gif",
            "/videos/..%2foutside.gif",
            "/videos/%2e%2e/outside.gif",
            f"/videos/{tmp_path}/outside.gif",
            f"/videos/{str(tmp_path).replace('/', '%2f')}%2foutside.gif",
            "/videos/link.gif",
            "/videos/folder.gif",
            "/videos/notes.txt",
            "/videos/",
            "/videos",
            "/experiment.yaml",
            "/../experiment.yaml",
            "//videos/notes.txt",
        ):
            status, _, body = get(port, path)
            assert status == 404, path
            assert b"secret" not in body


def test_a_name_of_elsewhere_that_leads_here_is_refused(tmp_path: pathlib.Path) -> None:
    with serve(tmp_path) as port:
        for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", "[::1]:8080"):
            assert get(port, "/page.json", host)[0] == 200, host
        for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", ""):
            assert get(port, "/page.json", host)[0] == 403, host


def test_browsers_that_hang_and_too_many_of_them(tmp_path: pathlib.Path) -> None:
    begun, after = threading.active_count(), list[int]()
    with contextlib.ExitStack() as browsers, serve(tmp_path) as port:
        for _ in range(50):
            connection = socket.create_connection(("127.0.0.1", port), 30)
            browsers.enter_context(connection)
            connection.sendall(b"GET /page.json HTTP/1.1\r\n")  # and no more
        # Those that are too many are turned away, each at once.
        assert connection.recv(1) == b""
        # The server's own thread and one for each connection that is let in.
        assert threading.active_count() - begun <= 1 + 16
        # The end does not wait for those that hang: their threads are still there.
        browsers.callback(lambda: after.append(threading.active_count()))
    assert after[0] > begun


def test_a_port_that_is_taken_is_named(tmp_path: pathlib.Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        settings = LocalConfig(page_port=port)
        with (
            pytest.raises(LaunchError, match=rf"local.page_port: .* 127.0.0.1:{port}: .*in use"),
            live.serve(settings, tmp_path, dict),
        ):
            pass


def test_the_page_can_be_switched_off(tmp_path: pathlib.Path) -> None:
    with live.serve(LocalConfig(page_port=None), tmp_path, dict) as address:
        assert address is None
