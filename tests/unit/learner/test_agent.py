"""The agent in this process: acting, an update worked out by hand, and what a restart keeps."""

from __future__ import annotations

import ctypes
import math
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from services.learner import checkpoint
from services.learner.agent import Agent
from services.learner.checkpoint import CheckpointError
from services.learner.trainer import TrainingBatch
from services.learner.unrolls import RecordBatch
from services.learner.vtrace_agent import VtraceAgent
from services.shared.config import LearnerConfig
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec
from tests.unit.learner.harness import FIRST, LAST, MID

SPEC = EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (3,)),), DiscreteActionSpec((4,)))
LENGTH = 3  # T; batches of 2 unrolls
TRAINING = np.zeros(64, np.bool_)
Variables = dict[str, npt.NDArray[np.generic]]


def make(
    network: str = "mlp",
    evaluated: npt.NDArray[np.bool_] = TRAINING,
    mixed_precision: bool = False,
    **settings: Any,
) -> Agent:
    arguments: dict[str, Any] = {"sizes": [8]}
    if network == "mlp_lstm":
        arguments["lstm_size"] = 5
    config = LearnerConfig.model_validate(
        {
            "network": {
                "name": network,
                "arguments": arguments,
                "mixed_precision": mixed_precision,
            },
            "unroll_length": LENGTH,
            "batch_size": 2,
            "total_frames": 1000,
            **settings,
        }
    )
    return VtraceAgent(config, SPEC, evaluated)


def act(
    agent: Agent, x: npt.NDArray[np.float32], state: Any = (), first: bool = True
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32], Any]:
    n = len(x)
    decisions = agent.act(
        np.arange(n),
        (x,),
        np.zeros((n, 1), np.int32),
        np.zeros(n, np.float32),
        np.full(n, first),
        state,
    )
    assert decisions.value.shape == (n,)
    return decisions.action, decisions.policy_parameters, decisions.state


def batch(random: np.random.Generator, agent: Agent, **changes: Any) -> TrainingBatch:
    """Random records of the right shapes, an episode end among them."""
    index = np.tile(np.arange(1, LENGTH + 2, dtype=np.int32)[None, :, None], (2, 1, 1))
    values: dict[str, Any] = {
        "observation": (random.normal(size=(2, LENGTH + 2, 3)).astype(np.float32),),
        "stack_index": (index,),
        "previous_action": random.integers(4, size=(2, LENGTH + 1, 1), dtype=np.int32),
        "action": random.integers(4, size=(2, LENGTH + 1, 1), dtype=np.int32),
        "reward": random.normal(size=(2, LENGTH + 1)).astype(np.float32),
        "discount": np.ones((2, LENGTH + 1), np.float32),
        "step_type": np.array([[MID, MID, MID, MID], [MID, LAST, FIRST, MID]], np.uint8),
        "policy_parameters": random.normal(size=(2, LENGTH + 1, 4)).astype(np.float32),
        "initial_state": tuple(
            random.normal(size=part.shape).astype(part.dtype) for part in agent.initial_state(2)
        ),
        "policy_version": np.zeros((2, LENGTH + 1), np.int64),
    }
    return TrainingBatch(RecordBatch(**{**values, **changes}))


def save(directory: pathlib.Path, variables: Variables) -> checkpoint.Checkpoint:
    counters = {"updates": int(variables["optimizer/updates"])}
    return checkpoint.read(checkpoint.save(directory, variables, counters, SPEC, "", keep=1))


def assert_equal(variables: Variables, expected: Variables) -> None:
    assert variables.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(variables[name], value, err_msg=name, strict=True)


@pytest.fixture(scope="module")
def agent() -> Agent:
    """For tests that do not change it."""
    return make()


