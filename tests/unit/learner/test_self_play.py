"""Who plays whom: opponents are past policies, one for an environment and episode."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.learner.inference import Arrays, Decisions
from services.learner.leases import LeaseTable
from services.learner.roles import Role
from services.learner.self_play import SelfPlay
from services.shared.config import SelfPlayConfig


class Policies:
    """The action says who acted, the state counts, the value is the slot."""

    version = 7
    past_policies = 3

    def act(
        self,
        slots: npt.NDArray[np.int64],
        observation: Arrays,
        previous_action: npt.NDArray[np.generic],
        reward: npt.NDArray[np.float32],
        first: npt.NDArray[np.bool_],
        state: Arrays,
        past: int | None = None,
    ) -> Decisions:
        who = np.full((len(slots), 1), 99 if past is None else past, np.int32)
        seen = np.stack([observation[0][:, 0], reward, first], axis=1).astype(np.float32)
        return Decisions(who, seen, slots.astype(np.float32), (state[0] + 1,))


def table(agents: int = 4, opponents: int = 2, environments: int = 30) -> LeaseTable:
    leases = LeaseTable(agents * environments, 30.0, opponent_agents=opponents)
    leases.join("a", environments, agents, "", agents=agents)
    return leases


def act(play: SelfPlay, slots: list[int], first: bool) -> Decisions:
    index = np.array(slots)
    n = len(slots)
    return play.act(
        index,
        (10.0 * index[:, None],),
        np.zeros((n, 1), np.int32),
        index.astype(np.float32),
        np.full(n, first),
        (index[:, None],),
    )


def test_leases_tell_agents_from_opponents() -> None:
    leases = LeaseTable(12, 30.0, opponent_agents=1)
    leases.join("a", 1, 6, "", agents=3)
    leases.join("e", 1, 3, "", Role.EVALUATION, agents=3)
    train, evaluate, opponent = Role.TRAINING, Role.EVALUATION, Role.OPPONENT
    trained = [train, train, opponent] * 2
    assert leases.roles.tolist() == [*trained, train, train, train, evaluate, evaluate, opponent]
    assert leases.environments.tolist() == [0, 0, 0, 3, 3, 3, 6, 7, 8, 9, 9, 9]
    assert (leases.training_slots, len(leases.evaluated_environments)) == (4, 1)


def test_agents_are_the_newest_policy_and_an_environments_opponents_one_past_policy() -> None:
    play = SelfPlay(Policies(), SelfPlayConfig(newest_share=0.0), table(), seed=1)
    assert play.version == 7
    slots = list(range(120))
    begun = act(play, slots, first=True).action.reshape(30, 4)
    assert (begun[:, :2] == 99).all()
    assert (begun[:, 2] == begun[:, 3]).all()
    # 30 draws of 3: each has a share of 1/3, with a standard deviation of 0.086.
    assert all(3 <= np.count_nonzero(begun[:, 2] == past) <= 19 for past in range(3))
    # They stay for the episode, and are drawn anew for the next one.
    assert (act(play, slots, first=False).action.reshape(30, 4) == begun).all()
    assert (act(play, slots, first=True).action.reshape(30, 4) != begun).any()


def test_every_slot_gets_its_own_answer() -> None:
    play = SelfPlay(Policies(), SelfPlayConfig(newest_share=0.0), table(), seed=1)
    slots = [117, 3, 2, 40, 0, 119]
    decisions = act(play, slots, first=True)
    assert decisions.value.tolist() == slots
    assert decisions.policy_parameters.tolist() == [[10.0 * s, s, 1.0] for s in slots]
    assert decisions.state[0][:, 0].tolist() == [s + 1 for s in slots]


def test_the_newest_policy_plays_its_share_of_opponents() -> None:
    play = SelfPlay(Policies(), SelfPlayConfig(newest_share=0.8), table(), seed=1)
    slots = list(range(120))
    opponents = np.concatenate(
        [act(play, slots, first=True).action.reshape(30, 4)[:, 3] for _ in range(40)]
    )
    # 1,200 draws: a standard deviation of 0.012.
    assert 0.75 < np.mean(opponents == 99) < 0.85
