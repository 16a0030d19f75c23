"""Attributes the learner process's CPU time to inference and training.

TensorFlow runs both on one thread pool, so no clock separates them when they overlap. Inference
calls that ran alone are measured by the process's CPU clock; their mean cost per slot stands for
those that overlapped with a training step. Training is what remains of the time during its steps.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator


class CpuTime:
    """CPU seconds of this process, by part."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        """Starts at zero: importing TensorFlow and tracing functions do not count."""
        self._clock = clock
        self._lock = threading.Lock()
        self._start = clock()
        self._training_steps = 0
        self._in_training = False
        self._alone_seconds = 0.0
        self._alone_slots = 0
        self._slots = 0
        self._during_training_slots = 0
        self._during_training_seconds = 0.0

    @contextlib.contextmanager
    def inference(self, slots: int) -> Iterator[None]:
        """Measures an inference call of `slots` slots."""
        steps, alone = self._training_steps, not self._in_training
        start = self._clock()
        yield
        seconds = self._clock() - start
        with self._lock:
            self._slots += slots
            if alone and steps == self._training_steps:
                self._alone_seconds += seconds
                self._alone_slots += slots
            else:
                self._during_training_slots += slots

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Measures a training step."""
        start = self._clock()
        self._training_steps += 1
        self._in_training = True
        try:
            yield
        finally:
            self._in_training = False
            with self._lock:
                self._during_training_seconds += self._clock() - start

    def seconds(self) -> tuple[float, float, float]:
        """CPU seconds of inference, training and the rest of the process."""
        with self._lock:
            per_slot = self._alone_seconds / max(1, self._alone_slots)
            inference = per_slot * self._slots
            overlapped = min(per_slot * self._during_training_slots, self._during_training_seconds)
            training = self._during_training_seconds - overlapped
        elapsed = self._clock() - self._start
        return inference, training, max(0.0, elapsed - inference - training)
