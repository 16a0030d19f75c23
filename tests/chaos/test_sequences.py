"""The audit of R2D2's sequences finds what it is there to find."""

from __future__ import annotations

import numpy as np
import pytest

from tests.chaos import sequences

# Instance, first record and learner of sequences of 5 records, of which 2 are new in each.
_GOOD = [(1, 1, 7), (1, 3, 7), (1, 5, 7), (2, 1, 7), (1, 20, 8)]


def _audit(rows: list[tuple[int, int, int]]) -> sequences.Audit:
    first = np.array([row[1] for row in rows])
    record = first[:, None] + np.arange(5)
    return sequences.Audit(
        learner=np.array([row[2] for row in rows], np.uint64),
        slot=np.zeros(len(rows), np.int64),
        instance=np.repeat([[row[0]] for row in rows], 5, axis=1),
        record=record,
        real=record % 4 != 0,  # records 4, 8, 20 and 24 begin episodes
        chosen=np.ones((len(rows), 5), np.bool_),
        acts=np.ones((len(rows), 5), np.bool_),
        version=np.zeros((len(rows), 5), np.int64),
    )


def test_good_sequences_are_good() -> None:
    audit = _audit(_GOOD)
    assert (audit.mixed(), audit.repeated(2)) == (0, 0)
    # Records 2 to 9 of instance 1 but for 4 and 8, records 2, 3 and 5 of instance 2.
    assert audit.steps(np.uint64(7)) == 6 + 3
    assert audit.steps(np.uint64(8)) == 3  # 21, 22 and 23


@pytest.mark.parametrize(
    "row",
    [
        (1, 3, 7),  # twice
        (2, 2, 7),  # between two periods
        (2, 3, 8),  # by a learner that came later
    ],
)
def test_a_sequence_too_many_is_found(row: tuple[int, int, int]) -> None:
    assert _audit([*_GOOD, row]).repeated(2) >= 1


def test_mixed_sequences_are_found() -> None:
    audit = _audit(_GOOD)
    audit.instance[0, 3:] = 9
    audit.record[1, 4] += 1
    assert audit.mixed() == 2


def test_slots_that_explore_otherwise_are_found() -> None:
    epsilon = 0.4 ** (1 + 7 * np.arange(4) / 3)
    random = np.random.default_rng(0).random((4, 2000)) < epsilon[:, None] / 2
    audit = sequences.Audit(
        learner=np.zeros(4, np.uint64),
        slot=np.arange(4),
        instance=np.repeat([[1], [2], [3], [4]], 2000, axis=1),
        record=np.tile(np.arange(2000), (4, 1)),
        real=np.ones((4, 2000), np.bool_),
        chosen=~random,
        acts=np.ones((4, 2000), np.bool_),
        version=np.full((4, 2000), 6),
    )
    stage = sequences.Stage(4, 5, 6)
    assert sequences.epsilons(audit, [stage]).recovered == 1
    audit.slot[:] = [1, 3, 5, 6]
    assert sequences.epsilons(audit, [stage]).recovered == 1
    for slots in ([1, 0, 2, 3], [0, 1, 2, 2]):  # exchanged; two environments in one
        audit.slot[:] = slots
        assert sequences.epsilons(audit, [stage]).recovered == 0
