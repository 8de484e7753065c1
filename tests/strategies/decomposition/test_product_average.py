"""Control C1, and the cross terms that it takes out."""

from typing import Any

import numpy as np
import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.messages.records import Arrays
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies import FilterDecomposition
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.decomposition.product_average import (
    FactoredLayer,
    balanced_factors,
    cross_term_ratios,
    multiply,
    refactor,
    refactor_model,
    regauge_model,
)
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.strategies.fair.qffl import QFFL
from tests.helpers import Trace, bits
from tests.strategies.decomposition.factored import (
    ATOMS,
    CLIENTS,
    COEFFICIENTS,
    Recorder,
    Told,
    arrays_in,
    average_of_products,
    covariance_gap,
    federate,
    initial,
    make_app,
    wrap,
)

SHARES = np.array([10, 20, 30, 40]) / 100
"""Told clients claim 1, 2, 3, 4 examples."""


def in_float64() -> Arrays:
    return {name: array.astype(np.float64) for name, array in initial().items()}


class Noisy(Told):
    """Moves each array by noise of its own, times a scale."""

    scale = 1.0
    still: tuple[str, ...] = ()

    def on_train(self, request: Any) -> Any:
        stream = np.random.default_rng([self.client_id, request.server_round])
        moved = {
            name: array
            if name in self.still
            else array + self.scale * stream.normal(size=array.shape)
            for name, array in request.arrays["arrays"].items()
        }
        reply = super().on_train(request)
        return type(reply)({"arrays": moved}, reply.metrics)


def noisy(scale: float = 1.0, still: tuple[str, ...] = ()) -> type[Noisy]:
    return type("Scaled", (Noisy,), {"scale": scale, "still": still})


def one_round(client_class: type[Noisy], **options: Any) -> tuple[Trace, Any, Any]:
    """Run a round in float64; returns also the clients' coefficients and atoms."""
    grid = Recorder(make_app(client_class, wrapped=False))
    trace = federate(wrap(**options), grid, 1, in_float64())
    replies = [arrays_in(reply)["arrays"] for reply in grid.replies_of(1)]
    factors = (np.array([r[name] for r in replies]) for name in (COEFFICIENTS, ATOMS))
    return trace, *factors


def filters(arrays: Arrays) -> Any:
    return np.tensordot(arrays[COEFFICIENTS], arrays[ATOMS], axes=1)


def norm_ratio(gap: Any, update: Any) -> float:
    return float(np.linalg.norm(gap) / np.linalg.norm(update))


def test_averaging_factors_is_the_sum_of_real_and_latent_clients() -> None:
    """Specification's test 4, on the model that FedAvg made."""
    trace, coefficients, atoms = one_round(noisy())
    total = np.zeros_like(filters(trace.arrays[0]))
    for i in range(CLIENTS):
        for j in range(CLIENTS):
            product = np.tensordot(coefficients[i], atoms[j], axes=1)
            total += SHARES[i] * SHARES[j] * product
    np.testing.assert_allclose(filters(trace.arrays[0]), total, atol=1e-12)


def test_control_averages_the_products() -> None:
    """Specification's test 5: the two differ by the covariance over clients."""
    trace, coefficients, atoms = one_round(noisy(), decomposition_average="products")
    factors, *_ = one_round(noisy())
    mean = average_of_products(coefficients, atoms, SHARES)
    gap = covariance_gap(coefficients, atoms, SHARES)
    assert np.abs(gap).max() > 0.1
    np.testing.assert_allclose(filters(trace.arrays[0]), mean, atol=1e-12)
    np.testing.assert_allclose(mean - filters(factors.arrays[0]), gap, atol=1e-12)
    for name in in_float64():
        if name != COEFFICIENTS:
            assert bits(trace.arrays[0])[name] == bits(factors.arrays[0])[name]
    metrics = trace.reports[0].metrics
    update = mean - filters(in_float64())
    assert metrics["cross_term_ratio"] == pytest.approx(norm_ratio(gap, update), rel=1e-9)
    assert metrics["cross_term_ratio_largest"] == metrics["cross_term_ratio"]
    mean_atoms = np.tensordot(SHARES, atoms, axes=1).reshape(len(atoms[0]), -1)
    condition = metrics["atoms_condition_largest"]
    assert condition == pytest.approx(np.linalg.cond(mean_atoms), rel=1e-6)


def test_atoms_that_do_not_span_have_no_condition_number() -> None:
    layer = FactoredLayer("d", "a")
    arrays = {"d": np.zeros((4, 2, 2)), "a": np.ones((1, 1, 4))}
    products = {"a": np.zeros((1, 1, 2, 2))}
    assert cross_term_ratios([layer], products, arrays, arrays, arrays) == {}
    arrays["d"][range(4), (0, 0, 1, 1), (0, 1, 0, 1)] = (8.0, 4.0, 2.0, 1.0)
    found = cross_term_ratios([layer], products, arrays, arrays, arrays)
    assert found == {"atoms_condition_largest": pytest.approx(8.0)}


