"""Serves the page of a run under way, from a thread of the launcher.

    browser -> / -> /page.json, every two seconds -> /videos/NAME, where there is a new one

It must not disturb training, whatever browsers do: it runs at a low priority, spends little of the
time on making the page, lets only so many connections in, and waits for none of them for long.
"""

from __future__ import annotations

import contextlib
import http.server
import ipaddress
import json
import logging
import os
import pathlib
import shutil
import socket
import socketserver
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from services.local.process import LaunchError
from services.local.report import page
from services.local.report import run as run_folder
from services.local.report.history import History
from services.shared.config import LocalConfig

_MAX_CONNECTIONS = 16
_TIMEOUT_SECONDS = 10.0
_CACHE_SECONDS = 1.0
# After days there is much to read; a pause so many times as long leaves a twentieth of a core.
_PAUSE = 20
# Training takes all cores: at the very lowest priority the page would wait for seconds.
_NICENESS = 5
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def serve(
    settings: LocalConfig, folder: pathlib.Path, values: Callable[[], Mapping[str, str]]
) -> Iterator[str | None]:
    """Serves the page while the context is entered.

    Args:
      settings: Where it binds.
      folder: The run's; it may be filled later.
      values: What the live table shows.

    Yields:
      The page's address; None if it is switched off.

    Raises:
      LaunchError: The port is taken.
    """
    if settings.page_port is None:
        yield None
        return
    place = settings.page_host, settings.page_port
    try:
        server = _Server(place, _Source(folder, values))
    except OSError as error:
        raise LaunchError(
            f"local.page_port: the page cannot be served on {place[0]}:{place[1]}: {error}"
        ) from None
    thread = threading.Thread(target=server.run, name="page", daemon=True)
    thread.start()
    try:
        yield f"http://{place[0]}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


class _Source:
    """Makes what the page shows, for all connections together."""

    def __init__(self, folder: pathlib.Path, values: Callable[[], Mapping[str, str]]) -> None:
        self._run = run_folder.Run(folder, folder.name, {}, History(folder / "tensorboard"))
        self._values = values
        self._lock = threading.Lock()
        self._made = b""
        self._make_again_at = time.monotonic()
        self.html = page.live_html().encode()

    def json(self) -> bytes:
        """The page's blocks, as a rule not older than a second."""
        with self._lock:
            if time.monotonic() >= self._make_again_at:
                began = time.thread_time()
                self._run.history.update()
                document = page.live(self._run, self._values())
                self._made = json.dumps(document, allow_nan=False).encode()
                pause = max(_CACHE_SECONDS, _PAUSE * (time.thread_time() - began))
                self._make_again_at = time.monotonic() + pause
            return self._made

    def recording(self, name: str) -> run_folder.Recording | None:
        """One of the run by its name: only what is in the folder now, so no path leads out."""
        return next((r for r in self._run.recordings() if r.path.name == name), None)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a browser that hangs does not hold up the run's end
    request_queue_size = 64  # with 5 a browser's first connections would have to try again

    def __init__(self, address: tuple[str, int], source: _Source) -> None:
        self.source = source
        self.only_loopback = ipaddress.ip_address(socket.gethostbyname(address[0])).is_loopback
        self._room = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Binds, and looks up no name of this machine: that can take seconds."""
        socketserver.TCPServer.server_bind(self)

    def run(self) -> None:
        """The body of the thread, whose priority the threads of connections inherit."""
        thread = threading.get_native_id()
        niceness = max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
        self.serve_forever(poll_interval=0.2)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Turns away what is too much."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news."""
        _log.debug("the page's connection from %s broke", client_address, exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _TIMEOUT_SECONDS
    server: _Server

    def do_GET(self) -> None:
        """Answers with the page, its data or a video."""
        if self.server.only_loopback and not self._is_local():
            self.send_error(http.HTTPStatus.FORBIDDEN)
            return
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        source = self.server.source
        if path == "/":
            self._send("text/html; charset=utf-8", source.html)
        elif path == "/page.json":
            self._send("application/json", source.json())
        elif path.startswith("/videos/") and (video := source.recording(path[len("/videos/") :])):
            with video.path.open("rb") as file:
                self._head(video.type, os.fstat(file.fileno()).st_size)
                shutil.copyfileobj(file, self.wfile)
        else:
            self.send_error(http.HTTPStatus.NOT_FOUND)

    def _is_local(self) -> bool:
        """Whether a browser believes to speak to this machine: a name of elsewhere may lead here.

        (DNS rebinding: without this any page in the same browser could read ours.)
        """
        host = urllib.parse.urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return host in ("localhost", "127.0.0.1", "::1", str(self.server.server_address[0]))

    def _send(self, content_type: str, body: bytes) -> None:
        self._head(content_type, len(body))
        self.wfile.write(body)

    def _head(self, content_type: str, length: int) -> None:
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal belongs to the live table."""
