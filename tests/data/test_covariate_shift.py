"""The generators of covariate shift (tests 11 and 12 of FedAKD's specification)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import DataError
from fedsuite.data import (
    PARTITIONERS,
    CovariateShift,
    Samples,
    covariate_shift,
)
from fedsuite.data.covariate_shift import (
    displacement,
    draw_rows,
    effective_size,
    ratio_log_weights,
)
from fedsuite.data.pca import fit_frame
from fedsuite.data.shift_report import measure_shift

STRENGTHS = (2.0, 5.0, 10.0)


@pytest.fixture(scope="module")
def gaussian():
    """A Gaussian pool of 5 unlike, correlated inputs, and a smaller test pool."""
    rng = np.random.default_rng(11)
    mixing = rng.normal(size=(5, 5)) * [1, 4, 0.2, 9, 2]
    pools = [rng.normal(size=(n, 5)) @ mixing + 3 for n in (400_000, 40_000)]
    labels = [(pool[:, 0] > 3).astype(np.int64) for pool in pools]
    return Samples(*labels, train_features=pools[0], test_features=pools[1])


def divided(samples, name, num_clients=10, seed=0, **options):
    given = {"shift-dimensions": 5} | {k.replace("_", "-"): v for k, v in options.items()}
    return PARTITIONERS[name].of(given).divide(samples, num_clients, seed)


def column(partition, name):
    return np.array([getattr(shift, name) for shift in partition.shifts])


@given(st.integers(1, 30), st.floats(0.01, 50), st.integers(0, 1000))
def test_a_displacement_has_the_squared_length_asked_for(dimensions, asked, seed):
    shift = displacement(np.random.default_rng(seed), dimensions, asked)
    assert abs(np.square(shift).sum() - asked) < 1e-8


def in_inputs(frame, white):
    """Return the displacement of inputs for one of the frame's coordinates."""
    return (white * frame.deviations) @ frame.components


def test_in_units_of_the_inputs_it_is_the_mahalanobis_distance(gaussian):
    frame = fit_frame(gaussian.train_features, 5)
    delta = in_inputs(frame, displacement(np.random.default_rng(1), 5, 5.0))
    covariance = np.cov(gaussian.train_features, rowvar=False, bias=True)
    assert abs(delta @ np.linalg.inv(covariance) @ delta - 5.0) < 1e-8


def test_log_weights_are_those_of_the_gaussians(gaussian):
    """Against densities from explicit means and covariances, in units of the inputs."""
    frame = fit_frame(gaussian.train_features, 5)
    shift = displacement(np.random.default_rng(1), 5, 5.0)
    rows = gaussian.train_features[:50]
    covariance = np.cov(gaussian.train_features, rowvar=False, bias=True)

    def log_density(mean):
        away = rows - mean
        return -np.einsum("nd,de,ne->n", away, np.linalg.inv(covariance), away) / 2

    shifted = log_density(frame.mean + in_inputs(frame, shift))
    ratio = ratio_log_weights(frame.whiten(rows), shift)
    assert np.allclose(np.diff(ratio), np.diff(shifted - log_density(frame.mean)))


def test_the_density_ratio_reaches_the_shift(gaussian):
    """FedAKD's specification found 2.0, 5.1 and 9.1 with variance 1, on its own draws."""
    options = {"power_law_exponent": 0.0, "data_fraction": 0.125}  # 5,000 rows each
    reached = []
    for asked in STRENGTHS:
        parts = divided(gaussian, "covariate-shift", squared_shift=asked, **options)
        assert {len(rows) for rows in parts.train} == {5000}
        # One far row of the pool can carry a client; it must not carry the test.
        median = np.median(column(parts, "squared_shift"))
        assert median == pytest.approx(asked, rel=0.1)
        assert np.median(column(parts, "test_squared_shift")) == pytest.approx(
            asked, rel=0.2
        )
        assert np.median(column(parts, "variance")) == pytest.approx(1, abs=0.05)
        reached.append(median)
    assert reached == sorted(reached)


def test_without_a_shift_nothing_is_drawn_more_often(gaussian):
    plain = divided(gaussian, "covariate-shift", squared_shift=0.0)
    assert column(plain, "variance").mean() == pytest.approx(1, abs=0.02)
    assert column(plain, "effective_size") == pytest.approx([400_000] * 10)


def test_effective_size_is_that_of_the_theory(gaussian):
    """N exp(-C) for the ratio, in a Gaussian pool."""
    parts = divided(gaussian, "covariate-shift", squared_shift=1.0)
    expected = 400_000 * np.exp(-1.0)
    assert column(parts, "effective_size") == pytest.approx([expected] * 10, rel=0.1)


