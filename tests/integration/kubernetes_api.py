"""A stand-in for a Kubernetes API server: a few objects, and one pod's exec and portforward.

No API server can be had where the tests run. What crosses the wire is what the real one would
send: JSON objects, and WebSocket frames whose first byte is the channel (v4.channel.k8s.io).
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import pathlib
import socket
import struct
import subprocess
import sys
import threading
import urllib.parse
from typing import Any

_STDOUT, _STDERR, _STATUS = 1, 2, 3


def pod(name: str, component: str, port: int, **status: Any) -> dict[str, Any]:
    """A running pod of release `run`."""
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app.kubernetes.io/name": "seedpod",
                "app.kubernetes.io/instance": "run",
                "app.kubernetes.io/component": component,
            },
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {
                    "name": component,
                    "ports": [{"name": "metrics", "containerPort": port}],
                    "args": ["--set", "learner.checkpoint_directory=/nowhere"],
                }
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": component,
                    "ready": True,
                    "restartCount": 2,
                    "image": "x",
                    "imageID": "y",
                    "state": {"running": {}},
                }
            ],
            **status,
        },
    }


class KubernetesApi:
    """Serves until `close`; `kubeconfig` is what finds it.

    Attributes:
      pods, autoscalers: The objects, which tests may change.
      patches: Path and body of each PATCH.
      logs: Text by pod.
      metrics: What each pod's proxy answers.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.pods: list[dict[str, Any]] = []
        self.autoscalers: list[dict[str, Any]] = []
        self.patches: list[tuple[str, Any]] = []
        self.logs: dict[str, str] = {}
        self.metrics = ""
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.kubeconfig = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "agents"}}
            ],
        }
        self.kubeconfig.write_text(json.dumps(document))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def get(self, path: str, query: dict[str, str]) -> Any:
        """The answer to a GET: an object, a text, or None where there is nothing."""
        parts = path.strip("/").split("/")
        if path.startswith("/api/v1/namespaces/agents/pods"):
            if len(parts) == 5:
                wanted = dict(w.split("=") for w in query["labelSelector"].split(","))
                labels = [p["metadata"]["labels"] for p in self.pods]
                matches = [wanted.items() <= label.items() for label in labels]
                return {"items": [p for p, m in zip(self.pods, matches, strict=True) if m]}
            name = parts[5]
            if parts[6:] == ["log"]:
                lines = self.logs[name].splitlines(keepends=True)
                return "".join(lines[-int(query["tailLines"]) :])
            if parts[6:] == ["proxy", "metrics"]:
                return self.metrics
            return next((p for p in self.pods if p["metadata"]["name"] == name), None)
        if path == "/apis/apps/v1/namespaces/agents/deployments":
            spec: dict[str, Any] = {"selector": {}, "template": {}}
            return {"items": [{"metadata": {"name": "run-actor"}, "spec": spec}]}
        if path == "/apis/autoscaling/v2/namespaces/agents/horizontalpodautoscalers":
            return {"items": self.autoscalers}
        return None


def _handler(api: KubernetesApi) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urllib.parse.urlparse(self.path)
            query = urllib.parse.parse_qs(url.query)
            if self.headers.get("Upgrade", "").lower() == "websocket":
                self._upgrade(url.path, query)
                return
            answer = api.get(url.path, {name: values[0] for name, values in query.items()})
            self._answer(404 if answer is None else 200, answer)

        def do_PATCH(self) -> None:
            size = int(self.headers["Content-Length"])
            api.patches.append((self.path, json.loads(self.rfile.read(size))))
            self._answer(200, {})

        def _answer(self, status: int, answer: Any) -> None:
            text = answer if isinstance(answer, str) else json.dumps(answer or {})
            data = text.encode()
            self.send_response(status)
            kind = "text/plain" if isinstance(answer, str) else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _upgrade(self, path: str, query: dict[str, list[str]]) -> None:
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.send_header("Sec-WebSocket-Accept", accept)
            self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
            self.end_headers()
            self.close_connection = True
            if path.endswith("/exec"):
                self._execute(query["command"])
            else:
                self._forward(int(query["ports"][0]))

        def _execute(self, command: list[str]) -> None:
            assert command[0] == "python"
            done = subprocess.run([sys.executable, *command[1:]], capture_output=True, check=False)
            for at in range(0, len(done.stdout), 5000):
                self._send(_STDOUT, done.stdout[at : at + 5000])
            if done.stderr:
                self._send(_STDERR, done.stderr)
            status: dict[str, Any] = {"status": "Success"}
            if done.returncode:
                causes = [{"reason": "ExitCode", "message": str(done.returncode)}]
                status = {"status": "Failure", "details": {"causes": causes}}
            self._send(_STATUS, json.dumps(status).encode())
            self.wfile.write(b"\x88\x02\x03\xe8")  # closed normally

        def _forward(self, port: int) -> None:
            self._send(0, struct.pack("<H", port))
            self._send(1, struct.pack("<H", port))
            with socket.create_connection(("127.0.0.1", port)) as target:

                def answer() -> None:
                    while data := target.recv(4096):
                        self._send(0, data)
                    self.wfile.write(b"\x88\x02\x03\xe8")

                thread = threading.Thread(target=answer, daemon=True)
                thread.start()
                while (frame := self._receive()) is not None:
                    target.sendall(frame[1:])

        def _send(self, channel: int, data: bytes) -> None:
            payload = bytes([channel]) + data
            if len(payload) < 126:
                head = struct.pack("!BB", 0x82, len(payload))
            else:
                head = struct.pack("!BBH", 0x82, 126, len(payload))
            self.wfile.write(head + payload)

        def _receive(self) -> bytes | None:
            """The payload of a client's frame; None at the end."""
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return None
            size = head[1] & 127
            if size == 126:
                (size,) = struct.unpack("!H", self.rfile.read(2))
            mask = self.rfile.read(4)
            data = self.rfile.read(size)
            return bytes(b ^ mask[i % 4] for i, b in enumerate(data))

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
