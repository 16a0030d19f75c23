"""The R2D2 agent in this process: exploring, an update by hand, target network, restarts."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.learner import checkpoint, exploration
from services.learner.networks.registry import NetworkError
from services.learner.r2d2_agent import R2d2Agent
from services.learner.trainer import TrainingBatch
from services.learner.unrolls import RecordBatch
from services.shared.config import LearnerConfig
from services.shared.specs import (
    ActionSpec,
    ContinuousActionSpec,
    DataType,
    DiscreteActionSpec,
    EnvironmentSpec,
    TensorSpec,
)
from tests.unit.learner.harness import FIRST, LAST, MID

SPEC = EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (3,)),), DiscreteActionSpec((4,)))
BURN_IN, LENGTH = 2, 4
RECORDS = BURN_IN + LENGTH + 1
Variables = dict[str, npt.NDArray[np.generic]]


def never(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Acts at random."""
    return np.zeros(len(slots), np.float32)


def make(
    network: str = "mlp_lstm",
    explore: exploration.Exploration | None = None,
    seed: int = 0,
    optimizer: dict[str, Any] | None = None,
    **r2d2: Any,
) -> R2d2Agent:
    arguments: dict[str, Any] = {"sizes": [8]}
    if network == "mlp_lstm":
        arguments["lstm_size"] = 5
    config = LearnerConfig.model_validate(
        {
            "algorithm": "r2d2",
            "network": {"name": network, "arguments": arguments},
            "unroll_length": LENGTH,
            "batch_size": 2,
            "seed": seed,
            "optimizer": {"learning_rate": 0.01, **(optimizer or {})},
            "r2d2": {"burn_in": BURN_IN, "replay_period": 3, "n_steps": 2, "dueling_size": 6}
            | r2d2,
        }
    )
    return R2d2Agent(config, SPEC, explore or never)


def batch(random: np.random.Generator, agent: R2d2Agent, **changes: Any) -> RecordBatch:
    """Random records of the right shapes, an episode end among them."""
    index = np.tile(np.arange(1, RECORDS + 1, dtype=np.int32)[None, :, None], (2, 1, 1))
    step_type = np.full((2, RECORDS), MID, np.uint8)
    step_type[1, 3:5] = LAST, FIRST
    values: dict[str, Any] = {
        "observation": (random.normal(size=(2, RECORDS + 1, 3)).astype(np.float32),),
        "stack_index": (index,),
        "previous_action": random.integers(4, size=(2, RECORDS, 1), dtype=np.int32),
        "action": random.integers(4, size=(2, RECORDS, 1), dtype=np.int32),
        "reward": random.normal(size=(2, RECORDS)).astype(np.float32),
        "discount": np.ones((2, RECORDS), np.float32),
        "step_type": step_type,
        "policy_parameters": random.normal(size=(2, RECORDS, 4)).astype(np.float32),
        "initial_state": tuple(
            random.normal(size=part.shape).astype(part.dtype) for part in agent.initial_state(2)
        ),
        "policy_version": np.zeros((2, RECORDS), np.int64),
    }
    return RecordBatch(**{**values, **changes})


def act(agent: R2d2Agent, n: int) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32]]:
    action, q, _, _ = agent.act(
        np.arange(n),
        (np.ones((n, 3), np.float32),),
        np.zeros((n, 1), np.int32),
        np.zeros(n, np.float32),
        np.ones(n, bool),
        agent.initial_state(n),
    )
    return action, q


def save(directory: pathlib.Path, variables: Variables) -> checkpoint.Checkpoint:
    counters = {"updates": int(variables["optimizer/updates"])}
    return checkpoint.read(checkpoint.save(directory, variables, counters, SPEC, "", keep=1))


def assert_equal(variables: Variables, expected: Variables) -> None:
    assert variables.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(variables[name], value, err_msg=name, strict=True)


def part(variables: Variables, prefix: str) -> Variables:
    return {k.removeprefix(prefix): v for k, v in variables.items() if k.startswith(prefix)}