def test_measuring_changes_nothing() -> None:
    measured, coefficients, atoms = one_round(noisy(), measure_cross_terms=True)
    plain, *_ = one_round(noisy())
    assert bits(measured.arrays[0]) == bits(plain.arrays[0])
    update = filters(plain.arrays[0]) - filters(in_float64())
    ratio = norm_ratio(covariance_gap(coefficients, atoms, SHARES), update)
    found = measured.reports[0].metrics["cross_term_ratio"]
    assert found == pytest.approx(ratio, rel=1e-9)
    assert "cross_term_ratio" not in plain.reports[0].metrics


@pytest.mark.parametrize("still", [ATOMS, COEFFICIENTS])
def test_equal_atoms_or_coefficients_make_no_difference(still: str) -> None:
    """Specification's test 6."""
    products, *_ = one_round(noisy(still=(still,)), decomposition_average="products")
    factors, *_ = one_round(noisy(still=(still,)))
    np.testing.assert_allclose(
        filters(products.arrays[0]), filters(factors.arrays[0]), atol=1e-12
    )
    assert products.reports[0].metrics["cross_term_ratio"] < 1e-12


def test_one_client_is_taken_as_it_is() -> None:
    app = make_app(noisy(), wrapped=False)
    grid = Recorder(app, 1)
    strategy = wrap(decomposition_average="products")
    trace = federate(strategy, grid, 1, in_float64())
    (reply,) = (arrays_in(reply)["arrays"] for reply in grid.replies_of(1))
    for name, array in reply.items():
        np.testing.assert_allclose(trace.arrays[0][name], array, atol=1e-12)


def test_the_gap_is_of_second_order() -> None:
    """Specification's test 7: a tenth of the noise, a tenth of the ratio."""
    ratios = [
        one_round(noisy(scale), measure_cross_terms=True)[0].reports[0].metrics
        for scale in (1e-2, 1e-3, 1e-4)
    ]
    found = [ratio["cross_term_ratio"] for ratio in ratios]
    assert found[0] / found[1] == pytest.approx(10, rel=0.2)
    assert found[1] / found[2] == pytest.approx(10, rel=0.02)


def test_weights_are_over_those_who_answered() -> None:
    """Specification's test 8: three of four clients, with the shares of these three."""
    inner = FedAvg(
        min_available_nodes=1, fraction_evaluate=0.0, clients_per_round=3, seed=1
    )
    grid = Recorder(make_app(noisy(), wrapped=False))
    strategy = wrap(inner, decomposition_average="products")
    trace = federate(strategy, grid, 1, in_float64())
    rows = trace.reports[0].train.rows
    assert len(rows) == 3
    counts = np.array([row["num_examples"] for row in rows], dtype=float)
    replies = [arrays_in(reply)["arrays"] for reply in grid.replies_of(1)]
    mean = average_of_products(
        np.array([reply[COEFFICIENTS] for reply in replies]),
        np.array([reply[ATOMS] for reply in replies]),
        counts / counts.sum(),
    )
    np.testing.assert_allclose(filters(trace.arrays[0]), mean, atol=1e-12)


def test_between_uploads_there_are_no_cross_terms() -> None:
    grid = Recorder(make_app(noisy()))
    options = {"decomposition_average": "products", "coefficient_period": 2}
    trace = federate(wrap(**options), grid, 3, in_float64())
    assert ["cross_term_ratio" in r.metrics for r in trace.reports] == [True, False, True]
    first, second = (arrays[COEFFICIENTS] for arrays in trace.arrays[:2])
    assert first.tobytes() == second.tobytes()


def test_more_atoms_than_pixels_keep_coefficients_that_need_no_change() -> None:
    stream = np.random.default_rng(0)
    coefficients, atoms = stream.normal(size=(4, 3, 12)), stream.normal(size=(12, 3, 3))
    same = refactor(multiply(coefficients, atoms), coefficients, atoms)
    np.testing.assert_allclose(same, coefficients, atol=1e-12)
    wanted = stream.normal(size=(4, 3, 3, 3))
    found = refactor(wanted, coefficients, atoms)
    np.testing.assert_allclose(multiply(found, atoms), wanted, atol=1e-12)
    square = atoms[:9]
    direct = wanted.reshape(12, 9) @ np.linalg.pinv(square.reshape(9, 9))
    found = refactor(wanted, coefficients[..., :9], square)
    np.testing.assert_allclose(found, direct.reshape(4, 3, 9), atol=1e-9)


REGAUGED = ("factors-regauged", "products-regauged")


@pytest.mark.parametrize("average", REGAUGED)
def test_the_gauge_changes_no_filter(average: str) -> None:
    """The pair differs by the covariance over clients alone."""
    plain, *_ = one_round(noisy(), decomposition_average=average.removesuffix("-regauged"))
    found, *_ = one_round(noisy(), decomposition_average=average)
    after, before = found.arrays[0], plain.arrays[0]
    np.testing.assert_allclose(filters(after), filters(before), atol=1e-12)
    coefficients, atoms = balanced_factors(filters(after), 9)
    np.testing.assert_allclose(after[ATOMS], atoms, atol=1e-9)
    np.testing.assert_allclose(after[COEFFICIENTS], coefficients, atol=1e-9)
    for name in before:
        if name not in (ATOMS, COEFFICIENTS):
            assert bits(after)[name] == bits(before)[name]
    assert found.reports[0].metrics["cross_term_ratio"] > 0.1


