"""Networks: the invariant step == unroll, resets, precision, names and error messages."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.learner import preprocess
from services.learner.networks import base, heads, layers, registry
from services.shared import config, specs
from services.shared.specs import DataType, TensorSpec

DISCRETE = specs.DiscreteActionSpec((3, 2))
CONTINUOUS = specs.ContinuousActionSpec((-1.0, -1.0), (1.0, 1.0))
VECTORS = (
    TensorSpec("position", DataType.FLOAT32, (3,)),
    TensorSpec("kind", DataType.INT32, (), num_values=4),
)
IMAGE = (TensorSpec("pixels", DataType.UINT8, (20, 24, 3), stack=2),)
LARGE_IMAGE = (TensorSpec("pixels", DataType.UINT8, (84, 84, 1), stack=4),)
IMAGE_AND_VECTOR = (*IMAGE, *VECTORS)


def _create(
    name: str,
    observation: tuple[TensorSpec, ...] = VECTORS,
    action: specs.ActionSpec = DISCRETE,
    mixed_precision: bool = False,
    head: heads.Head | None = None,
    **arguments: Any,
) -> base.Network:
    return registry.create(
        config.NetworkConfig(name=name, arguments=arguments, mixed_precision=mixed_precision),
        specs.EnvironmentSpec(observation, action),
        head or heads.ActorCriticHead(5),
    )


def _random_inputs(
    network: base.Network, length: int, batch: int, seed: int = 0
) -> base.NetworkInputs:
    rng = np.random.default_rng(seed)
    spec = network.environment_spec
    leading = (length, batch)
    action: Any
    if isinstance(spec.action, specs.DiscreteActionSpec):
        action = rng.integers(0, spec.action.num_values, size=(*leading, spec.action.size))
    else:
        action = rng.normal(size=(*leading, spec.action.size))
    observation = {
        tensor.name: tf.constant(
            rng.random((*leading, *preprocess.network_shape(tensor))), network.compute_dtype
        )
        for tensor in spec.observation
    }
    return base.NetworkInputs(
        observation,
        tf.constant(action, spec.action.dtype),
        tf.constant(rng.normal(size=leading), tf.float32),
        tf.constant(rng.random(leading) < 0.3),
    )


def _row(inputs: base.NetworkInputs, t: int) -> base.NetworkInputs:
    row: base.NetworkInputs = tf.nest.map_structure(lambda x: x[t], inputs)
    return row


CASES = [
    ("mlp", VECTORS, DISCRETE),
    ("mlp_lstm", VECTORS, DISCRETE),
    ("mlp_lstm", VECTORS, CONTINUOUS),
    ("impala_shallow", IMAGE, DISCRETE),
    ("impala_deep", IMAGE_AND_VECTOR, CONTINUOUS),
    ("football", IMAGE, DISCRETE),
    ("nature", LARGE_IMAGE, DISCRETE),
]


@pytest.mark.parametrize(("name", "observation", "action"), CASES)
def test_step_and_unroll_agree(
    name: str, observation: tuple[TensorSpec, ...], action: specs.ActionSpec
) -> None:
    head = heads.ActorCriticHead(5)
    network = _create(name, observation, action, head=head)
    # Larger than it begins, so that differences would show.
    head.policy.kernel.assign(100 * head.policy.kernel)
    length, batch = 7, 4
    inputs = _random_inputs(network, length, batch)
    state = tuple(x + 0.5 for x in network.initial_state(batch))
    unrolled, final_state = network.unroll(inputs, state)
    assert unrolled.policy_parameters.shape == (length, batch, 5)
    assert unrolled.baseline.shape == (length, batch)
    for t in range(length):
        output, state = network.step(_row(inputs, t), state)
        np.testing.assert_allclose(
            output.policy_parameters, unrolled.policy_parameters[t], atol=1e-4
        )
        np.testing.assert_allclose(output.baseline, unrolled.baseline[t], atol=1e-4)
    for stepped, final in zip(state, final_state, strict=True):
        np.testing.assert_allclose(stepped, final, atol=1e-5)


def test_first_forgets_everything_before_it() -> None:
    network = _create("mlp_lstm")
    inputs = _row(_random_inputs(network, 1, 2), 0)
    first = inputs._replace(first=tf.constant([True, True]))
    expected, expected_state = network.step(first, network.initial_state(2))
    polluted = first._replace(
        previous_action=tf.ones_like(first.previous_action), reward=tf.constant([9.0, -9.0])
    )
    output, state = network.step(polluted, tuple(x + 3.0 for x in network.initial_state(2)))
    np.testing.assert_array_equal(output.policy_parameters, expected.policy_parameters)
    np.testing.assert_array_equal(output.baseline, expected.baseline)
    np.testing.assert_array_equal(state[0], expected_state[0])
    later = polluted._replace(first=tf.constant([False, False]))
    output, _ = network.step(later, network.initial_state(2))
    assert np.all(output.baseline != expected.baseline)


def test_previous_action_and_reward_by_hand() -> None:
    network = _create("mlp_lstm")
    inputs = base.NetworkInputs(
        {},
        tf.constant([[2, 1], [0, 0], [2, 1]]),
        tf.constant([5.0, -0.5, 1.0]),
        tf.constant([False, False, True]),
    )
    np.testing.assert_array_equal(
        network.previous_action_and_reward(inputs),
        [[0, 0, 1, 0, 1, 1], [1, 0, 0, 1, 0, -0.5], [0, 0, 0, 0, 0, 0]],
    )


def test_lstm_equals_numpy() -> None:
    network = _create("mlp_lstm", lstm_size=2)
    core = network.core
    assert core is not None
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, core.input_kernel.shape[0])).astype(np.float32)
    hidden, cell = rng.normal(size=(2, 3, 2)).astype(np.float32)
    first = np.array([False, True, False])
    output, state = core.advance(
        core.project(tf.constant(x)), tf.constant(first), (tf.constant(hidden), tf.constant(cell))
    )
    hidden, cell = (np.where(first[:, None], 0, s) for s in (hidden, cell))
    gates = x @ core.input_kernel.numpy() + hidden @ core.recurrent_kernel.numpy()
    i, f, g, o = np.split(gates + np.array([0, 0, 1, 1, 0, 0, 0, 0]), 4, axis=1)
    cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    hidden = np.tanh(cell) / (1 + np.exp(-o))
    np.testing.assert_allclose(state[1], cell, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(output, hidden, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp_lstm", "impala_shallow"])
def test_mixed_precision_puts_out_float32_close_to_full_precision(name: str) -> None:
    outputs = []
    for mixed_precision in (False, True):
        network = _create(name, IMAGE, mixed_precision=mixed_precision)
        inputs = _random_inputs(network, 3, 2)
        output, state = network.unroll(inputs, network.initial_state(2))
        assert {x.dtype for x in (*output, *state)} == {tf.float32}
        assert {v.dtype for v in base.named_variables(network).values()} == {tf.float32}
        outputs.append(output)
    np.testing.assert_allclose(outputs[0].baseline, outputs[1].baseline, atol=0.05)


def test_variables_have_strict_names() -> None:
    assert list(base.named_variables(_create("mlp_lstm"))) == [
        "core/bias",
        "core/input_kernel",
        "core/recurrent_kernel",
        "head/baseline/bias",
        "head/baseline/kernel",
        "head/policy/bias",
        "head/policy/kernel",
        "hidden/0/bias",
        "hidden/0/kernel",
        "hidden/1/bias",
        "hidden/1/kernel",
    ]
    football = base.named_variables(_create("football", IMAGE))
    assert "convolutions/sections/3/blocks/1/conv_0/kernel" in football
    assert football["convolutions/sections/0/conv/kernel"].shape == (3, 3, 6, 16)
    # Four sections of five convolutions, the dense layer and two heads.
    assert len(football) == 2 * (4 * 5 + 3)


def test_the_seed_decides_the_initial_values() -> None:
    spec = specs.EnvironmentSpec(VECTORS, DISCRETE)
    kernels = []
    for seed in (1, 1, 2):
        head = heads.ActorCriticHead(5)
        registry.create(config.NetworkConfig(), spec, head, seed)
        kernels.append(head.policy.kernel.numpy())
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert np.any(kernels[0] != kernels[2])
    np.testing.assert_allclose(kernels[0].T @ kernels[0], 1e-4 * np.eye(5), atol=1e-8)


class KerasTorso(base.Network):
    """A network of one's own that uses Keras layers."""

    def __init__(
        self,
        environment_spec: specs.EnvironmentSpec,
        head: heads.Head,
        mixed_precision: bool = False,
        *,
        units: int = 8,
    ) -> None:
        super().__init__(environment_spec, head, mixed_precision)
        self._dense = keras.layers.Dense(units)

    def torso(self, inputs: base.NetworkInputs) -> tf.Tensor:
        return self._dense(inputs.observation["position"])