def test_an_update_worked_out_by_hand(tmp_path: pathlib.Path) -> None:
    agent = make(
        vtrace={"discount": 0.5, "baseline_cost": 0.1, "entropy": {"cost": 0.01}},
        optimizer={"learning_rate": 0.1},
    )
    # With all weights 0 the policy is uniform and every value 0.
    zeros = {name: np.zeros_like(value) for name, value in agent.variables().items()}
    agent.restore(save(tmp_path, zeros))
    for calls in (1, 2):
        action, parameters, state = act(agent, np.ones((5, 3), np.float32))
        assert action.shape == (5, 1)
        assert action.dtype == np.int32
        assert parameters.tolist() == [[0.0] * 4] * 5
        assert state == ()
        assert agent.variables()["act_calls"] == calls
    records = batch(
        np.random.default_rng(0),
        agent,
        policy_parameters=np.zeros((2, 4, 4), np.float32),
        reward=np.array([[9, 1, 2, 4], [9, 1, 0, 2]], np.float32),
        discount=np.array([[1, 1, 1, 1], [1, 0, 1, 1]], np.float32),
    )
    metrics = agent.train(records, frames=6).metrics
    # Discounted by 1/2 the first slot's returns are 1 + 1 + 1, 2 + 2, 4. The second slot's first
    # transition ends its episode with 1, the next is none, the last gets 2: five transitions.
    assert metrics["policy_loss"] == pytest.approx(math.log(4) * (3 + 4 + 4 + 1 + 2) / 5)
    assert metrics["baseline_loss"] == pytest.approx(0.5 * (9 + 16 + 16 + 1 + 4) / 5)
    assert metrics["entropy"] == pytest.approx(math.log(4))
    assert metrics["loss"] == pytest.approx(math.log(4) * 2.8 + 0.46 - 0.01 * math.log(4))
    assert metrics["baseline"] == metrics["behaviour_difference"] == metrics["skipped"] == 0
    assert metrics["importance_ratio"] == pytest.approx(1)
    assert metrics["learning_rate"] == pytest.approx(0.1)
    assert agent.version == 1
    changed = agent.variables()
    # Adam's first step is the learning rate, in the direction that lowers the loss: up, towards
    # the returns, for the value of what is above 0.
    assert changed["network/head/baseline/bias"] == pytest.approx(0.1, rel=1e-4)
    assert changed["optimizer/updates"] == 1


