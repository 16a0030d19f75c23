"""What a local run shows: a live table in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import abc
import math
import sys
import time
from types import TracebackType

import rich.box
import rich.console
import rich.live
import rich.table

from services.shared.generated.seedpod.inference.v1 import inference_pb2

_LINE_SECONDS = 10.0


class View(abc.ABC):
    """Shows the learner's status on stderr.

    Attributes:
      values: What is shown now, by name.
    """

    def __init__(self) -> None:
        """Prepares the view; it is on screen while it is entered."""
        self._started = time.monotonic()
        self._next_line = 0.0
        self._answered = False
        self.values: dict[str, str] = {}
        console = rich.console.Console(stderr=True)
        self._live = (
            rich.live.Live(console=console, refresh_per_second=2) if sys.stderr.isatty() else None
        )

    def __enter__(self) -> View:
        """Puts it on screen."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leaves the last state on screen."""
        if self._live is not None:
            self._live.stop()

    def show(self, status: inference_pb2.GetStatusResponse | None, restarts: int) -> None:
        """Shows a status; None: the learner does not answer (yet)."""
        self.values = self._values(status, restarts)
        if self._live is not None:
            table = rich.table.Table(box=rich.box.SIMPLE, show_header=False)
            table.add_column(style="cyan")
            table.add_column()
            for name, value in self.values.items():
                table.add_row(name, value)
            self._live.update(table)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            line = "  ".join(f"{k}: {v}" for k, v in self.values.items())
            print(line, file=sys.stderr, flush=True)

    def _values(
        self, status: inference_pb2.GetStatusResponse | None, restarts: int
    ) -> dict[str, str]:
        elapsed = f"{time.monotonic() - self._started:.0f} s"
        if status is None:
            state = "the learner does not answer" if self._answered else "the learner is starting"
            return {"time": elapsed, "state": state}
        self._answered = True
        if not status.live_slots and not status.frames:
            return {"time": elapsed, "state": "environments and network are starting"}
        return {"time": elapsed, **self._progress(status), "restarts": str(restarts)}

    @abc.abstractmethod
    def _progress(self, status: inference_pb2.GetStatusResponse) -> dict[str, str]:
        """What there is to say of a run that is under way."""


class TrainingView(View):
    """How far training is, how well the agent does, and what limits the speed."""

    def __init__(self, total_frames: int) -> None:
        """Sets where training ends."""
        super().__init__()
        self._total_frames = total_frames

    def _progress(self, status: inference_pb2.GetStatusResponse) -> dict[str, str]:
        return describe(status, self._total_frames)


def describe(status: inference_pb2.GetStatusResponse, total_frames: int) -> dict[str, str]:
    """What a learner that trains says of itself, for people."""
    return {
        "frames": f"{status.frames:,} of {total_frames:,}",
        "frames/s": f"{status.frames_per_second:,.0f}",
        "return": f"{_number(status.mean_return)} (last 100 episodes)",
        **_evaluation(status),
        "episodes": f"{status.episodes:,}",
        "updates": f"{status.updates:,}",
        "live slots": f"{status.live_slots:,}",
        "batch fill": f"{status.inference_batch_fill:.0%}",
        "policy lag": f"{status.policy_lag:.1f} updates",
        "bottleneck": status.bottleneck,
    }


class EvaluationView(View):
    """How many episodes were played, and how well."""

    def _progress(self, status: inference_pb2.GetStatusResponse) -> dict[str, str]:
        return {
            "episodes": f"{status.evaluation_episodes:,}",
            "return": _mean_and_error(status),
            "live slots": f"{status.live_slots:,}",
        }


def _evaluation(status: inference_pb2.GetStatusResponse) -> dict[str, str]:
    """Of the evaluation slots, if there are any."""
    if math.isnan(status.evaluation_return):
        return {}
    return {"evaluation": f"{_mean_and_error(status)} (last {status.evaluation_episodes} episodes)"}


def _mean_and_error(status: inference_pb2.GetStatusResponse) -> str:
    mean, error = status.evaluation_return, status.evaluation_standard_error
    return _number(mean) + ("" if math.isnan(error) else f" ± {error:.3f}")


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