class WrongShape(KerasTorso):
    def torso(self, inputs: base.NetworkInputs) -> tf.Tensor:
        return tf.reshape(super().torso(inputs), [1, -1])


def test_import_path() -> None:
    network = _create(f"{__name__}:KerasTorso", units=6)
    variables = base.named_variables(network, trainable_only=True)
    assert variables["dense/0_kernel"].shape == (3, 6)
    assert variables["dense/1_bias"].shape == (6,)


@pytest.mark.parametrize(
    ("name", "observation", "arguments", "message"),
    [
        ("resnet", VECTORS, {}, r"'resnet' is unknown, allowed: \['football', 'impala_deep'.*"),
        ("no_such_module:Net", VECTORS, {}, "cannot be imported: No module named"),
        (f"{__name__}:Missing", VECTORS, {}, "cannot be imported: .*Missing"),
        (f"{__name__}:VECTORS", VECTORS, {}, "allowed: a subclass of .*base.Network"),
        ("mlp", VECTORS, {"size": 3}, r"no arguments \['size'\], allowed: \['sizes', 'activ"),
        ("mlp", VECTORS, {"sizes": [0]}, r"sizes is \[0\], allowed: numbers of 1 or more"),
        ("mlp", VECTORS, {"activation": "x"}, r"'x', allowed: \['elu', 'relu', 'tanh'\]"),
        ("mlp", VECTORS, {"lstm_size": 0}, "lstm_size is 0, allowed: 1 or more"),
        ("football", VECTORS, {}, r"'position': \(3,\).* exactly one image"),
        (f"{__name__}:WrongShape", VECTORS, {}, r"shapes \[\(1, 5\), \(1,\)\], must begin with 2"),
    ],
)
def test_errors_name_what_was_given_and_allowed(
    name: str,
    observation: tuple[TensorSpec, ...],
    arguments: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(registry.NetworkError, match=message):
        _create(name, observation, **arguments)


def test_layer_norm_by_hand() -> None:
    norm = layers.LayerNorm(2)
    norm.scale.assign([1.0, 2.0])
    norm.shift.assign([0.0, 10.0])
    # Mean 3 and deviation 1; mean 0 and deviation 2.
    np.testing.assert_allclose(
        norm(tf.constant([[2.0, 4.0], [-2.0, 2.0]])), [[-1.0, 12.0], [-1.0, 12.0]], atol=1e-5
    )


def test_dueling_by_hand() -> None:
    head = heads.DuelingHead(3, hidden_size=2)
    head(tf.zeros([1, 2]))
    head.value_hidden.kernel.assign([[1.0, 0.0], [0.0, 1.0]])
    head.value.kernel.assign([[1.0], [1.0]])
    head.value.bias.assign([10.0])
    head.advantage_hidden.kernel.assign([[1.0, 0.0], [0.0, -1.0]])
    head.advantage.kernel.assign([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    # V = 10 + 2 + 1; of (2, -1) the second hidden unit is cut at 0: advantages 2, 4, 6, mean 4.
    np.testing.assert_allclose(head(tf.constant([[2.0, 1.0]])), [[11.0, 13.0, 15.0]])


def test_nature_has_the_published_sizes() -> None:
    network = _create("nature", LARGE_IMAGE, head=heads.DuelingHead(18, 512))
    shapes = {name: tuple(v.shape) for name, v in base.named_variables(network).items()}
    assert shapes["convolutions/conv_0/kernel"] == (8, 8, 4, 32)
    assert shapes["convolutions/conv_1/kernel"] == (4, 4, 32, 64)
    assert shapes["convolutions/conv_2/kernel"] == (3, 3, 64, 64)
    assert shapes["dense/kernel"] == (7 * 7 * 64, 512)
    # What the LSTM gets besides: the one-hot previous actions (3 + 2 of them) and the reward.
    assert shapes["core/input_kernel"] == (512 + 6, 4 * 512)
    assert shapes["head/advantage/kernel"] == (512, 18)
    output, _ = network.step(registry.example_inputs(network, 2), network.initial_state(2))
    assert output.shape == (2, 18)
