"""The Python client of the replay service; see docs/replay.md."""

from services.replay.client.client import ReplayClient
from services.replay.client.connection import ReplayError, ReplayTimeout
from services.replay.client.layout import Field, SequenceLayout
from services.replay.client.sampler import Batch, Sampler
from services.replay.client.writer import SlotWriter

__all__ = [
    "Batch",
    "Field",
    "ReplayClient",
    "ReplayError",
    "ReplayTimeout",
    "Sampler",
    "SequenceLayout",
    "SlotWriter",
]