@pytest.mark.parametrize("network", ["mlp", "mlp_lstm"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_k_and_k_updates_are_2k_updates(
    network: str, optimizer: str, tmp_path: pathlib.Path
) -> None:
    settings: dict[str, Any] = {
        "network": network,
        # Both depend on the frames, the second on a variable of its own.
        "optimizer": {"name": optimizer, "learning_rate": {"initial": 0.01}, "momentum": 0.5},
        "vtrace": {"entropy": {"cost": 0.01, "target": 1.0}},
    }
    k = 4
    whole = make(**settings)
    random = np.random.default_rng(1)
    batches = [batch(random, whole) for _ in range(2 * k)]
    x = random.normal(size=(64, 3)).astype(np.float32)
    saved: checkpoint.Checkpoint | None = None
    for i, records in enumerate(batches):
        if i == k:
            saved = save(tmp_path, whole.variables())
        assert whole.train(records, frames=100 * i).metrics["skipped"] == 0
        act(whole, x, whole.initial_state(64))
    assert saved is not None
    # Another seed gives other weights: all that is equal afterwards was restored. Acting draws
    # from the run's seed, though, so that is not compared.
    resumed = make(**settings, seed=7)
    assert not np.array_equal(
        resumed.variables()["network/hidden/0/kernel"], whole.variables()["network/hidden/0/kernel"]
    )
    resumed.restore(saved)
    assert resumed.version == k
    for i, records in enumerate(batches[k:], start=k):
        resumed.train(records, frames=100 * i)
        act(resumed, x, resumed.initial_state(64))
    assert resumed.version == whole.version == 2 * k
    assert_equal(resumed.variables(), whole.variables())


def test_a_restored_agent_draws_the_actions_that_would_have_come_next(
    tmp_path: pathlib.Path,
) -> None:
    x = np.random.default_rng(2).normal(size=(256, 3)).astype(np.float32)
    original = make()
    first, _, _ = act(original, x)
    saved = save(tmp_path, original.variables())
    second, _, _ = act(original, x)
    restored = make()
    restored.restore(saved)
    again, _, _ = act(restored, x)
    np.testing.assert_array_equal(again, second)
    assert not np.array_equal(first, second)
    # Untrained it is almost uniform: each of 4 actions about 64 times, standard deviation 7.
    assert np.all(np.abs(np.bincount(second[:, 0], minlength=4) - 64) < 35)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network/hidden/0/kernel": None}, "network/hidden/0/kernel is missing"),
        ({"optimizer/m/network/head/policy/bias": None}, "m/network/head/policy/bias is missing"),
        ({"act_calls": None}, "act_calls is missing"),
        ({"network/more": np.zeros(2, np.float32)}, "network/more is not expected"),
        (
            {"network/head/baseline/bias": np.zeros(2, np.float32)},
            r"network/head/baseline/bias is float32\[2\], not float32\[1\]",
        ),
        (
            {"optimizer/updates": np.array(3, np.int32)},
            r"optimizer/updates is int32\[\], not int64\[\]",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(
    agent: Agent, change: Variables, message: str, tmp_path: pathlib.Path
) -> None:
    before = agent.variables()
    changed = {name: value for name, value in {**before, **change}.items() if value is not None}
    counters = {"updates": 3}
    path = checkpoint.save(tmp_path, changed, counters, SPEC, "", keep=1)
    with pytest.raises(CheckpointError, match=message):
        agent.restore(checkpoint.read(path))
    assert_equal(agent.variables(), before)


def test_a_new_run_begins_with_a_checkpoints_network_alone(tmp_path: pathlib.Path) -> None:
    trained = make()
    trained.train(batch(np.random.default_rng(3), trained), 0)
    new = make()
    untouched = new.variables()
    new.begin_with(save(tmp_path, trained.variables()))
    expected = {
        name: trained.variables()[name] if name.startswith("network/") else value
        for name, value in untouched.items()
    }
    assert_equal(new.variables(), expected)
    assert (trained.version, new.version) == (1, 0)
    assert np.any(
        new.variables()["network/hidden/0/kernel"] != untouched["network/hidden/0/kernel"]
    )
    with pytest.raises(CheckpointError, match="network/core/bias is missing"):
        make("mlp_lstm").begin_with(save(tmp_path, trained.variables()))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_changes_nothing(bad: float) -> None:
    agent = make("mlp_lstm", vtrace={"entropy": {"cost": 0.01, "target": 1.0}})
    random = np.random.default_rng(3)
    agent.train(batch(random, agent), frames=0)
    before = agent.variables()
    reward = np.full((2, LENGTH + 1), bad, np.float32)
    assert agent.train(batch(random, agent, reward=reward), frames=0).metrics["skipped"] == 1
    assert agent.version == 1
    assert_equal(agent.variables(), before)
    assert agent.train(batch(random, agent), frames=0).metrics["skipped"] == 0
    assert agent.version == 2


def test_an_almost_sure_policy_in_bfloat16_learns_with_finite_numbers(
    tmp_path: pathlib.Path,
) -> None:
    agent = make("mlp_lstm", mixed_precision=True)
    variables = agent.variables()
    # The first of four actions has a logit of 1000 and more, whatever is seen.
    variables["network/head/policy/bias"] = np.array([1000.3, 0, -1000, 0], np.float32)
    agent.restore(save(tmp_path, variables))
    random = np.random.default_rng(0)
    state = agent.initial_state(64)
    action, parameters, _ = act(agent, random.normal(size=(64, 3)).astype(np.float32), state)
    assert set(action[:, 0]) == {0}
    assert parameters.dtype == np.float32
    # bfloat16's next number to 1000 is 1004.
    assert parameters[:, 0] == pytest.approx(1000.3, abs=0.3)

    # Among the actions taken are some that the policy would never take: log-probability -2000.
    records = batch(
        random,
        agent,
        action=np.array([[[0], [1], [2], [3]], [[2], [0], [0], [0]]], np.int32),
        policy_parameters=np.tile(np.array([0, 1000, -1000, 0], np.float32), (2, LENGTH + 1, 1)),
    )
    metrics = agent.train(records, frames=6).metrics
    assert metrics["skipped"] == 0
    for name in ("loss", "policy_loss", "baseline_loss", "entropy", "gradient_norm"):
        assert math.isfinite(metrics[name]), name
    assert metrics["entropy"] == pytest.approx(0, abs=1e-6)
    changed = agent.variables()
    assert all(np.isfinite(value).all() for value in changed.values())


def test_training_reproduces_what_inference_recorded() -> None:
    agent = make("mlp_lstm", optimizer={"learning_rate": 0})
    random = np.random.default_rng(4)
    # Eight records of 2 slots; the unroll is the last four of them: its first record is in
    # mid-episode, and one slot begins an episode within.
    steps = 8
    step_type = np.full((2, steps), MID, np.uint8)
    step_type[:, 0] = FIRST
    step_type[1, 5:7] = LAST, FIRST
    x = random.normal(size=(2, steps, 3)).astype(np.float32)
    reward = random.normal(size=(2, steps)).astype(np.float32)
    action = np.zeros((2, steps, 1), np.int32)
    parameters = np.zeros((2, steps, 4), np.float32)
    states = [agent.initial_state(2)]
    for t in range(steps):
        previous = action[:, t - 1] if t else np.full((2, 1), 3, np.int32)
        action[:, t], parameters[:, t], _, state = agent.act(
            np.arange(2), (x[:, t],), previous, reward[:, t], step_type[:, t] == FIRST, states[-1]
        )
        states.append(state)
    begin = steps - LENGTH - 1
    assert np.abs(states[begin][0]).min() > 0
    unroll = slice(begin, steps)
    records: dict[str, Any] = {
        "observation": (x[:, begin - 1 :],),
        "previous_action": action[:, begin - 1 : -1],
        "action": action[:, unroll],
        "reward": reward[:, unroll],
        "step_type": step_type[:, unroll],
        "policy_parameters": parameters[:, unroll],
    }
    good = batch(random, agent, **records, initial_state=states[begin])
    metrics = agent.train(good, frames=0).metrics
    assert metrics["behaviour_difference"] < 1e-6
    assert metrics["importance_ratio"] == pytest.approx(1, abs=1e-6)
    assert metrics["skipped"] == 0
    assert np.abs(parameters).max() > 1e-3
    # The comparison sees a state that is not the right one.
    wrong = batch(random, agent, **records, initial_state=states[0])
    assert agent.train(wrong, frames=0).metrics["behaviour_difference"] > 1e-4


def test_greedy_evaluation_takes_the_likeliest_action_and_training_draws(agent: Agent) -> None:
    x = np.random.default_rng(5).normal(size=(64, 3)).astype(np.float32)
    evaluated = np.tile([False, True], 32)
    drawn, parameters, _ = act(agent, x)
    likeliest = parameters.argmax(axis=1)
    assert len(set(likeliest.tolist())) > 1
    assert (drawn[:, 0] != likeliest).any()
    mixed, same, _ = act(make(evaluated=evaluated, evaluation={"greedy": True}), x)
    np.testing.assert_array_equal(parameters, same)
    np.testing.assert_array_equal(mixed[:, 0], np.where(evaluated, likeliest, drawn[:, 0]))
    # Without the setting evaluation draws, too.
    np.testing.assert_array_equal(act(make(evaluated=evaluated), x)[0], drawn)


def test_past_policies_are_kept_every_period_and_survive_a_restart(
    tmp_path: pathlib.Path,
) -> None:
    """With a pool of 2 and a period of 2: after update 2 at place 1, after update 4 at place 0."""
    settings: dict[str, Any] = {"self_play": {"pool_size": 2, "snapshot_period": 2}}
    agent, random = make(**settings), np.random.default_rng(0)
    x = random.normal(size=(6, 3)).astype(np.float32)

    def parameters(policy: Agent, past: int | None = None) -> npt.NDArray[np.float32]:
        inputs = np.zeros((6, 1), np.int32), np.zeros(6, np.float32), np.ones(6, np.bool_)
        return policy.act(np.arange(6), (x,), *inputs, (), past=past).policy_parameters

    newest = [parameters(agent)]
    available = [agent.past_policies]
    for _ in range(5):
        agent.train(batch(random, agent), 0)
        newest.append(parameters(agent))
        available.append(agent.past_policies)
    assert available == [1, 1, 2, 2, 2, 2]
    assert np.abs(newest[4] - newest[2]).max() > 0
    np.testing.assert_array_equal(parameters(agent, past=1), newest[2])
    np.testing.assert_array_equal(parameters(agent, past=0), newest[4])
    np.testing.assert_array_equal(parameters(agent), newest[5])

    again = make(**settings)
    np.testing.assert_array_equal(parameters(again, past=1), newest[0])
    again.restore(save(tmp_path, agent.variables()))
    np.testing.assert_array_equal(parameters(again, past=1), newest[2])
    np.testing.assert_array_equal(parameters(again, past=0), newest[4])


def test_an_evaluation_plays_against_a_checkpoints_policy_alone(tmp_path: pathlib.Path) -> None:
    settings: dict[str, Any] = {"self_play": {"pool_size": 2, "snapshot_period": 1}}
    agent, other = make(**settings), make()
    random = np.random.default_rng(0)
    other.train(batch(random, other), 0)
    for _ in range(3):
        agent.train(batch(random, agent), 0)
    before = agent.variables()
    agent.play_against(save(tmp_path, other.variables()))
    expected = {
        name: other.variables()["network/" + name.split("/", 2)[2]]
        if name.startswith("past_policies/")
        else value
        for name, value in before.items()
    }
    assert_equal(agent.variables(), expected)
    name = "hidden/0/kernel"
    assert np.any(expected[f"past_policies/1/{name}"] != before[f"past_policies/1/{name}"])
    with pytest.raises(CheckpointError, match="network/core/bias is missing"):
        make("mlp_lstm", **settings).play_against(save(tmp_path / "2", other.variables()))


def test_updates_leave_no_memory_behind() -> None:
    agent = make()
    records = batch(np.random.default_rng(0), agent)
    sizes = []
    for frames in range(700):
        if frames in (200, 699):
            sizes.append(memory_in_use())
        agent.train(records, frames)
    assert sizes[1] - sizes[0] < 100 * 499


class Mallinfo2(ctypes.Structure):
    """See mallinfo(3); `uordblks`, the bytes given out, is the eighth of the numbers."""

    _fields_ = (("before", ctypes.c_size_t * 7), ("uordblks", ctypes.c_size_t),
                ("after", ctypes.c_size_t * 2))  # fmt: skip


def memory_in_use() -> int:
    """Bytes that the C library has given out and not got back, TensorFlow's among them."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    return int(mallinfo2().uordblks)
