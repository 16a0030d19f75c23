"""Values that change with the run's frames, for the optimizer and the entropy cost."""

from __future__ import annotations

import tensorflow as tf

from services.shared.config import ScheduleConfig


def value_at(schedule: float | ScheduleConfig, frames: tf.Tensor, total_frames: int) -> tf.Tensor:
    """A schedule's value.

    Args:
      schedule: A constant, or linear from `initial` to `final` and constant from there.
      frames: int64 scalar, environment frames trained on so far.
      total_frames: The run's length, where a schedule without `frames` ends.

    Returns:
      float32 scalar.
    """
    if not isinstance(schedule, ScheduleConfig):
        return tf.constant(schedule, tf.float32)
    end = total_frames if schedule.frames is None else schedule.frames
    # float64: float32 cannot tell neighbouring frames apart from 16.8 million on.
    done = tf.clip_by_value(tf.cast(frames, tf.float64) / end, 0.0, 1.0)
    return tf.cast(schedule.initial + (schedule.final - schedule.initial) * done, tf.float32)