def test_the_pair_is_one_run_where_a_round_has_one_client() -> None:
    """One client has no cross terms."""
    app = make_app(noisy(), wrapped=False)
    ends = [
        federate(wrap(decomposition_average=a), Recorder(app, 1), 2, in_float64()).arrays
        for a in REGAUGED
    ]
    for name in in_float64():
        np.testing.assert_allclose(ends[0][-1][name], ends[1][-1][name], atol=1e-9)


def test_balanced_factors_by_hand() -> None:
    """Singular values 4, 1 of diag(4, 1): factors diag(2, 1) up to signs, and one spare."""
    wanted = np.array([[4.0, 0.0], [0.0, 1.0]]).reshape(2, 1, 1, 2)
    coefficients, atoms = balanced_factors(wanted, 3)
    np.testing.assert_allclose(np.abs(coefficients[:, 0]), [[2, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(np.abs(atoms[:, 0]), [[2, 0], [0, 1], [0, 0]])
    np.testing.assert_allclose(multiply(coefficients, atoms), wanted)
    arrays = {"d": np.ones((3, 1, 2)), "a": np.ones((2, 1, 3)), "h": np.ones(2)}
    found = regauge_model([FactoredLayer("d", "a")], {"a": wanted}, arrays)
    np.testing.assert_array_equal(found["a"], coefficients)
    np.testing.assert_array_equal(found["d"], atoms)
    assert found["h"] is arrays["h"]


@pytest.mark.parametrize("count", [9, 12])
def test_balanced_factors_stay_small_where_atoms_hardly_span(count: int) -> None:
    """Of the filters' own size, in float32 as on the wire; C1's are not."""
    for seed in range(20):
        stream = np.random.default_rng(seed)
        atoms = stream.normal(size=(count, 3, 3)).astype(np.float32)
        atoms[: count - 8] *= np.float32(1e-5)
        arrays = {"d": atoms, "a": np.zeros((4, 3, count), np.float32)}
        wanted = stream.normal(size=(4, 3, 3, 3))
        layer = FactoredLayer("d", "a")
        found = regauge_model([layer], {"a": wanted}, arrays)
        assert found["a"].dtype == found["d"].dtype == np.float32
        np.testing.assert_allclose(layer.filters(found), wanted, atol=1e-5)
        largest = np.linalg.norm(wanted.reshape(12, 9), 2) ** 0.5
        for factor in (found["a"].reshape(12, count), found["d"].reshape(count, 9)):
            assert np.linalg.norm(factor, 2) == pytest.approx(largest, rel=1e-5)
        control = refactor_model([layer], {"a": wanted}, arrays)
        assert np.linalg.norm(control["a"]) > 1000 * largest
        again = regauge_model([layer], {"a": layer.filters(found)}, found)
        np.testing.assert_allclose(np.abs(again["a"]), np.abs(found["a"]), atol=1e-4)


def test_the_gauge_needs_uploads_in_every_round() -> None:
    with pytest.raises(ValueError, match="cannot go with decomposition_average"):
        wrap(decomposition_average="factors-regauged", coefficient_period=2)


@pytest.mark.parametrize("average", ["products", *REGAUGED])
def test_too_few_atoms_are_refused(average: str) -> None:
    start = {
        "c.atoms": np.zeros((8, 3, 3)),
        "c.coefficients": np.zeros((2, 1, 8)),
        "h": np.zeros(2),
    }
    groups = ParameterGroups(
        head=("h",), other=(), atoms=("c.atoms",), coefficients=("c.coefficients",)
    )
    strategy = wrap(groups=groups, decomposition_average=average)
    with pytest.raises(
        ConfigError, match=rf"'{average}': c.atoms has 8 atoms of 3 x 3.*at least 9"
    ):
        federate(strategy, Recorder(make_app(wrapped=False)), 1, start)


@pytest.mark.parametrize(
    "inner",
    [
        QFFL(),
        FedAvg(server_learning_rate=0.5),
        FedAvg(server_momentum=0.9),
        FedAvg(fedvarp=True),
    ],
    ids=["qffl", "rate", "momentum", "fedvarp"],
)
@pytest.mark.parametrize(
    "options", [{"decomposition_average": "products"}, {"measure_cross_terms": True}]
)
def test_other_means_are_refused(inner: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be FedAvg or FedProx"):
        wrap(inner, **options)


def test_fedprox_is_taken() -> None:
    layer = wrap(FedProx(), decomposition_average="products").layer
    assert isinstance(layer, FilterDecomposition)
    assert layer.decomposition_average == "products"
