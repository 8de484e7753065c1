"""Squares of changes: the bits of NumPy's own sum, with no array of their size between."""

import numpy as np
import pytest

from fedsuite.rounds.changes import _BLOCK, Changes


@pytest.mark.parametrize("shape", [(1,), (7, 9), (_BLOCK + 3,), (317, 211), (5, 3, 9001)])
def test_squares_have_the_bits_of_one_sum(shape: tuple[int, ...]) -> None:
    stream = np.random.default_rng(0)
    array, origin = stream.standard_normal((2, *shape)).astype(np.float32)
    change = np.subtract(array, origin, dtype=np.float64)
    changes = Changes()
    assert changes.squares(array, origin) == float(np.square(change).sum())
    whole = float(np.square(array.astype(np.float64)).sum())
    assert changes.squares_from({"w": array, "n": np.array(3)}, {}) == whole


def test_an_overflow_is_infinite_and_silent(recwarn: pytest.WarningsRecorder) -> None:
    assert Changes().squares(np.array([1e200]), np.array([-1e200])) == np.inf
    assert not recwarn.list
