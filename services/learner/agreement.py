"""What the learners of a run know of each other: steps so far, and whether to go on.

Every update carries a tally beside the gradients and brings back the sum of all learners' tallies.
So all of them know the same after the same update, and all end after the same update: a learner
that made one more would wait for the others for ever.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.learner.statistics import Statistics
from services.shared.specs import EnvironmentSpec

Tally = npt.NDArray[np.float32]
# New steps, new episodes, wishes to stop. float32 holds whole numbers up to 2^24.
NO_TALLY: Tally = np.zeros(3, np.float32)


class Agreement:
    """One learner's view of what all have agreed on.

    Attributes:
      learners: How many there are; one agrees with itself at once.
      stopped: A learner has asked to stop.
    """

    def __init__(
        self, statistics: Statistics, spec: EnvironmentSpec, total_frames: int, learners: int = 1
    ) -> None:
        """Begins with what the statistics have counted so far: the checkpoint's steps."""
        self._statistics = statistics
        self._spec = spec
        self._total_frames = total_frames
        self.learners = learners
        self.stopped = False
        self._agreed_steps = self._offered_steps = statistics.steps
        self._offered_episodes = statistics.episodes

    @property
    def frames(self) -> int:
        """Frames of all learners, that schedules and the run's end go by."""
        if self.learners == 1:
            return self._statistics.frames
        return self._statistics.frames_of(self._agreed_steps, self._spec)

    @property
    def is_over(self) -> bool:
        """Whether all frames are taken, or a learner has asked to stop."""
        return self.stopped or self.frames >= self._total_frames

    def offer(self, stop: bool) -> Tally:
        """This learner's tally for the next update."""
        steps, episodes = self._statistics.steps, self._statistics.episodes
        tally = np.array(
            [steps - self._offered_steps, episodes - self._offered_episodes, stop], np.float32
        )
        self._offered_steps, self._offered_episodes = steps, episodes
        return tally

    def take(self, own: Tally, total: Tally) -> None:
        """Takes notice of what all learners have offered."""
        if self.learners == 1:
            return
        steps, episodes, _ = (round(float(x)) for x in total - own)
        self._statistics.add_elsewhere(steps, episodes, self._spec)
        self._agreed_steps += round(float(total[0]))
        self.stopped = self.stopped or bool(total[2] > 0)
