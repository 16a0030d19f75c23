"""What the actor shows to Prometheus; the supervisor updates it from the heartbeats."""

from __future__ import annotations

import prometheus_client

from services.actor.supervision import Heartbeat

# Fields of the heartbeat: name of the metric, without the prefix, and what it counts.
_COUNTERS = {
    "steps": ("environment_steps", "Environment steps."),
    "restarts": ("environment_restarts", "Environments that were replaced."),
    "reconnects": ("reconnects", "Streams to the learner that were lost."),
    "recordings": ("recordings", "Evaluation episodes that were recorded."),
    "recording_failures": ("recording_failures", "Recordings that were lost."),
}


class ActorMetrics:
    """The metrics of one actor service."""

    def __init__(self, port: int | None, host: str) -> None:
        """Serves /metrics.

        Args:
          port: 0: any free one; None: nothing is served.
          host: The address to bind.

        Raises:
          OSError: The port cannot be had.
        """
        registry = prometheus_client.CollectorRegistry()
        self._workers = prometheus_client.Gauge(
            "seedpod_actor_workers", "Workers that were started.", registry=registry
        )
        self._connected = prometheus_client.Gauge(
            "seedpod_actor_connected_workers",
            "Workers whose groups are all connected to the learner.",
            registry=registry,
        )
        self._environments = prometheus_client.Gauge(
            "seedpod_actor_environments",
            "Environments that are being stepped or replaced.",
            ["state"],
            registry=registry,
        )
        self._counters = {
            field: prometheus_client.Counter(f"seedpod_actor_{name}", text, registry=registry)
            for field, (name, text) in _COUNTERS.items()
        }
        self._last: list[Heartbeat] = []
        self._server = None
        if port is not None:
            self._server, _ = prometheus_client.start_http_server(port, host, registry)

    @property
    def port(self) -> int | None:
        """Where /metrics is served."""
        return self._server.server_port if self._server is not None else None

    def update(self, heartbeats: list[Heartbeat]) -> None:
        """Takes the newest heartbeat of each worker; a restarted one counts from 0 again."""
        last = self._last or [Heartbeat()] * len(heartbeats)
        for name, counter in self._counters.items():
            for before, now in zip(last, heartbeats, strict=True):
                old, new = getattr(before, name), getattr(now, name)
                counter.inc(new - old if new >= old else new)
        self._last = heartbeats
        absent = sum(h.absent for h in heartbeats)
        self._workers.set(sum(h.running for h in heartbeats))
        self._connected.set(sum(h.connected for h in heartbeats))
        self._environments.labels("absent").set(absent)
        self._environments.labels("present").set(
            sum(h.environments for h in heartbeats if h.running) - absent
        )

    def close(self) -> None:
        """Ends the server."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
