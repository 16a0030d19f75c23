"""An audit of every sequence that replay took, from its log, and of how their slots explored.

The log has each message as the learner sent it, in order, whatever was killed meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from services.learner import sequences
from services.replay import ingest, segment_log
from services.replay.segment_log import INSERT_HEADER, DamagedSegment, Kind
from services.shared.replay.codec import BatchBuffer
from services.shared.specs import StepType
from tests.chaos import environment
from tests.chaos.outcome import Outcome

EPSILON, EPSILON_EXPONENT = 0.4, 7.0
_ACTIONS = 2
# Of the standard deviation; more than the worst of some hundred slots comes to by chance.
_DEVIATIONS = 5.0


@dataclasses.dataclass
class Audit:
    """n sequences of L records, in the order of their insertion.

    Attributes:
      learner: uint64 [n], another number for each learner process.
      slot: int64 [n], that the environment had.
      instance: int64 [n, L], which environment each record is of.
      record: int64 [n, L], its number there.
      real: bool [n, L], whether a step led to the record.
      chosen: bool [n, L], whether its action is the one of the largest Q-value.
      acts: bool [n, L], whether its action was taken: not after an episode's end.
      version: int64 [n, L], updates of the network that chose.
    """

    learner: npt.NDArray[np.uint64]
    slot: npt.NDArray[np.int64]
    instance: npt.NDArray[np.int64]
    record: npt.NDArray[np.int64]
    real: npt.NDArray[np.bool_]
    chosen: npt.NDArray[np.bool_]
    acts: npt.NDArray[np.bool_]
    version: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.learner)

    def mixed(self) -> int:
        """Sequences that are not one instance's records in a row."""
        same = (self.instance == self.instance[:, :1]).all(axis=1)
        in_row = (np.diff(self.record, axis=1) == 1).all(axis=1)
        return int(np.count_nonzero(~(same & in_row)))

    def repeated(self, period: int) -> int:
        """Sequences that an instance has twice, or that overlap otherwise than by periods."""
        wrong = 0
        rows = zip(self.instance[:, 0], self.record[:, 0], self.learner, strict=True)
        ordered = sorted(rows)
        length = self.record.shape[1]
        for (instance, first, learner), later in itertools.pairwise(ordered):
            if later[0] != instance or later[1] >= first + length:
                continue
            distance = later[1] - first
            wrong += not (distance and distance % period == 0 and later[2] == learner)
        return wrong

    def steps(self, learner: np.uint64) -> int:
        """Real steps of a learner's sequences, those that several share counted once."""
        mine = self.learner == learner
        records = self.instance[mine] << 32 | self.record[mine]
        # What led to a sequence's first record is no step of its own.
        return len(np.unique(records[:, 1:][self.real[mine][:, 1:]]))


def read(directory: pathlib.Path, length: int) -> Audit:
    """Reads the log of a table that has lost no item yet; replay may be writing to it.

    Args:
      directory: Of the table.
      length: Records of each sequence.
    """
    layout = sequences.layout(environment.SPEC, _ACTIONS, (np.zeros((1, 1), np.float32),))
    learners: list[int] = []
    items: list[tuple[list[memoryview], int]] = []
    held: dict[tuple[int, int], memoryview] = {}
    for _, path in segment_log.segment_paths(directory):
        # A killed process may have left half a record, which it did not acknowledge.
        with contextlib.suppress(DamagedSegment):
            for kind, body in segment_log.read_segment(path):
                if kind is not Kind.INSERT:
                    continue
                learner, _ = INSERT_HEADER.unpack_from(body)
                message = ingest.parse(body[INSERT_HEADER.size :])
                stops = np.cumsum(message.sizes).tolist()
                for block, size, stop in zip(
                    message.block_ids.tolist(), message.sizes.tolist(), stops, strict=True
                ):
                    held[learner, block] = message.payload[stop - size : stop]
                names = message.item_block_ids.tolist()
                for count, offset in zip(message.counts, message.offsets, strict=True):
                    used, names = names[:count], names[count:]
                    items.append(([held[learner, name] for name in used], int(offset)))
                    learners.append(learner)
                for block in message.released.tolist():
                    held.pop((learner, block), None)
    buffer = BatchBuffer(layout, len(items), length + 1)
    for row, (blocks, offset) in enumerate(items):
        buffer.decode_item(row, blocks, offset, length + 1)
    # Before the first record comes the one that the previous action is taken from.
    steps = {name: values[:, 1:] for name, values in buffer.steps.items()}
    marks = steps["observation/mark"].reshape(-1, length, 2).astype(np.int64)
    best = steps["policy_parameters"].argmax(axis=-1)
    return Audit(
        learner=np.array(learners, np.uint64),
        slot=buffer.context["state/0"].reshape(-1).astype(np.int64),
        instance=marks[..., 0],
        record=marks[..., 1],
        real=steps["step_type"] != StepType.FIRST,
        chosen=steps["action"][..., 0] == best,
        acts=steps["step_type"] != StepType.LAST,
        version=steps["policy_version"],
    )


@dataclasses.dataclass(frozen=True)
class Stage:
    """A time in which so many env slots were in use: from one version of the network to another."""

    slots: int
    first_version: int
    last_version: int


def is_over(audit: Audit, stage: Stage) -> bool:
    """Whether replay has later records of each slot, and so all of the stage's."""
    later = (audit.version > stage.last_version).any(axis=1)
    return len(np.unique(audit.slot[later])) == stage.slots


def epsilons(audit: Audit, stages: Sequence[Stage]) -> Outcome:
    """Holds what each slot did at random against Horgan et al. 2018 (arXiv 1803.00933), 4.1.

    The i-th slot of N acts at random with 0.4^(1 + 7 i / (N - 1)), and of two actions a random
    one is the better one half of the time.
    """
    outcome = Outcome("epsilons of each slot meanwhile", injected=len(stages))
    worst, fewest = 0.0, None
    for stage in stages:
        inside = (audit.version > stage.first_version) & (audit.version <= stage.last_version)
        # A record may be in two sequences.
        rows, columns = np.nonzero(inside & audit.acts)
        keys = audit.instance[rows, columns] << 32 | audit.record[rows, columns]
        _, once = np.unique(keys, return_index=True)
        rows, columns = rows[once], columns[once]
        slots, instances = audit.slot[rows], audit.instance[rows, columns]
        pairs = np.unique(np.stack([slots, instances], axis=1), axis=0)
        one_each = all(len(np.unique(column)) == len(pairs) == stage.slots for column in pairs.T)
        # Which slots are in use depends on which actors joined first.
        places = np.searchsorted(np.unique(slots), slots)
        count = np.bincount(places, minlength=stage.slots)[: stage.slots]
        random = np.bincount(places[~audit.chosen[rows, columns]], minlength=stage.slots)
        share = np.arange(stage.slots) / (stage.slots - 1)
        expected = EPSILON ** (1 + EPSILON_EXPONENT * share) / 2
        # One more than there were is no deviation where hardly any are expected.
        excess = np.maximum(0.0, np.abs(random[: stage.slots] - count * expected) - 1.0)
        deviations = excess / np.sqrt(np.maximum(1.0, count * expected * (1 - expected)))
        worst = max(worst, float(deviations.max()))
        fewest = int(count.min()) if fewest is None else min(fewest, int(count.min()))
        outcome.recovered += bool(one_each and deviations.max() < _DEVIATIONS)
    outcome.note = (
        f"{', '.join(str(stage.slots) for stage in stages)} slots, one environment each; shares of"
        f" random actions at most {worst:.1f} standard deviations off, of {fewest} actions or more"
    )
    return outcome
