"""A real browser without a window: Chromium, driven through its DevTools protocol.

https://chromedevtools.github.io/devtools-protocol; commands and events are JSON, each ended by a
NUL, on the two pipes that `--remote-debugging-pipe` reads and writes.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import time
from types import TracebackType
from typing import Any

import pytest

_found = shutil.which("chromium")
# A snap sees neither our pipes nor our temporary folders.
EXECUTABLE = None if _found is None or _found.startswith("/snap/") else _found
needs_browser = pytest.mark.skipif(
    EXECUTABLE is None,
    reason="needs Chromium as a package (scripts/install-browser), not as a snap",
)
_TIMEOUT_SECONDS = 60.0


class Browser:
    """One page of a browser of its own.

    Attributes:
      errors: What the console was told of as an error, and exceptions that nobody caught.
      requests: Addresses that the page has asked for, itself first.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Starts it; `folder` is for its profile."""
        assert EXECUTABLE is not None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._loaded = False
        self._received = b""
        command_read, self._commands = os.pipe()
        self._answers, answer_write = os.pipe()
        # Above those numbers that the shell below gives them.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (command_read, answer_write)]
        options = [
            *("--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}"),
            *("--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            # What it does on its own would count as the page's requests, and take time.
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            # Chromium's sandbox refuses to work for root.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]
        shell = f'exec "$0" "$@" 3<&{ends[0]} 4>&{ends[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, EXECUTABLE, *options, "about:blank"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (*ends, command_read, answer_write):
            os.close(end)
        self._session: str | None = None
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(_TIMEOUT_SECONDS)
        os.close(self._commands)
        os.close(self._answers)

    def open(self, url: str, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Loads a page; what the one before has left in `errors` and `requests` is forgotten."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.errors, self.requests, self._loaded = [], [], False
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._loaded:
            self._handle(self._receive(deadline))
        # Sizes are observed, and charts drawn, between two frames.
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Waits until a JavaScript expression is true, and returns its value."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"waited {_TIMEOUT_SECONDS} s for {expression}"
            time.sleep(0.05)
        return value

    def move(self, x: float, y: float) -> None:
        """Moves the pointer to a place in the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Clicks at a place in the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self._call(
                "Input.dispatchMouseEvent",
                **{"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1},
            )

    def screenshot(self, path: pathlib.Path) -> None:
        """Writes the whole page as PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._handle(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self._answers], [], [], max(0.0, left))
            assert readable, f"the browser said nothing for {_TIMEOUT_SECONDS} s"
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has ended"
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        document: dict[str, Any] = json.loads(message)
        return document

    def _handle(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.errors.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "assert"):
                self.errors.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(str(parameters["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
