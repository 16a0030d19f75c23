"""R2D2's mathematics: values worked out by hand, and slow twins that follow the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from services.learner import exploration, r2d2
from services.learner.roles import Role
from services.shared.config import R2d2Config
from tests.unit.learner.harness import FIRST, LAST, MID

Array = npt.NDArray[Any]


def floats(values: Any) -> tf.Tensor:
    return tf.constant(values, tf.float32)


@pytest.mark.parametrize(
    ("x", "expected"), [(1, 0.415214), (-1, -0.415214), (100, 9.149876), (1e6, 1999.0005), (0, 0)]
)
def test_rescaling_by_hand(x: float, expected: float) -> None:
    assert float(r2d2.rescale(floats(x), 1e-3)) == pytest.approx(expected, rel=2e-6)


def test_rescaling_is_undone_in_float32() -> None:
    size = np.concatenate([np.logspace(-6, 6, 400), [0.0]]).astype(np.float32)
    x = np.concatenate([-size, size])
    back = r2d2.unrescale(r2d2.rescale(floats(x), 1e-3), 1e-3).numpy()
    np.testing.assert_allclose(back, x, rtol=1e-5)


@pytest.mark.parametrize(
    ("done", "n", "expected"),
    [
        ([0, 0, 1, 0], 1, [6, 12, 3, 24]),
        ([0, 0, 1, 0], 2, [7, 3.5, 3, 24]),
        ([0, 0, 0, 0], 3, [6.5, 9.5, 15, 24]),
        # Longer than the sequence: all use what there is, 3 + .5 * 24 and so on.
        ([0, 0, 0, 0], 9, [5.75, 9.5, 15, 24]),
    ],
)
def test_n_step_returns_by_hand(done: list[int], n: int, expected: list[float]) -> None:
    discount = 0.5 * (1 - np.array(done))
    returns = r2d2.n_step_returns(
        floats([[1], [2], [3], [4]]),
        floats(discount[:, None]),
        floats([[10], [20], [30], [40]]),
        tf.constant(np.array(done, bool)[:, None]),
        n,
    )
    np.testing.assert_allclose(returns[:, 0], expected)


def test_a_truncated_episode_counts_the_value_of_its_last_record() -> None:
    # As above, but the third record is the last of an episode that was cut off, not terminated:
    # 3 + .5 * 30 = 18, before it 2 + .5 * 18 = 11, before it 1 + .5 * 11 = 6.5 for three steps.
    returns = r2d2.n_step_returns(
        floats([[1], [2], [3], [4]]),
        floats([[0.5]] * 4),
        floats([[10], [20], [30], [40]]),
        tf.constant([[False], [False], [True], [False]]),
        3,
    )
    np.testing.assert_allclose(returns[:, 0], [6.5, 11, 18, 24])


def test_sequence_priority_by_hand() -> None:
    errors = floats([[1, 0.0], [-2, 0.0], [4, 0.0], [0, 0.0]])
    real = tf.constant([[True, False]] * 3 + [[False, False]])
    # .9 * 4 + .1 * 7 / 3; a sequence without transitions has no errors.
    np.testing.assert_allclose(
        r2d2.sequence_priorities(errors, real, 0.9), [3.8333333, 0.0], rtol=1e-6
    )


def test_the_online_network_chooses_and_the_target_network_values() -> None:
    config = R2d2Config(discount=0.5, n_steps=1)
    # At the second record the online network prefers action 1, which the target network holds
    # for worth h(3); its own best would be action 0.
    h3 = float(r2d2.rescale(floats(3.0), 1e-3))
    q = floats([[[0.25, 9.0]], [[1.0, 2.0]]])
    target_q = floats([[[7.0, 7.0]], [[50.0, h3]]])
    errors, real = r2d2.td_errors(
        config,
        q,
        target_q,
        action=tf.constant([[0], [0]]),
        reward=floats([[100.0], [2.0]]),
        discount=floats([[1.0], [1.0]]),
        step_type=tf.constant([[MID], [MID]]),
    )
    # h(2 + .5 * 3) - .25; the first record's reward belongs to the action before it.
    expected = np.sqrt(4.5) - 1 + 1e-3 * 3.5 - 0.25
    np.testing.assert_allclose(errors, [[expected]], rtol=1e-5)
    assert real.numpy().tolist() == [[True]]


def slow_td_errors(
    config: R2d2Config,
    q: Array,
    target_q: Array,
    action: Array,
    reward: Array,
    discount: Array,
    step_type: Array,
) -> tuple[Array, Array]:
    """One transition after the other, in float64, straight from the definition."""

    def h(x: float) -> float:
        return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + config.rescaling_epsilon * x)

    def h_inverse(y: float) -> float:
        e = config.rescaling_epsilon
        root = (np.sqrt(1 + 4 * e * (abs(y) + 1 + e)) - 1) / (2 * e)
        return float(np.sign(y) * (root**2 - 1))

    length, batch = reward.shape
    errors = np.zeros((length - 1, batch))
    real = np.zeros((length - 1, batch), bool)
    for b in range(batch):
        for t in range(length - 1):
            if step_type[t, b] == LAST:
                continue
            real[t, b] = True
            total, factor, at = 0.0, 1.0, t
            for _ in range(config.n_steps):
                if at + 1 == length:
                    break
                at += 1
                total += factor * reward[at, b]
                factor *= config.discount * discount[at, b]
                if step_type[at, b] == LAST:
                    break
            total += factor * h_inverse(target_q[at, b, np.argmax(q[at, b])])
            errors[t, b] = h(total) - q[t, b, action[t, b]]
    return errors, real


@pytest.mark.parametrize("n_steps", [1, 2, 5, 50])
def test_td_errors_equal_the_slow_twin(n_steps: int) -> None:
    config = R2d2Config(n_steps=n_steps, discount=0.9)
    random = np.random.default_rng(n_steps)
    length, batch, actions = 24, 6, 3
    q, target_q = random.normal(scale=3, size=(2, length, batch, actions)).astype(np.float32)
    step_type = np.full((length, batch), MID, np.uint8)
    discount = np.ones((length, batch), np.float32)
    for b in range(batch):
        for t in random.choice(length - 1, size=b, replace=False):
            step_type[t, b], step_type[t + 1, b] = LAST, FIRST
            discount[t, b] = random.integers(2)  # truncated or terminated
    arrays: dict[str, Any] = {
        "action": random.integers(actions, size=(length, batch)).astype(np.int32),
        "reward": random.normal(scale=5, size=(length, batch)).astype(np.float32),
        "discount": discount,
        "step_type": step_type,
    }
    expected, expected_real = slow_td_errors(config, q, target_q, **arrays)
    errors, real = r2d2.td_errors(
        config, floats(q), floats(target_q), **{k: tf.constant(v) for k, v in arrays.items()}
    )
    np.testing.assert_array_equal(real, expected_real)
    assert 0 < np.count_nonzero(~expected_real) < expected_real.size / 4
    np.testing.assert_allclose(errors, expected, atol=1e-4)


TRAINING = np.full(300, Role.TRAINING, np.uint8)


def test_epsilons_by_hand() -> None:
    places = np.zeros(300)
    explore = exploration.by_slot(R2d2Config(), TRAINING, places)
    places[:256] = np.arange(256) / 255
    np.testing.assert_allclose(
        explore(np.array([0, 127, 255])), [0.4, 0.0163958, 0.00065536], rtol=1e-5
    )
    never = exploration.by_slot(R2d2Config(epsilon=0), TRAINING, places)
    assert never(np.arange(3)).tolist() == [0, 0, 0]


def test_evaluation_slots_hardly_explore_and_change_no_other() -> None:
    roles = TRAINING.copy()
    roles[[258, 299]] = Role.EVALUATION
    slots = np.array([0, 127, 255, 258, 299])
    training = [0.4, 0.0163958, 0.00065536]
    places = np.arange(300) / 255
    explore = exploration.by_slot(R2d2Config(), roles, places)
    np.testing.assert_allclose(explore(slots), [*training, 0.001, 0.001], rtol=1e-5)
    greedy = exploration.by_slot(R2d2Config(), roles, places, greedy_evaluation=True)
    np.testing.assert_allclose(greedy(slots), [*training, 0, 0], rtol=1e-5)
