"""The form of least value on the simplex: by hand, against another solver, and hostile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsuite.strategies.fair.simplex import minimize_on_simplex
from fedsuite.strategies.personal.fedpac import least_form_on_simplex


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[3.0]], [1.0]),
        ([[0.04, 0.0], [0.0, 0.07]], [0.07 / 0.11, 0.04 / 0.11]),
        ([[0.09, 0.0], [0.0, 0.02]], [0.02 / 0.11, 0.09 / 0.11]),
        # The second is worse than the first in every mixture.
        ([[1.0, 1.0], [1.0, 2.0]], [1.0, 0.0]),
        ([[0.0, 0.0], [0.0, 5.0]], [1.0, 0.0]),
        # An eigenvalue that rounding made negative.
        ([[1.0, 1.0 + 1e-15], [1.0 + 1e-15, 1.0 + 1e-15]], None),
    ],
)
def test_by_hand(matrix: list[list[float]], expected: list[float] | None) -> None:
    found = least_form_on_simplex(np.array(matrix))
    assert found.sum() == pytest.approx(1.0)
    if expected is not None:
        assert found == pytest.approx(expected, abs=1e-12)


ROWS = arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(1, 4)), elements=st.floats(-1, 1)
)


@given(ROWS, st.floats(0, 1))
def test_no_worse_than_slsqp(rows: np.ndarray, ridge: float) -> None:
    count = len(rows)
    matrix = rows @ rows.T + ridge * np.eye(count)
    found = least_form_on_simplex(matrix)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1.0)
    equal = np.full(count, 1 / count)
    other = minimize_on_simplex(
        2 * matrix, np.zeros(count), equal, np.zeros(count), np.ones(count)
    )
    assert found @ matrix @ found <= other @ matrix @ other + 1e-9


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(0, 60), st.booleans())
def test_hostile_scales_do_not_fail(
    count: int, seed: int, decades: float, spread: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, 3)) * (10.0 ** rng.uniform(0, decades, (count, 1)))
    variances = 10.0 ** rng.uniform(-decades, decades, count) if spread else np.zeros(count)
    found = least_form_on_simplex(rows @ rows.T + np.diag(variances))
    assert np.isfinite(found).all()
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1.0)


def test_one_huge_entry_does_not_hide_the_others() -> None:
    matrix = np.diag([0.04, 0.07, 1e70])
    assert least_form_on_simplex(matrix) == pytest.approx([7 / 11, 4 / 11, 0], abs=1e-9)