def test_an_update_by_hand(tmp_path: pathlib.Path) -> None:
    agent = make(discount=0.5)
    zeros = {name: np.zeros_like(value) for name, value in agent.variables().items()}
    agent.restore(save(tmp_path, zeros))
    assert act(agent, 3)[1].tolist() == [[0.0] * 4] * 3
    records = batch(
        np.random.default_rng(0),
        agent,
        policy_parameters=np.zeros((2, RECORDS, 4), np.float32),
        # The records before the unroll's first transition are burn-in.
        reward=np.array([[9, 9, 9, 1, 2, 4, 8], [9, 9, 9, 3, 9, 0, 1]], np.float32),
        discount=np.array([[1] * 7, [1, 1, 1, 0, 1, 1, 1]], np.float32),
    )
    update = agent.train(TrainingBatch(records, np.array([1.0, 0.5], np.float32)), frames=0)

    def h(x: float) -> float:
        return float(np.sqrt(x + 1) - 1 + 1e-3 * x)

    # All values are 0, two steps with a discount of 1/2: 1 + 1, 2 + 2, 4 + 4, 8. The second
    # sequence terminates with 3; then no transition; then 0 + 1/2, and 1.
    first = np.array([h(2), h(4), h(8), h(8)])
    second = np.array([h(3), h(0.5), h(1)])
    loss = 0.5 * (np.mean(first**2) + 0.5 * np.mean(second**2)) / 2
    assert update.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    errors = np.concatenate([first, second])
    assert update.metrics["td_error"] == pytest.approx(errors.mean(), rel=1e-5)
    assert update.metrics["q"] == update.metrics["behaviour_difference"] == 0
    assert update.priorities is not None
    np.testing.assert_allclose(
        update.priorities,
        [0.9 * h(8) + 0.1 * first.mean(), 0.9 * h(3) + 0.1 * second.mean()],
        rtol=1e-5,
    )
    assert agent.version == 1
    # Adam's first step is the learning rate, towards the returns.
    value = agent.variables()["network/head/value/bias"]
    assert value == pytest.approx(0.01, rel=1e-3)


def test_initial_priorities_are_those_of_the_recorded_values() -> None:
    agent = make("mlp", optimizer={"learning_rate": 0.0})
    random = np.random.default_rng(1)
    records: Any = batch(random, agent)
    # With its target equal to itself, training computes from the network's values what
    # initial_priorities computes from recorded ones.
    q = np.zeros((2, RECORDS, 4), np.float32)
    for t in range(RECORDS):
        _, q[:, t], _, _ = agent.act(
            np.arange(2),
            (records.observation[0][:, 1 + t],),
            records.previous_action[:, t],
            records.reward[:, t],
            records.step_type[:, t] == FIRST,
            (),
        )
    update = agent.train(TrainingBatch(records), frames=0)
    at = slice(BURN_IN, None)
    priorities = agent.initial_priorities(
        q[:, at],
        records.action[:, at],
        records.reward[:, at],
        records.discount[:, at],
        records.step_type[:, at],
    )
    assert update.priorities is not None
    np.testing.assert_allclose(priorities, update.priorities, rtol=1e-4)


def test_burn_in_reproduces_the_recorded_values() -> None:
    agent = make(optimizer={"learning_rate": 0.0})
    random = np.random.default_rng(2)
    # Ten records of 2 slots; the sequence is the last seven: it begins in mid-episode, and one
    # slot begins an episode within.
    steps = 10
    step_type = np.full((2, steps), MID, np.uint8)
    step_type[:, 0] = FIRST
    step_type[1, 7:9] = LAST, FIRST
    x = random.normal(size=(2, steps, 3)).astype(np.float32)
    reward = random.normal(size=(2, steps)).astype(np.float32)
    action = np.zeros((2, steps, 1), np.int32)
    q = np.zeros((2, steps, 4), np.float32)
    states = [agent.initial_state(2)]
    for t in range(steps):
        previous = action[:, t - 1] if t else np.full((2, 1), 3, np.int32)
        action[:, t], q[:, t], _, state = agent.act(
            np.arange(2),
            (x[:, t],),
            previous,
            reward[:, t],
            step_type[:, t] == FIRST,
            states[-1],
        )
        states.append(state)
    begin = steps - RECORDS
    assert np.abs(states[begin][0]).min() > 0
    records: dict[str, Any] = {
        "observation": (x[:, begin - 1 :],),
        "previous_action": action[:, begin - 1 : -1],
        "action": action[:, begin:],
        "reward": reward[:, begin:],
        "step_type": step_type[:, begin:],
        "policy_parameters": q[:, begin:],
    }
    good = batch(random, agent, **records, initial_state=states[begin])
    metrics = agent.train(TrainingBatch(good), frames=0).metrics
    assert metrics["behaviour_difference"] < 1e-6
    assert np.abs(q).max() > 1e-2
    # The comparison sees the state of another record: SEED RL's, B records later.
    late = batch(random, agent, **records, initial_state=states[begin + BURN_IN])
    assert agent.train(TrainingBatch(late), frames=0).metrics["behaviour_difference"] > 1e-4


