"""Lengths of changes: right at any size and place, with no array of their size between."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsuite.rounds.changes import _ROWS, _WIDTH, Changes, length

BLOCK = _ROWS * _WIDTH


@given(st.integers(0, 2 * BLOCK + 5), st.integers(0, _WIDTH), st.sampled_from(["f4", "f8"]))
@example(BLOCK, 0, "f4")
@example(BLOCK + 1, 5, "f8")
@settings(max_examples=20, deadline=None)
def test_every_entry_counts_once(size: int, first: int, dtype: str) -> None:
    values, changes = np.ones(size, dtype), Changes()
    # Memory that is used again holds other values already.
    changes.squares_from({"other": np.full(BLOCK, 7, dtype)}, {})
    arrays = {"a": values[:first] + 7, "b": values[first:], "n": np.array(3)}
    origin = {"a": np.full(len(values[:first]), 7, dtype)}
    assert changes.squares_from(arrays, origin) == size


@pytest.mark.parametrize("shape", [(1,), (7, 9), (BLOCK + 3,), (5, 3, 9001)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_the_length_is_that_of_float64_to_the_dtypes_digits(
    shape: tuple[int, ...], dtype: str
) -> None:
    array, origin = np.random.default_rng(0).standard_normal((2, *shape)).astype(dtype)
    true = float(np.linalg.norm(array.astype("f8") - origin.astype("f8")))
    digits = 3e-7 if dtype == "f4" else 1e-12
    assert length({"w": array}, {"w": origin}) == pytest.approx(true, rel=digits)


@pytest.mark.parametrize("scale", [1e-44, 1e-30, 0.99e-12, 1.01e-12, 1e15, 1.8e19, 1.9e19])
def test_float32_is_measured_at_any_size(scale: float) -> None:
    """Squares underflow below, and overflow above what float32 holds."""
    array = np.zeros(70_000, np.float32)
    array[::7000] = scale
    true = float(np.linalg.norm(array.astype("f8")))
    assert length({"w": array}, {}) == pytest.approx(true, rel=3e-7, abs=0.0)


def test_an_overflow_is_infinite_and_silent(recwarn: pytest.WarningsRecorder) -> None:
    assert length({"w": np.array([1e200])}, {"w": np.array([-1e200])}) == np.inf
    assert not recwarn.list
