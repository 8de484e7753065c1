"""Vectors of which a part is kept: the largest entries, and the way over the wire."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsuite.core.vectors import largest, pack, packed_size, top_k, unpack

VECTORS = arrays(
    np.float64,
    st.integers(1, 40),
    # Few values, so that ties are common.
    elements=st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0]),
)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (-1, [0, 0, 0, 0]),
        (0, [0, 0, 0, 0]),
        (1, [0, 0, 0, 0.3]),
        (2, [0.15, 0, 0, 0.3]),
        (3, [0.15, 0, -0.15, 0.3]),
        (4, [0.15, 0.05, -0.15, 0.3]),
        (9, [0.15, 0.05, -0.15, 0.3]),
    ],
)
def test_ties_go_to_the_lowest_index(count: int, expected: list[float]) -> None:
    vector = np.array([0.15, 0.05, -0.15, 0.3])
    assert top_k(vector, count).tolist() == expected


@given(VECTORS, st.integers(0, 45))
def test_exactly_the_largest_are_kept(vector: np.ndarray, count: int) -> None:
    kept = largest(vector, count)
    assert kept.sum() == min(count, vector.size)
    by_size_then_place = sorted(range(vector.size), key=lambda i: (-abs(vector[i]), i))
    assert set(np.flatnonzero(kept)) == set(by_size_then_place[:count])


@given(VECTORS, st.integers(0, 45))
def test_what_is_packed_is_unpacked(vector: np.ndarray, count: int) -> None:
    kept = largest(vector, count)
    bits, values = pack(vector, kept)
    assert (bits.dtype, bits.size) == (np.uint8, packed_size(vector.size))
    assert values.size == kept.sum()
    found = unpack(bits, values, vector.size)
    assert found.tolist() == np.where(kept, vector, 0).tolist()


@given(
    arrays(np.uint8, 3),
    arrays(np.float32, st.integers(0, 30), elements=st.floats(-1, 1, width=32)),
)
def test_bits_and_values_that_do_not_fit_can_be_read(
    bits: np.ndarray, values: np.ndarray
) -> None:
    found = unpack(bits, values, 20)
    assert found.shape == (20,)
    assert set(found.tolist()) <= {0.0, *values.tolist()}
