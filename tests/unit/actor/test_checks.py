"""What may be assigned to an observation's arrays, and what the learner would refuse."""

from typing import Any

import numpy as np
import pytest

from services.actor.environments.checks import Caster, are_categories, check_first, what_is_wrong
from services.shared.specs import DataType, DiscreteActionSpec, EnvironmentSpec, TensorSpec

COLOR = TensorSpec("color", DataType.INT32, (2,), num_values=5)
SPEED = TensorSpec("speed", DataType.FLOAT32, (2,))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.uint8, np.array([0, 255])),
        (np.uint8, [1, 2]),
        (np.uint8, 255),
        (np.uint8, True),
        (np.uint8, np.array([True, False])),
        (np.int32, np.array([-(2**31), 2**31 - 1])),
        (np.int32, np.uint64(7)),
        (np.int32, np.array([], np.int64)),
        (np.float32, np.array([0.5, 2.0])),
        (np.float32, [1, 2]),
        (np.float32, 0.25),
    ],
)
def test_what_fits_is_unchanged(dtype: Any, value: Any) -> None:
    cast = Caster("image", dtype)
    for _ in range(2):  # the second time by what was learnt from the first
        assert np.array(cast(value), dtype).tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (np.uint8, np.array([300, -1]), "'image' has int64 values from -1 to 300, .* 0 to 255"),
        (np.uint8, 256, "from 256 to 256"),
        (np.uint8, np.int8(-1), "int8 values from -1"),
        (np.uint8, np.array([0.0, 1.0]), "element type float64, its spec has uint8"),
        (np.uint8, 0.5, "element type float64, its spec has uint8"),
        (np.int32, np.float32(1), "element type float32, its spec has int32"),
        (np.int32, 2**31, "allowed: -2147483648 to 2147483647"),
        (np.float32, np.array([1j]), "element type complex128, its spec has float32"),
        (np.float32, "1", "element type <U1, its spec has float32"),
        (np.float32, None, "element type object, its spec has float32"),
    ],
)
def test_what_would_change_is_an_error(dtype: Any, value: Any, message: str) -> None:
    cast = Caster("image", dtype)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            cast(value)


def test_one_bad_value_after_good_ones() -> None:
    cast = Caster("image", np.uint8)
    cast(np.array([1, 2]))
    with pytest.raises(ValueError, match="from 1 to 300"):
        cast(np.array([1, 300]))


@pytest.mark.parametrize(("value", "is_one"), [(0, True), (4, True), (5, False), (-1, False)])
def test_categories(value: int, is_one: bool) -> None:
    buffer = bytearray(17)  # not aligned, as behind an odd number of bytes
    rows = np.ndarray((2, 2), np.int32, buffer=buffer, offset=1)
    rows[1, 1] = value
    assert are_categories(COLOR, rows) is is_one
    expected = None if is_one else f"observation 'color' is {value}, allowed: 0 to 4"
    assert what_is_wrong(COLOR, rows) == expected


def test_the_first_observation() -> None:
    spec = EnvironmentSpec((COLOR, SPEED), DiscreteActionSpec((2,)), agents=2)
    good = (np.zeros((2, 2), np.int64), np.zeros((2, 2)))
    check_first(spec, good)
    with pytest.raises(ValueError, match="'color' is 7, allowed: 0 to 4"):
        check_first(spec, (good[0] + 7, good[1]))
    with pytest.raises(ValueError, match="'speed' is nan, allowed: finite numbers"):
        check_first(spec, (good[0], good[1] * np.nan))
    with pytest.raises(ValueError, match="broadcast"):
        check_first(spec, (good[0], np.zeros((2, 3))))
    with pytest.raises(ValueError, match="shorter"):
        check_first(spec, good[:1])
