"""What the outside sees of a learner: Prometheus metrics and TensorBoard event files."""

from __future__ import annotations

import json
import logging
import math
import pathlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import prometheus_client
import tensorflow as tf
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from tensorboard.compat.proto import summary_pb2
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.scalar import summary_v2 as scalar_summary

from services.learner import evaluation
from services.learner.accounts import StepAccount
from services.learner.recordings import Picture
from services.learner.statistics import Statistics
from services.learner.step_store import COUNTERS
from services.learner.unrolls import policy_lag_bound
from services.shared.config import LearnerConfig

if TYPE_CHECKING:
    from services.learner.overview import Overview
    from services.learner.training import Training

# Between two records in the event file: dense at first, so that a short run has a curve too.
_SUMMARY_SECONDS = (1.0, 5.0)
_SUMMARY_SHARE = 0.05  # of the time since the start
_PARTS = ("environment", "inference", "training", "replay")  # that can be the bottleneck
_log = logging.getLogger(__name__)


class Reports:
    """Serves metrics and writes event files.

    Attributes:
      registry: What is served.
      config: The learner's settings.
    """

    def __init__(self, config: LearnerConfig) -> None:
        """Begins; nothing here uses TensorFlow before `open`."""
        self.registry = prometheus_client.CollectorRegistry()
        self.config = config
        self._writer: Any = None
        self._started = time.monotonic()
        self._next_summary = self._started
        self._behaviour_difference = 0.0
        self._evaluations_written = 0
        self._metrics: dict[str, float] = {}

    def open(self) -> None:
        """Opens the event file, if one is asked for."""
        if self.config.log_directory is not None:
            self._writer = tf.summary.create_file_writer(self.config.log_directory)

    def serve_metrics(self, overview: Overview) -> None:
        """Serves /metrics if a port is configured."""
        self.registry.register(_LearnerCollector(overview, self))
        if self.config.metrics_port is not None:
            server, _ = prometheus_client.start_http_server(
                self.config.metrics_port, self.config.metrics_host, self.registry
            )
            _log.info("metrics on http://%s:%d/metrics", *server.server_address[:2])

    @property
    def training_metrics(self) -> dict[str, float]:
        """Of the newest update; `behaviour_difference_max` is over the whole run."""
        return self._metrics

    def training(self, metrics: dict[str, float], overview: Overview) -> None:
        """Takes notice of an update."""
        if not metrics["skipped"]:
            self._behaviour_difference = max(
                self._behaviour_difference, metrics["behaviour_difference"]
            )
        self._metrics = {**metrics, "behaviour_difference_max": self._behaviour_difference}
        self._write_evaluation(overview.statistics)
        now = time.monotonic()
        if now >= self._next_summary:
            shortest, longest = _SUMMARY_SECONDS
            elapsed = _SUMMARY_SHARE * (now - self._started)
            self._next_summary = now + min(max(shortest, elapsed), longest)
            self._summarize(overview)

    def _write_evaluation(self, statistics: Statistics) -> None:
        """Appends a line to the results whenever there are as many new episodes as count."""
        settings = self.config.evaluation
        due = self._evaluations_written + settings.episodes
        if settings.results_path is None or statistics.evaluated < due:
            return
        self._evaluations_written = statistics.evaluated
        line = {
            "time": round(time.time(), 3),
            "frames": statistics.frames,
            "updates": statistics.updates,
            "greedy": settings.greedy,
            **evaluation.summarize(statistics.evaluation_episodes.copy()),
        }
        path = pathlib.Path(settings.results_path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:  # training goes on
            _log.warning("an evaluation cannot be written: %s", error)

    def picture(self, picture: Picture, statistics: Statistics) -> None:
        """Takes notice of a new recording; TensorBoard plays GIFs."""
        if self._writer is None:
            return
        tag = "evaluation/heat_map" if picture.name.endswith(".png") else "evaluation/episode"
        size = [str(picture.width).encode(), str(picture.height).encode()]
        with self._writer.as_default():
            tf.summary.write(
                tag,
                tf.constant([*size, picture.data]),
                step=np.int64(statistics.frames),
                metadata=image_metadata.create_summary_metadata(tag, ""),
            )

    def close(self, overview: Overview) -> None:
        """Completes the event file."""
        if self._writer is not None:
            self._summarize(overview)
            self._writer.close()

    def _summarize(self, overview: Overview) -> None:
        if self._writer is None:
            return
        statistics = overview.statistics
        values = {f"training/{name}": value for name, value in self._metrics.items()}
        values["training/policy_lag"] = statistics.policy_lag
        values["training/seconds"] = time.monotonic() - self._started
        values["speed/frames_per_second"] = statistics.frames_per_second
        values["speed/inference_batch_fill"] = statistics.batch_fill
        if statistics.ended_episodes:
            values["episode/mean_return"] = statistics.mean_return
            values["episode/mean_length"] = statistics.mean_length
        evaluated = evaluation.scalars(statistics.evaluation_episodes.copy())
        values |= {f"evaluation/{name}": value for name, value in evaluated.items()}
        # Zeros too: `seedpod report` takes the parts together.
        limiting, cpu = statistics.bottleneck(), overview.cpu_seconds()
        values |= {f"bottleneck/{part}": float(part == limiting) for part in _PARTS}
        values |= {f"cpu_seconds/{f.name}": getattr(cpu, f.name) for f in cpu.DESCRIPTOR.fields}
        # All in one event: `tf.summary.scalar` takes 0.7 CPU-milliseconds for each of them.
        summary = summary_pb2.Summary()
        for name, value in values.items():
            summary.MergeFrom(scalar_summary.scalar_pb(name, value))
        # A number of Python's would be kept by TensorFlow for good, see `Agent.train`.
        with self._writer.as_default(step=np.int64(statistics.frames)):
            tf.summary.experimental.write_raw_pb(summary.SerializeToString())
        # Whoever looks on shall see it now, not after TensorFlow's two minutes.
        self._writer.flush()


def _replay_metrics(training: Training) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """Of sequences on their way to replay and back; none where there is no replay."""
    if training.sender is None or training.client is None:
        return
    counts = training.client.statistics()
    counters = (
        ("sequences_sent", "Handed to the replay client", training.sender.sent),
        (
            "sequences_dropped",
            "Found replay away and no room, or are not finite",
            training.sender.dropped,
        ),
        ("sequences_acknowledged", "Taken by replay", training.client.acknowledged_items),
        (
            "replay_reconnects",
            "Streams that were lost",
            counts["insert_reconnects"] + counts["sample_reconnects"],
        ),
        (
            "incomplete_batches",
            "Sampled while a replay shard was away",
            counts["incomplete_batches"],
        ),
    )
    for name, help_text, value in counters:
        yield CounterMetricFamily(f"seedpod_{name}", help_text, value=value)
    gauges = (
        ("sequence_bytes_waiting", "Not acknowledged yet", counts["waiting_bytes"]),
        ("replay_shards_away", "Not written to now", training.client.shards_away),
    )
    for name, help_text, value in gauges:
        yield GaugeMetricFamily(f"seedpod_{name}", help_text, value=value)


def _evaluation_gauges(statistics: Statistics) -> tuple[tuple[str, str, float], ...]:
    """Of the newest evaluation episodes."""
    figures = evaluation.figures(statistics.evaluation_episodes.copy())
    what = "Over the newest evaluation episodes (learner.evaluation.episodes)"
    return (
        ("evaluation_return_mean", what, figures.mean_return),
        ("evaluation_return_standard_error", "Of the mean", figures.standard_error),
        ("evaluation_return_median", what, figures.median_return),
        ("evaluation_episode_length_mean", what, figures.mean_length),
    )


def _level_metrics(statistics: Statistics) -> Iterator[GaugeMetricFamily]:
    """Of the newest evaluation episodes by level, and what their environments tell."""
    returns = GaugeMetricFamily(
        "seedpod_evaluation_level_return_mean", "By level", labels=["level"]
    )
    values = GaugeMetricFamily(
        "seedpod_evaluation_value_mean", "What environments tell", labels=["level", "name"]
    )
    for level, figures in evaluation.by_level(statistics.evaluation_episodes.copy()).items():
        returns.add_metric([level], figures.mean_return)
        for name, (mean, _) in figures.values.items():
            values.add_metric([level, name], mean)
    yield from (returns, values)


def _step_metrics(steps: StepAccount) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    counters = (
        ("received", "Delivered by actors, evaluation slots left out", steps.received),
        ("trained", "Taken into training by this process", steps.trained),
        (
            "dropped",
            "Of unrolls that an environment's loss left unfinished, and of dropped sequences",
            steps.dropped,
        ),
    )
    for name, help_text, value in counters:
        yield CounterMetricFamily(f"seedpod_steps_{name}", help_text, value=value)
    yield GaugeMetricFamily(
        "seedpod_steps_unfinished", "Received, not taken into training yet", value=steps.unfinished
    )


class _LearnerCollector(Collector):
    """Reads the learner's counters at each scrape."""

    def __init__(self, overview: Overview, reports: Reports) -> None:
        self._overview = overview
        self._reports = reports

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: the names are not checked against others in this registry."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """All metrics but the histograms of `Statistics`."""
        status = self._overview.status()
        statistics = self._overview.statistics
        actors = self._overview.live_actors
        counters: tuple[tuple[str, str, float], ...] = (
            ("environment_frames", "Environment frames taken into training", status.frames),
            ("updates", "Parameter updates", status.updates),
            ("episodes", "Episodes that ended", status.episodes),
            ("skipped_updates", "Updates that were not finite", statistics.skipped_updates),
            ("evaluation_episodes", "Of evaluation slots", statistics.evaluated),
        )
        for name, help_text, value in counters:
            yield CounterMetricFamily(f"seedpod_{name}", help_text, value=value)
        gauges: tuple[tuple[str, str, float], ...] = (
            ("frames_per_second", "Environment frames per second", status.frames_per_second),
            ("episode_return_mean", "Over the last 100 episodes", status.mean_return),
            *_evaluation_gauges(statistics),
            ("episode_length_mean", "Over the last 100 episodes", status.mean_episode_length),
            ("learners_missing", "Of the run, not there yet", self._overview.missing_learners),
            ("actors", "Actor services that are connected", actors),
            (
                "actors_wanted",
                "Actor services that would keep the learner at its target utilisation",
                statistics.actors_wanted(actors),
            ),
            ("live_slots", "Env slots whose actors are connected", status.live_slots),
            ("leased_slots", "Env slots that are leased", status.leased_slots),
            ("inference_batch_fill", "Share of the batch size", status.inference_batch_fill),
            ("policy_lag", "Updates between acting and training", status.policy_lag),
            ("held_groups", "Groups held back by training", statistics.held_groups),
            ("training_busy", "Share of time at work", statistics.busy_share("training")),
            ("inference_busy", "Share of time at work", statistics.busy_share("inference")),
            (
                "replay_wait_share",
                "Share of time that finished sequences waited for replay",
                statistics.busy_share("replay"),
            ),
        )
        for name, help_text, value in gauges:
            if not math.isnan(value):  # before the first episode, or without evaluation slots
                yield GaugeMetricFamily(f"seedpod_{name}", help_text, value=value)
        yield from _level_metrics(statistics)
        bottleneck = GaugeMetricFamily(
            "seedpod_bottleneck", "1 for the part that limits throughput", labels=["part"]
        )
        for part in _PARTS:
            bottleneck.add_metric([part], float(part == status.bottleneck))
        yield bottleneck
        cpu = CounterMetricFamily("seedpod_cpu_seconds", "CPU seconds by part", labels=["part"])
        for field, value in status.cpu_seconds.ListFields():
            cpu.add_metric([field.name], value)
        yield cpu
        if (store := self._overview.store) is not None:
            totals = store.counters.sum(axis=0)
            yield GaugeMetricFamily("seedpod_streams", "Open streams", value=totals[0])
            for i in range(1, 5):
                yield CounterMetricFamily(
                    f"seedpod_front_end_{COUNTERS[i]}", "Of all front ends", value=totals[i]
                )
            for name in ("recordings", "recording_failures"):
                value = totals[COUNTERS.index(name)]
                yield CounterMetricFamily(
                    f"seedpod_evaluation_{name}", "Handed over by actors", value=value
                )
        if (assembler := self._overview.assembler) is not None:
            waiting = len(assembler) + self._overview.queued_unrolls
            yield GaugeMetricFamily(
                "seedpod_unrolls_waiting", "Finished, not taken by training", value=waiting
            )
        if (training := self._overview.training) is not None:
            yield from _replay_metrics(training)
        for name, help_text, value in zip(
            ("records_received_bytes", "parameters_sent_bytes"),
            ("Of all messages with records", "To actors that hold the policy"),
            self._overview.traffic,
            strict=True,
        ):
            yield CounterMetricFamily(f"seedpod_{name}", help_text, value=value)
        if (steps := self._overview.steps()) is not None:
            yield from _step_metrics(steps)
        yield from self._bounds(self._overview.training_slots)
        for name, value in self._reports.training_metrics.items():
            if not math.isnan(value):
                yield GaugeMetricFamily(f"seedpod_training_{name}", "Newest update", value=value)

    def _bounds(self, slots: int) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """What alerts compare with."""
        config = self._reports.config
        if config.algorithm == "vtrace":
            bound = policy_lag_bound(
                slots, config.batch_size, config.unrolls_per_slot, config.sample_reuse
            )
            if config.inference == "actors":
                # A parameter's age when it is used, the queue, and a message of each actor.
                rounds = slots / config.batch_size + 1 + self._overview.live_actors
                bound += config.sample_reuse * rounds
            yield GaugeMetricFamily(
                "seedpod_policy_lag_bound", "Of slots that are equally fast", value=bound
            )
        checkpoints = self._overview.checkpoints
        if checkpoints.saved_at is not None:
            yield GaugeMetricFamily(
                "seedpod_checkpoint_timestamp_seconds",
                "Unix time of the newest checkpoint, of the start before the first",
                value=checkpoints.saved_at,
            )
            yield CounterMetricFamily(
                "seedpod_checkpoint_failures",
                "Checkpoints that could not be written, or not begun in time",
                value=checkpoints.failures,
            )
