"""Each service's metrics are served where its configuration says, and nowhere else."""

from __future__ import annotations

import logging
import re
import socket
import types

import psutil
import pytest

from services.actor.metrics import ActorMetrics
from services.learner.reports import Reports
from services.replay import status
from services.replay.recovery import Progress
from services.shared import config

HOST = "127.0.0.2"


def serve_learner(caplog: pytest.LogCaptureFixture) -> int:
    caplog.set_level(logging.INFO)
    settings = config.LearnerConfig(metrics_port=0, metrics_host=HOST)
    Reports(settings).serve_metrics(types.SimpleNamespace())  # type: ignore[arg-type]
    (port,) = re.findall(rf"metrics on http://{HOST}:(\d+)/metrics", caplog.text)
    return int(port)


def serve_replay(_: pytest.LogCaptureFixture) -> int:
    settings = config.ReplayConfig(metrics_port=0, metrics_host=HOST)
    return int(status.serve_metrics(settings, {}, Progress(), lambda: True) or 0)


def serve_actor(_: pytest.LogCaptureFixture) -> int:
    return ActorMetrics(0, HOST).port or 0


@pytest.mark.parametrize("serve", [serve_learner, serve_replay, serve_actor])
def test_metrics_bind_where_the_configuration_says(
    serve: types.FunctionType, caplog: pytest.LogCaptureFixture
) -> None:
    port = serve(caplog)
    socket.create_connection((HOST, port), timeout=5).close()
    # Not by trying: elsewhere another process may have the same port.
    listens = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
    assert [ip for ip, number in listens if number == port] == [HOST]
