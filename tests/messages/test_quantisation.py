"""CFD's soft-label codes: the specification's numbers, the nearest point, their cost."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.messages.quantisation import quantise
from fedsuite.strategies.distillation.cfd import DeltaLedger, delta_code_bits

ROW = np.array([[0.574097, 0.348207, 0.077696]])
WEIGHTS = st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda w: sum(w) > 1e-6)


@pytest.mark.parametrize(
    ("bits", "codes", "distance"),
    [(1, (1, 0, 0), 0.851806), (2, (2, 1, 0), 0.185139), (3, (4, 2, 1), 0.130323)],
)
def test_the_specification_s_codes(
    bits: int, codes: tuple[int, ...], distance: float
) -> None:
    found = quantise(ROW, bits)
    np.testing.assert_allclose(found, [np.array(codes) / (2**bits - 1)], atol=1e-12)
    assert np.abs(found - ROW).sum() == pytest.approx(distance, abs=1e-6)


@given(WEIGHTS, st.integers(1, 3))
def test_no_point_of_the_grid_is_nearer(weights: list[float], bits: int) -> None:
    row = np.array(weights) / np.sum(weights)
    levels = 2**bits - 1
    grid = [p for p in itertools.product(range(levels + 1), repeat=3) if sum(p) == levels]
    distances = np.abs(np.array(grid) / levels - row).sum(axis=1)
    found = quantise(row[None], bits)[0]
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(found * levels, np.round(found * levels), atol=1e-9)
    assert np.abs(found - row).sum() == pytest.approx(distances.min(), abs=1e-12)
    np.testing.assert_array_equal(quantise(found[None], bits)[0], found)


def test_ties_go_to_the_lowest_index() -> None:
    even = np.array([[0.25, 0.25, 0.25, 0.25], [0.0, 0.4, 0.4, 0.2]])
    np.testing.assert_array_equal(quantise(even, 1), [(1, 0, 0, 0), (0, 1, 0, 0)])
    np.testing.assert_allclose(quantise(even, 2)[0], np.array([1, 1, 1, 0]) / 3)


def test_one_bit_is_the_arg_max_and_many_bits_are_none() -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(10), 50)
    np.testing.assert_array_equal(quantise(rows, 1), np.eye(10)[rows.argmax(axis=1)])
    assert np.abs(quantise(rows, 24) - rows).max() < 2**-24 * 10
    # A float32 row does not sum to 1 in as many bits.
    single = quantise(rows.astype(np.float32), 24)
    np.testing.assert_allclose(single.sum(axis=1), 1, atol=1e-12)
    assert single.min() >= 0
    np.testing.assert_allclose(quantise(rows * (1 - 1e-5), 24), quantise(rows, 24))


@pytest.mark.parametrize("bits", [0, 25])
def test_bits_are_checked(bits: int) -> None:
    with pytest.raises(ValueError, match="bits"):
        quantise(ROW, bits)


@pytest.mark.parametrize("row", [(0.0, 0.0), (-0.1, 1.1), (np.nan, 1.0), (np.inf, 0.0)])
def test_what_is_no_distribution_is_refused(row: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        quantise(np.array([row]), 2)


def one_hot(*labels: int) -> np.ndarray:
    return np.eye(4)[list(labels)]


def test_cost_of_codes_by_hand() -> None:
    first = one_hot(0, 0, 1, 1)
    assert delta_code_bits(first) == pytest.approx(4)
    assert delta_code_bits(first, first) == pytest.approx(0)
    # Where one always follows from the other nothing need be told.
    assert delta_code_bits(one_hot(3, 3, 2, 2), first) == pytest.approx(0)
    # After a 0 comes a 0 or a 2, one bit each; after a 1 always a 1.
    assert delta_code_bits(one_hot(0, 2, 1, 1), first) == pytest.approx(2)
    assert delta_code_bits(first[:0]) == 0.0
    with pytest.raises(ValueError, match="same samples"):
        delta_code_bits(first, first[:2])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_to_know_the_last_code_never_costs(pairs: list[tuple[int, int]]) -> None:
    before, now = (one_hot(*labels) for labels in zip(*pairs, strict=True))
    cost = delta_code_bits(now, before)
    assert -1e-9 <= cost <= delta_code_bits(now) + 1e-9


def test_a_ledger_by_hand() -> None:
    """Two clients; rows that were told before cost what has changed, the others all."""
    ledger = DeltaLedger(6)
    ledger.begin_round()
    ledger.add(0, np.array([0, 1]), one_hot(0, 1))
    assert ledger.bits() == pytest.approx(2)
    # Coded together with the two before: four codes, two of each.
    ledger.add(0, np.array([2, 3]), one_hot(1, 0))
    ledger.add(7, np.array([2, 3]), one_hot(3, 3))
    assert ledger.bits() == pytest.approx(4)
    ledger.begin_round()
    assert ledger.bits() == 0
    # Rows 0 and 3 had the same code and now differ; 4 and 5 were never told.
    ledger.add(0, np.array([0, 3]), one_hot(0, 2))
    ledger.add(0, np.array([4, 5]), one_hot(2, 1))
    assert ledger.bits() == pytest.approx(2 + 2)
    ledger.add(0, np.array([4, 5]), one_hot(2, 1))
    assert ledger.bits() == pytest.approx(
        4 + delta_code_bits(one_hot(0, 2, 2, 1), one_hot(0, 0, 2, 1)) - 2
    )


def test_a_ledger_comes_back() -> None:
    one, two = DeltaLedger(4), DeltaLedger(4)
    one.add(3, np.array([0, 2]), one_hot(1, 2))
    two.restore(one.state())
    for ledger in (one, two):
        ledger.begin_round()
        ledger.add(3, np.arange(4), one_hot(1, 1, 2, 3))
    assert one.bits() == two.bits() == pytest.approx(2)
