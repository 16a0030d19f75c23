"""The Python client of the replay service; see docs/replay.md."""

from services.shared.replay.client import ReplayClient
from services.shared.replay.codec import Tensors
from services.shared.replay.connection import ReplayError, ReplayTimeout
from services.shared.replay.layout import Field, SequenceLayout
from services.shared.replay.sampler import Batch, Sampler
from services.shared.replay.writer import SlotWriter

__all__ = [
    "Batch",
    "Field",
    "ReplayClient",
    "ReplayError",
    "ReplayTimeout",
    "Sampler",
    "SequenceLayout",
    "SlotWriter",
    "Tensors",
]
