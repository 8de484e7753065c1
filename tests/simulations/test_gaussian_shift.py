"""Theorem 2.2 of FedAKD's paper: expansions, exact divergences, and simulated ones."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.fedakd.gaussian_shift import (
    SCALES,
    Shift,
    corrected_shift,
    exact_shift,
    expected_fit_kl,
    fit_inverse,
    gaussian_kl,
    law_of_samples,
    printed_shift,
    random_shift,
    simulated_fit_kl,
    trace_fixed_shift,
)


def one_dimension(variance: float, mean: float, change: float) -> Shift:
    return Shift(np.array([[variance]]), np.array([mean]), np.array([[change]]))


def test_one_dimension_by_hand():
    """Variance 2 to 3 and mean 0 to 1: d S = 1/2, S = 1/2."""
    shift = one_dimension(2.0, 1.0, 1.0)
    assert exact_shift(shift) == pytest.approx(0.5 * (1.5 - 1 + 0.5 - np.log(1.5)))
    # 1/4 (1/4)^2 - 1/2 (1/8) + 1/2 x 1/2 x 1/2
    assert printed_shift(shift) == pytest.approx(1 / 64 - 1 / 16 + 1 / 8)
    # The first term is 1/4 (1/2)^2.
    assert trace_fixed_shift(shift) == pytest.approx(1 / 16 - 1 / 16 + 1 / 8)
    assert corrected_shift(shift) == pytest.approx(1 / 16 - 1 / 48 + 1 / 4)


def test_mean_term_is_exact_and_not_bent_by_the_covariance():
    shift = one_dimension(4.0, 3.0, 0.0)
    assert exact_shift(shift) == pytest.approx(9 / 8)
    assert corrected_shift(shift) == pytest.approx(9 / 8)


@pytest.mark.parametrize("dimensions", [2, 5, 9])
def test_orders_of_the_errors(dimensions):
    """Half the shift leaves a sixteenth of the corrected error, an eighth of the other."""
    shift = random_shift(dimensions, 3)

    def ratio(function, scale):
        large, small = (
            function(shift.scaled(s)) - exact_shift(shift.scaled(s))
            for s in (scale, scale / 2)
        )
        return large / small

    assert ratio(corrected_shift, 0.02) == pytest.approx(16, rel=0.1)
    assert ratio(trace_fixed_shift, 0.02) == pytest.approx(8, rel=0.1)
    # Wrong in the leading term already: the error falls as the divergence itself.
    assert ratio(printed_shift, 2e-4) == pytest.approx(4, rel=0.1)


def test_printed_form_is_right_near_the_standard_gaussian():
    """There the printed first term is the trace: it is the trace fix."""
    shift = random_shift(5, 1)
    standard = Shift(np.eye(5), shift.mean_shift, shift.covariance_shift)
    assert printed_shift(standard) == pytest.approx(trace_fixed_shift(standard))
    assert printed_shift(shift) != pytest.approx(trace_fixed_shift(shift), rel=0.1)


def test_errors_of_the_specifications_table():
    """Exact, trace fix and corrected of its random 5 x 5 example, by their errors."""
    exact = np.array([0.07695, 0.02003, 0.00513])
    trace_fix = np.array([0.05279, 0.01715, 0.00478])
    corrected = np.array([0.07451, 0.01986, 0.00512])
    shifts = [random_shift(5, 0).scaled(scale) for scale in SCALES[:3]]
    ours = np.array([exact_shift(shift) for shift in shifts])
    # Successive divergences, and errors of both forms, fall as in the table.
    falls = exact[:-1] / exact[1:]
    assert ours[:-1] / ours[1:] == pytest.approx(falls, rel=0.05)
    for function, published in (
        (trace_fixed_shift, trace_fix),
        (corrected_shift, corrected),
    ):
        errors = ours - [function(shift) for shift in shifts]
        expected = exact - published
        assert (errors > 0).all()
        assert errors[0] / errors[1] == pytest.approx(expected[0] / expected[1], rel=0.15)


@given(st.integers(1, 6), st.integers(0, 99))
def test_divergence_is_zero_of_equal_gaussians_and_positive_otherwise(dimensions, seed):
    shift = random_shift(dimensions, seed)
    assert exact_shift(shift.scaled(0.0)) == pytest.approx(0, abs=1e-12)
    assert exact_shift(shift.scaled(0.5)) > 0


def test_divergence_does_not_know_the_coordinates():
    shift, change = random_shift(4, 0), np.triu(np.arange(1.0, 17.0).reshape(4, 4))
    moved = Shift(
        change @ shift.covariance @ change.T,
        change @ shift.mean_shift,
        change @ shift.covariance_shift @ change.T,
    )
    for function in (exact_shift, corrected_shift, trace_fixed_shift):
        assert function(moved.scaled(0.3)) == pytest.approx(function(shift.scaled(0.3)))
    # The printed form does, which alone shows that it is no divergence.
    assert printed_shift(moved) != pytest.approx(printed_shift(shift), rel=0.1)


def test_what_is_no_covariance_is_refused():
    with pytest.raises(ValueError, match="not positive definite"):
        gaussian_kl(np.zeros(2), np.diag([1.0, -1.0]), np.zeros(2), np.eye(2))


def test_law_of_samples_and_that_of_the_appendix():
    assert law_of_samples(5, 1000) == pytest.approx(0.0100)
    assert law_of_samples(5, 1000, 4) == pytest.approx(0.01125)
    assert law_of_samples(100, 400) == pytest.approx(6.4375)


def test_exact_mean_of_one_dimension():
    """A = 10, M = 1: (log 5 - psi(9/2)) / 2, and (11 / 7 - 1 + psi(9/2) - log 5) / 2."""
    psi = -np.euler_gamma - 2 * np.log(2) + 2 * (1 + 1 / 3 + 1 / 5 + 1 / 7)
    forward, backward = expected_fit_kl(1, 10)
    assert forward == pytest.approx((np.log(5) - psi) / 2)
    assert backward == pytest.approx((11 / 7 - 1 + psi - np.log(5)) / 2)


def test_simulation_tells_the_law_from_that_of_the_appendix():
    """M = 5, A = 1000: the specification simulated 0.0103 against 0.0100 and 0.0113."""
    forward, backward = simulated_fit_kl(5, 1000, 1500, 0)
    assert forward == pytest.approx(0.01002, abs=0.0004)
    assert backward == pytest.approx(0.01012, abs=0.0004)


def test_simulated_fit_is_that_of_maximum_likelihood():
    """Of few samples it matters whether A or A - 1 divides."""
    assert simulated_fit_kl(2, 12, 4000, 0) == pytest.approx(
        expected_fit_kl(2, 12), rel=0.05
    )


def test_law_is_low_for_few_samples_in_both_directions():
    """M = 100, A = 400: about 7 and 10, against a law of 6.4."""
    exact = expected_fit_kl(100, 400)
    assert exact == pytest.approx((7.06, 10.22), abs=0.01)
    assert simulated_fit_kl(100, 400, 20, 0) == pytest.approx(exact, rel=0.02)


def test_exact_means_near_the_law_with_many_samples():
    for way in (0, 1):
        found = expected_fit_kl(7, 200_000)[way]
        assert found == pytest.approx(law_of_samples(7, 200_000), rel=1e-3)


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="7 samples in 5 dimensions: expected more than 7"):
        expected_fit_kl(5, 7)


def test_fit_finds_a_and_b():
    samples = np.array([300.0, 1000.0, 4000.0, 20000.0])
    line = fit_inverse(samples, 3579.39 / samples + 0.63)
    assert line == pytest.approx((3579.39, 0.63))
    assert line.at(samples) == pytest.approx(3579.39 / samples + 0.63)


def test_fit_of_the_law_has_no_constant():
    """Figure 4's theory for M = 100 is 2575 / n; its fit says 3301 / n - 0.06."""
    samples = np.array([500.0, 2000.0, 8000.0])
    line = fit_inverse(samples, np.array([law_of_samples(100, int(n)) for n in samples]))
    assert line == pytest.approx((2575.0, 0.0), abs=1e-9)


def test_command_leaves_table_and_plot(simulate):
    code, out, _ = simulate("fedakd.gaussian_shift", "--draws", 5, "--dimensions", 3)
    assert code == 0
    assert "theory a = 4.5" in " ".join(out.split())
    with open(Path("analysis") / "gaussian_shift.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows[:4]] == list(SCALES)
    assert len(rows) == 4 + 2 * 7
    assert float(rows[4]["exact"]) == pytest.approx(expected_fit_kl(3, 20)[0])
    assert (Path("analysis") / "gaussian_shift.png").stat().st_size > 1000
