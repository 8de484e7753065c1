"""FedDisco: golden weights and discrepancies, its extremes, and weights that all vanish."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.averaging.feddisco import FedDISCOClient, label_discrepancy
from fedsuite.core.errors import RunError
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.averaging.feddisco import (
    FedDISCO,
    discrepancy_weights,
    shares_of_sum,
)
from tests.helpers import TamperingGrid, final_bits, matrix_app, run
from tests.strategies.fair.fair_rounds import FEDAVG, fair_round, final, shares, three

COUNTS = ((50, 0), (15, 15), (4, 16))
"""Labels (1, 0), (1/2, 1/2), (1/5, 4/5) of 50, 30, 20 examples."""


@pytest.mark.parametrize(
    ("measure", "a", "expected"),
    [
        ("l2", 0.5, (0.335614, 0.544726, 0.119660)),
        ("l2", 0.1, (0.445957, 0.337023, 0.217021)),
        ("kl", 0.5, (0.260982, 0.5, 0.239018)),
        ("kl", 0.1, (0.434798, 0.333333, 0.231869)),
    ],
)
def test_golden_weights(measure: str, a: float, expected: tuple[float, ...]) -> None:
    strategy = FedDISCO(feddisco_a=a, feddisco_b=0.1, feddisco_measure=measure, **three())

    def told(client: int) -> dict[str, float]:
        counts = np.array(COUNTS[client])
        return {"discrepancy": label_discrepancy(counts, measure)}

    trace = fair_round(strategy, examples=(50, 30, 20), extra=told)
    np.testing.assert_allclose(shares(trace), expected, atol=5e-7)


def test_golden_discrepancies() -> None:
    found = [label_discrepancy(np.array(counts), "l2") for counts in COUNTS]
    np.testing.assert_allclose(found, [0.707107, 0, 0.424264], atol=5e-7)
    found = [label_discrepancy(np.array(counts), "kl") for counts in COUNTS]
    np.testing.assert_allclose(found, [np.log(2), 0, 0.192745], atol=5e-7)
    np.testing.assert_allclose(
        shares_of_sum(np.array(found)), [0.782429, 0, 0.217571], atol=5e-7
    )


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).map(np.array))
def test_discrepancies_have_their_bounds(counts: np.ndarray) -> None:
    classes = len(counts)
    kl, l2 = label_discrepancy(counts, "kl"), label_discrepancy(counts, "l2")
    assert 0 <= kl <= np.log(classes) + 1e-9
    assert 0 <= l2 <= np.sqrt(1 - 1 / classes) + 1e-9
    if counts.sum() and (counts == counts[0]).all():
        assert kl == pytest.approx(0, abs=1e-9) and l2 == pytest.approx(0, abs=1e-9)


def test_no_examples_are_no_discrepancy() -> None:
    assert label_discrepancy(np.zeros(3, dtype=np.int64), "kl") == 0.0


@pytest.mark.parametrize("measure", ["kl", "l2"])
def test_a_and_b_0_are_fedavg_bit_for_bit(measure: str) -> None:
    options = {"method": "feddisco", "partitioner": "shards", "feddisco_measure": measure}
    zero = final_bits(feddisco_a=0.0, feddisco_b=0.0, **options)
    assert zero == final_bits(partitioner="shards")


def test_large_b_approaches_equal_weights() -> None:
    strategy = FedDISCO(feddisco_a=0.0, feddisco_b=1e9, **three())
    trace = fair_round(strategy, extra=lambda client: {"discrepancy": client})
    np.testing.assert_allclose(shares(trace), np.full(3, 1 / 3), rtol=1e-8)


def test_weights_that_all_vanish_are_fedavgs() -> None:
    strategy = FedDISCO(feddisco_a=9.0, feddisco_measure="l2", **three())
    trace = fair_round(strategy, extra=lambda client: {"discrepancy": 5.0})
    np.testing.assert_allclose(final(trace), FEDAVG)


@pytest.mark.parametrize("measure", ["kl", "l2"])
@pytest.mark.parametrize("told", [(0, 0, 0), (1e308, 0, 1), (1e308,) * 3])
def test_hostile_discrepancies(measure: str, told: tuple[float, ...]) -> None:
    strategy = FedDISCO(feddisco_a=1e10, feddisco_measure=measure, **three())
    trace = fair_round(strategy, extra=lambda client: {"discrepancy": told[client]})
    assert np.isfinite(final(trace)).all()
    assert sum(shares(trace)) == pytest.approx(1.0)


def test_negative_discrepancy_is_refused() -> None:
    trace = fair_round(
        FedDISCO(**three()), extra=lambda client: {"discrepancy": client - 1.0}
    )
    assert len(trace.reports[0].train.rejections) == 1


rows = st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(0, 10)), min_size=1, max_size=6)


@given(rows, st.floats(0, 5), st.floats(0, 5))
def test_weights_fall_with_the_discrepancy(
    drawn: list[tuple[float, float]], a: float, b: float
) -> None:
    examples, discrepancies = map(np.array, zip(*drawn, strict=True))
    weights = discrepancy_weights(examples, discrepancies, a, b)
    assert (weights >= 0).all() and weights.any()
    equal = discrepancy_weights(np.ones(len(drawn)), discrepancies, a, b)
    assert (np.diff(equal[np.argsort(discrepancies)]) <= 1e-9).all()


class MatrixDISCOClient(FedDISCOClient):
    """The real client; the model of ``tests.helpers`` has two outputs, all labels are 0."""


def test_the_real_client_counts_classes_up_to_the_models_outputs() -> None:
    grid = TamperingGrid(matrix_app(MatrixDISCOClient), 3)
    trace = run(FedDISCO(feddisco_measure="kl", **three()), grid)
    found = [row["discrepancy"] for row in trace.reports[0].train.rows]
    np.testing.assert_allclose(found, [np.log(2)] * 3)


def test_client_without_a_measure_says_so() -> None:
    trace = run(FedAvg(), TamperingGrid(matrix_app(MatrixDISCOClient), 3))
    reason = trace.reports[0].train.rejections[0].reason
    assert "no text feddisco-measure: use the strategy" in reason


def test_client_that_does_not_measure_is_told_what_to_use() -> None:
    with pytest.raises(RunError, match=r"train with fedsuite\.clients\.FedDISCOClient"):
        run(FedDISCO(**three()), TamperingGrid(matrix_app(), 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feddisco_a": -1.0}, "feddisco_a = -1.0: expected"),
        ({"feddisco_b": float("nan")}, "feddisco_b = nan: expected"),
        ({"feddisco_measure": "l1"}, "feddisco_measure = 'l1': expected"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedDISCO(**options)
