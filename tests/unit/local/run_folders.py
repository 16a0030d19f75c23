"""Makes folders that look like a run's, with known contents."""

from __future__ import annotations

import json
import pathlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from tensorboard.compat.proto import event_pb2

# (step, wall time, values by tag)
Records = Sequence[tuple[int, float, Mapping[str, float]]]


def record(event: event_pb2.Event) -> bytes:
    """An event as it stands in a file; checksums are not looked at."""
    data: bytes = event.SerializeToString()
    return struct.pack("<QI", len(data), 0) + data + bytes(4)


def events(records: Records, began: float = 1000.0) -> bytes:
    """An event file's content; the file was made at `began`."""
    content = [record(event_pb2.Event(wall_time=began, file_version="brain.Event:2"))]
    for step, wall_time, values in records:
        # As `tf.summary.scalar` writes them: an event for each, a tensor of one float.
        for tag, value in values.items():
            event = event_pb2.Event(wall_time=wall_time, step=step)
            added = event.summary.value.add(tag=tag)
            added.tensor.dtype = 1
            added.tensor.float_val.append(value)
            content.append(record(event))
    return b"".join(content)


def make(
    folder: pathlib.Path,
    *sessions: Records,
    settings: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
) -> pathlib.Path:
    """A run; each session is an event file that was begun at 1000 s by the clock."""
    (folder / "tensorboard").mkdir(parents=True)
    document = settings or {"name": "cartpole", "learner": {"total_frames": 100}}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(document))
    for i, session in enumerate(sessions):
        path = folder / "tensorboard" / f"events.out.tfevents.{i:010d}.host.1.0.v2"
        path.write_bytes(events(session))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def returns(*points: tuple[int, float]) -> Records:
    """Records of mean returns, a second after each other from 1001 s on."""
    return [
        (frames, 1001.0 + i, {"episode/mean_return": value})
        for i, (frames, value) in enumerate(points)
    ]
