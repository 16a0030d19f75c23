"""What a scenario found, as a row of the suite's table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass
class Outcome:
    """One kind of fault, once or several times.

    Attributes:
      fault: What was done.
      injected: How often.
      recovered: How often the system trained on afterwards, or did what it must instead.
      longest_pause_seconds: Between two frames, while it lasted.
      frames_lost: Trained on and lost again, with the learner.
      frames_wrong: See `system.Books`.
      leftovers: See `system.System.leftovers`.
      note: What else is worth knowing; why it was skipped.
    """

    fault: str
    injected: int = 0
    recovered: int = 0
    longest_pause_seconds: float = 0.0
    frames_lost: int = 0
    frames_wrong: int = 0
    leftovers: list[str] = dataclasses.field(default_factory=list)
    note: str = ""

    @property
    def is_good(self) -> bool:
        """Whether everything held."""
        return self.injected == self.recovered and not self.frames_wrong and not self.leftovers


def table(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table."""
    lines = [
        "| fault | injected | recovered | longest pause, s | frames lost | wrong | left | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        lines.append(
            f"| {o.fault} | {o.injected} | {o.recovered} | {o.longest_pause_seconds:.1f}"
            f" | {o.frames_lost} | {o.frames_wrong} | {len(o.leftovers)} | {o.note} |"
        )
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """All outcomes as one JSON-able object."""
    return {
        "faults_injected": sum(o.injected for o in outcomes),
        "recovered": sum(o.recovered for o in outcomes),
        "longest_pause_seconds": round(
            max((o.longest_pause_seconds for o in outcomes), default=0), 1
        ),
        "frames_lost": sum(o.frames_lost for o in outcomes),
        "frames_counted_wrong": sum(o.frames_wrong for o in outcomes),
        "leftovers": [left for o in outcomes for left in o.leftovers],
    }
