"""Who inserts, and who waits: the state that `TableHost` keeps of its clients."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from services.replay.ingest import HeldBlocks


@dataclasses.dataclass(eq=False)
class Writer:
    """A client that inserts, over all its streams.

    Attributes:
      number: It chose it itself.
      received: Its last message that was inserted.
      acknowledged: Its last message that was acknowledged.
      epoch: Changes with each stream; the newest one is the writer's.
      closed_epoch: Of the last stream that ended.
      is_new_stream: Its stream has not sent a message yet.
      held: Blocks that its stream may refer to.
      busy: Held while a message is being inserted, also if its stream has ended meanwhile.
    """

    number: int
    received: int = 0
    acknowledged: int = 0
    epoch: int = 0
    closed_epoch: int = 0
    is_new_stream: bool = True
    held: HeldBlocks = dataclasses.field(default_factory=HeldBlocks)
    busy: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


class Waits:
    """Who waits for the rate limiter on one side, and for how long.

    Attributes:
      waiting: At this moment.
      count: Waits that have ended.
      seconds: Of those.
      turn: Its holder is the only one on this side that watches the limiter; FIFO.
      changed: Set whenever the limiter may allow more.
    """

    def __init__(self) -> None:
        self.waiting = self.count = 0
        self.seconds = 0.0
        self.turn = asyncio.Lock()
        self.changed = asyncio.Event()
        self.blocked = False

    def begin(self) -> float:
        """Somebody has to wait."""
        self.waiting += 1
        return time.monotonic()

    def end(self, started: float) -> None:
        """No more."""
        self.waiting -= 1
        self.count += 1
        self.seconds += time.monotonic() - started
