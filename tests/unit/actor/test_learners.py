"""Which learner a worker joins, and how probably it leaves it."""

from __future__ import annotations

import pytest

from services.actor.learners import fewest_leased, probability_to_leave
from services.shared.generated.seedpod.inference.v1 import inference_pb2


def test_the_learner_with_the_fewest_leases_is_joined() -> None:
    leased = {"a": 32, "b": 16, "c": 16}
    statuses = {name: inference_pb2.GetStatusResponse(leased_slots=n) for name, n in leased.items()}
    assert fewest_leased(["a", "b", "c"], statuses) == "b"
    assert fewest_leased(["c", "a", "b"], statuses) == "c"
    # One that does not answer is left out, unless none does.
    del statuses["b"], statuses["c"]
    assert fewest_leased(["b", "a", "c"], statuses) == "a"
    assert fewest_leased(["b", "a", "c"], {}) == "b"


@pytest.mark.parametrize(
    ("live", "slots", "probability"),
    [
        ({"a": 32, "b": 32}, 16, 0),
        # To move 16 would only turn it round.
        ({"a": 32, "b": 16}, 16, 0),
        # Of two workers one leaves, of the six at "a" three.
        ({"a": 32, "b": 0}, 16, 1 / 2),
        ({"a": 96, "b": 0}, 16, 1 / 2),
        # (64 - 32) / 64: a third learner has come.
        ({"a": 64, "b": 32, "c": 0}, 16, 1 / 2),
        ({"a": 0, "b": 64}, 16, 0),
    ],
)
def test_just_the_surplus_leaves(live: dict[str, int], slots: int, probability: float) -> None:
    assert probability_to_leave(live, "a", slots) == pytest.approx(probability)
