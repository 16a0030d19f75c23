"""Where every step is that actors have delivered: the books that must balance.

Inference counts what arrives; the trainer's side counts what it takes, from the data that it has
gathered. What is between them is counted in the step store. If a step were lost, trained on twice,
or taken for another's, the two sides would differ.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class StepAccount:
    """Steps of all agents of this process, without those of slots that only evaluate.

    Attributes:
      received: Processed by inference: all records but FIRST.
      trained: Taken into training.
      dropped: Of unrolls that an environment's loss left unfinished, and of sequences that replay
        did not take.
      unfinished: Of unrolls that are being made or wait for training.
    """

    received: int
    trained: int
    dropped: int
    unfinished: int

    @property
    def error(self) -> int:
        """Steps that are not where they should be; other than 0 for a moment while all move."""
        return self.received - self.trained - self.dropped - self.unfinished

    def to_json(self) -> dict[str, int]:
        """For the run's summary."""
        return {**dataclasses.asdict(self), "error": self.error}