def test_no_gradient_passes_through_the_burn_in() -> None:
    agent = make()
    random = np.random.default_rng(3)
    # The unroll begins an episode: nothing of the burn-in reaches it, whatever is in there.
    step_type = np.full((2, RECORDS), MID, np.uint8)
    step_type[:, BURN_IN] = FIRST
    records = batch(random, agent, step_type=step_type)
    other = make()
    observation: Any = records.observation[0].copy()
    observation[:, : BURN_IN + 1] += 5.0
    changed = RecordBatch(**{**vars(records), "observation": (observation,)})
    agent.train(TrainingBatch(records), frames=0)
    other.train(TrainingBatch(changed), frames=0)
    assert_equal(part(agent.variables(), "network/"), part(other.variables(), "network/"))


def test_the_target_network_is_copied_every_period() -> None:
    agent = make(target_update_period=3)
    random = np.random.default_rng(4)
    begin = part(agent.variables(), "network/")
    assert_equal(part(agent.variables(), "target_network/"), begin)
    for update in (1, 2, 3, 4):
        agent.train(TrainingBatch(batch(random, agent)), frames=0)
        online = part(agent.variables(), "network/")
        target = part(agent.variables(), "target_network/")
        if update < 3:
            assert_equal(target, begin)
        elif update == 3:
            assert_equal(target, online)
            third = online
        else:
            assert_equal(target, third)
            assert np.any(online["head/value/bias"] != third["head/value/bias"])


@pytest.mark.parametrize("network", ["mlp", "mlp_lstm"])
def test_k_and_k_updates_are_2k_updates(network: str, tmp_path: pathlib.Path) -> None:
    k = 4
    random = np.random.default_rng(5)
    whole = make(network, target_update_period=3)
    batches = [
        TrainingBatch(batch(random, whole), random.random(2).astype(np.float32))
        for _ in range(2 * k)
    ]
    saved: checkpoint.Checkpoint | None = None
    for i, records in enumerate(batches):
        if i == k:
            saved = save(tmp_path, whole.variables())
        assert whole.train(records, frames=0).metrics["skipped"] == 0
    assert saved is not None
    resumed = make(network, target_update_period=3, seed=7)
    resumed.restore(saved)
    for records in batches[k:]:
        resumed.train(records, frames=0)
    assert resumed.version == whole.version == 2 * k
    assert_equal(resumed.variables(), whole.variables())


def test_an_update_that_is_not_finite_changes_nothing() -> None:
    agent = make(target_update_period=1)
    random = np.random.default_rng(6)
    before = agent.variables()
    reward = np.full((2, RECORDS), np.nan, np.float32)
    update = agent.train(TrainingBatch(batch(random, agent, reward=reward)), frames=0)
    assert update.metrics["skipped"] == 1
    assert agent.version == 0
    assert_equal(agent.variables(), before)


def test_each_slot_explores_as_often_as_its_epsilon_says() -> None:
    n = 4000

    def explore(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return np.where(slots < n // 2, 0.0, 0.4).astype(np.float32)

    agent = make("mlp", explore)
    action, q = act(agent, n)
    best = np.argmax(q[0])
    assert np.all(action[: n // 2, 0] == best)
    counts = np.bincount(action[n // 2 :, 0], minlength=4) / (n // 2)
    # .6 + .1 for the best, .1 for each other one; standard deviations are below .011.
    expected = np.full(4, 0.1)
    expected[best] = 0.7
    np.testing.assert_allclose(counts, expected, atol=0.04)
    again, _ = act(agent, n)
    assert np.any(again != action)


@pytest.mark.parametrize(
    "action", [DiscreteActionSpec((3, 2)), ContinuousActionSpec((-1.0,), (1.0,))]
)
def test_other_actions_are_refused(action: ActionSpec) -> None:
    spec = EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (3,)),), action)
    config = LearnerConfig(algorithm="r2d2", unroll_length=80)
    with pytest.raises(NetworkError, match="allowed: one discrete choice"):
        R2d2Agent(config, spec, never)


def test_a_new_run_begins_with_a_checkpoints_network_as_its_target(tmp_path: pathlib.Path) -> None:
    other, new = make(seed=1), make(seed=2)
    new.begin_with(save(tmp_path, other.variables()))
    assert_equal(part(new.variables(), "network/"), part(other.variables(), "network/"))
    assert_equal(part(new.variables(), "target_network/"), part(other.variables(), "network/"))