def test_sizes_are_equal_or_power_law(gaussian):
    sizes = [len(rows) for rows in divided(gaussian, "covariate-shift").train]
    assert sizes == [len(rows) for rows in divided(gaussian, "power-law").train]
    equal = divided(gaussian, "covariate-shift", power_law_exponent=0.0, data_fraction=0.5)
    assert {len(rows) for rows in equal.train} == {20_000}
    assert {len(rows) for rows in equal.test} == {2_000}


def test_partitions_of_different_shifts_differ(gaussian):
    first, second, third = (
        divided(gaussian, "covariate-shift", squared_shift=asked, data_fraction=0.1).train
        for asked in STRENGTHS
    )
    for one, other in ((first, second), (second, third)):
        pairs = zip(one, other, strict=True)
        assert not any(np.array_equal(a, b) for a, b in pairs)


def test_a_clients_direction_is_its_own(gaussian, monkeypatch):
    """It does not depend on C, on the sizes, or on how many clients there are."""
    found = []

    def watched(rng, dimensions, squared_shift):
        found.append(displacement(rng, dimensions, squared_shift))
        return found[-1]

    monkeypatch.setattr(covariate_shift, "displacement", watched)
    divided(gaussian, "covariate-shift", 3, squared_shift=1.0, data_fraction=0.1)
    divided(gaussian, "covariate-shift", 5, squared_shift=4.0, power_law_exponent=0.0)
    divided(gaussian, "covariate-shift", 3, seed=1, squared_shift=1.0, data_fraction=0.1)
    assert np.allclose(2 * np.array(found[:3]), found[3:6])
    assert not np.allclose(found[0], found[1])
    assert not np.allclose(found[0], found[8])


class TestDraws:
    @pytest.mark.parametrize("offset", [0.0, -1e5, 1e5])
    def test_chances_are_proportional_to_weights(self, offset):
        """Weights 1 to 3, far beyond what exp can hold without log arithmetic."""
        log_weights = offset + np.log([1.0, 3.0])
        rng = np.random.default_rng(2)
        draws = [draw_rows(rng, log_weights, 1)[0] for _ in range(4000)]
        assert np.mean(draws) == pytest.approx(0.75, abs=0.03)

    @pytest.mark.parametrize("offset", [0.0, -1e5, 1e5])
    def test_effective_size_by_hand(self, offset):
        assert effective_size(offset + np.log([1.0, 1.0, 2.0])) == pytest.approx(16 / 6)
        assert effective_size(offset + np.zeros(7)) == pytest.approx(7)


class TestReport:
    white = np.array([[-1.0], [1.0], [3.0], [5.0]]), np.array([[2.0], [4.0]])
    labels = np.array([0, 0, 1, 1])

    def measured(self, rows, test_rows=(0, 1)):
        rows, test_rows = np.array(rows), np.array(test_rows, np.int64)
        return measure_shift(self.white, self.labels, [rows], [test_rows], [2.5])[0]

    def test_by_hand(self):
        shift = self.measured([1, 2, 2, 3])  # 1, 3, 3, 5
        assert shift.squared_shift == pytest.approx(9.0)
        assert shift.test_squared_shift == pytest.approx(9.0)
        assert shift.variance == pytest.approx(2.0)
        assert shift.effective_size == 2.5
        assert shift.distinct == 3
        assert shift.label_drift == pytest.approx(0.25)  # (1/4, 3/4) from (1/2, 1/2)
        # KL(N(3, 2) || N(0, 1)) = (2 - 1 + 9 - ln 2) / 2
        assert shift.divergence == pytest.approx((10 - np.log(2)) / 2)

    def test_no_test_rows_and_no_variance(self):
        shift = self.measured([2, 2], ())
        assert shift.test_squared_shift is None
        assert shift.divergence is None
        assert shift.distinct == 1


def test_divergence_in_two_dimensions():
    """Covariance diag(4, 1) around (1, 0): (4 + 1 - 2 + 1 - ln 4) / 2."""
    points = np.array([[3.0, 1.0], [3.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    report = measure_shift(
        (points, points), np.zeros(4, np.int64), [np.arange(4)], [np.arange(4)], [4.0]
    )
    assert report[0].divergence == pytest.approx((4 - np.log(4)) / 2)


def test_inputs_are_needed(gaussian):
    with pytest.raises(DataError, match="goes by the inputs, and none were given"):
        CovariateShift().divide(Samples(np.arange(9), np.arange(9)), 2, 0)


def test_too_many_clients_is_our_error(gaussian):
    few = Samples(
        gaussian.train_labels[:40],
        gaussian.test_labels[:40],
        train_features=gaussian.train_features[:40],
        test_features=gaussian.test_features[:40],
    )
    with pytest.raises(DataError, match="client 13 of num-clients = 30 gets none"):
        divided(few, "covariate-shift", 30)
