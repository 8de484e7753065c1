"""TERM: golden rounds, its extremes, and exponents that overflow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.strategies.fair.term import TERM, tilted_weights
from tests.helpers import final_bits
from tests.strategies.fair.fair_rounds import FEDAVG, fair_round, final, shares, three


@pytest.mark.parametrize(
    ("tilt", "weights", "model"),
    [
        (1.0, (0.086117, 0.771900, 0.141983), (-0.045768, 0.203173)),
        (0.5, (0.153421, 0.649583, 0.196996), (-0.014575, 0.155476)),
    ],
)
def test_golden_rounds(
    tilt: float, weights: tuple[float, ...], model: tuple[float, ...]
) -> None:
    """t = 1: 10 e^0.5, 20 e^2, 10 e^1 = 16.49, 147.78, 27.18, divided by 191.45."""
    trace = fair_round(TERM(term_tilt=tilt, **three()))
    np.testing.assert_allclose(shares(trace), weights, atol=5e-7)
    np.testing.assert_allclose(final(trace), model, atol=5e-7)


def test_golden_weights_of_a_uniform_prior() -> None:
    weights = tilted_weights(np.array([0.5, 2.0, 1.0]), 1.0, np.ones(3))
    expected = (0.140244, 0.628532, 0.231224)
    np.testing.assert_allclose(weights / weights.sum(), expected, atol=5e-7)


def test_tilt_0_is_fedavg_bit_for_bit() -> None:
    assert final_bits(method="term", term_tilt=0.0) == final_bits()
    assert final_bits(method="term", term_tilt=1.0) != final_bits()
    np.testing.assert_allclose(final(fair_round(TERM(term_tilt=0, **three()))), FEDAVG)


def test_small_tilt_is_near_fedavg() -> None:
    np.testing.assert_allclose(
        final(fair_round(TERM(term_tilt=1e-6, **three()))), FEDAVG, atol=1e-6
    )


@pytest.mark.parametrize(("tilt", "client"), [(1e5, 1), (1e308, 1), (-1e5, 0), (-1e308, 0)])
def test_huge_tilt_is_one_client(tilt: float, client: int) -> None:
    trace = fair_round(TERM.of_paper(term_tilt=tilt, **three()))
    assert shares(trace) == [float(k == client) for k in range(3)]
    assert trace.reports[0].metrics["effective_clients"] == 1.0


@pytest.mark.parametrize("losses", [(0, 0, 0), (7, 7, 7), (1e308,) * 3])
def test_equal_losses_are_fedavg(losses: tuple[float, ...]) -> None:
    trace = fair_round(TERM(term_tilt=5.0, **three()), losses=losses)
    np.testing.assert_allclose(final(trace), FEDAVG, atol=1e-8)


def test_one_client_and_a_missing_one() -> None:
    one = fair_round(
        TERM(**three(num_clients=1)), models=[(0.2, 0.0)], losses=[1e9], examples=[3]
    )
    np.testing.assert_allclose(final(one), [0.2, 0.0])
    # Client 1's loss is not there: 16.49 and 27.18 are left.
    trace = fair_round(TERM(**three()), losses=(0.5, float("nan"), 1.0))
    assert shares(trace) == pytest.approx([0.377541, 0.622459], abs=1e-6)


def test_worst_client_without_examples_has_no_say() -> None:
    trace = fair_round(
        TERM(term_tilt=1e4, **three()), losses=(0.5, 9.0, 1.0), examples=(10, 0, 10)
    )
    assert shares(trace) == [0.0, 0.0, 1.0]


rows = st.lists(st.tuples(st.floats(0, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=6)


@given(rows, st.floats(-20, 20), st.floats(-5, 5))
def test_weights_do_not_see_a_shift_and_follow_the_losses(
    drawn: list[tuple[float, float]], tilt: float, shift: float
) -> None:
    losses, prior = map(np.array, zip(*drawn, strict=True))
    weights = tilted_weights(losses, tilt, prior)
    assert np.isfinite(weights).all() and (weights >= 0).all() and weights.any()
    shifted = tilted_weights(losses + shift, tilt, prior)
    np.testing.assert_allclose(weights, shifted, rtol=1e-9, atol=1e-9)
    order = np.argsort(losses)
    rising = np.diff((weights / prior)[order]) * np.sign(tilt)
    assert (rising >= -1e-12).all()


@pytest.mark.parametrize("tilt", [float("nan"), float("inf")])
def test_bad_tilt(tilt: float) -> None:
    with pytest.raises(ValueError, match=r"term_tilt = .*: expected"):
        TERM(term_tilt=tilt)
