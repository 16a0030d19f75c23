from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from services.shared.specs import ContinuousActionSpec, DataType, EnvironmentSpec, TensorSpec
from services.shared.specs import DiscreteActionSpec as Discrete


def test_packed_bits_are_stored_flat() -> None:
    spec = TensorSpec("smm", DataType.BIT, (72, 96, 4), stack=4)
    assert spec.storage_shape == (3456,)
    assert spec.storage_bytes == 3456
    assert spec.stacked_shape == (72, 96, 16)
    assert TensorSpec("odd", DataType.BIT, (3, 3)).storage_shape == (2,)


def test_continuous_actions_are_clipped_and_scaled() -> None:
    spec = ContinuousActionSpec((-1.0, 0.0, -np.inf, 5.0), (1.0, 10.0, np.inf, np.inf))
    action = np.array([[-3.0, 0.5, 7.0, 2.0], [0.25, -1.0, -7.0, 6.0]], np.float32)
    np.testing.assert_array_equal(
        spec.to_environment(action), [[-1.0, 7.5, 7.0, 5.0], [0.25, 0.0, -7.0, 6.0]]
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorSpec("x", DataType.UINT8, (0,)), r"'x': shape \(0,\)"),
        (lambda: TensorSpec("x", DataType.UINT8, (2,), stack=0), "stack is 0"),
        (lambda: TensorSpec("x", DataType.UINT8, (), stack=2), "no last axis"),
        (lambda: Discrete(()), "num_values is"),
        (lambda: ContinuousActionSpec((1.0,), (1.0,)), "not below maximum"),
        (lambda: ContinuousActionSpec((1.0,), ()), "1 minima and 0 maxima"),
        (lambda: EnvironmentSpec((), Discrete((2,))), "one or more names"),
    ],
)
def test_impossible_specs_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
