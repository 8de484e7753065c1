"""How much the variance falls by averaging factors apart."""

import numpy as np
import pytest

from fedsuite.analyses.latent_variance import simulated_variance_ratio, variance_ratio

COUNTS = (10, 20, 30, 40)

# Of 10 equal clients: (2 + 0.1) / 3 by hand first, the paper's 1 / 10 last.
RATIOS = [
    ((1.0, 1.0), (1.0, 1.0), 0.70),
    ((1.0, 1.0), (0.1, 0.1), 0.9955),
    ((0.3, 0.3), (1.0, 1.0), 0.2373),
    ((2.0, 1.0), (1.0, 0.5), (2.0 + 0.025) / 2.25),
    ((0.0, 0.0), (1.0, 1.0), 0.10),
]


@pytest.mark.parametrize(("means", "deviations", "expected"), RATIOS)
def test_variance_falls_less_than_the_paper_says(means, deviations, expected):
    assert variance_ratio([1] * 10, means, deviations) == pytest.approx(expected, abs=1e-4)
    simulated = simulated_variance_ratio([1] * 10, means, deviations)
    assert simulated == pytest.approx(expected, abs=0.02 if any(means) else 0.01)


def test_variance_ratio_of_unequal_clients():
    """S_2 is 0.3: (2 + 0.3) / 3."""
    found = variance_ratio(COUNTS, (1.0, 1.0), (1.0, 1.0))
    assert found == pytest.approx(2.3 / 3)
    simulated = simulated_variance_ratio(COUNTS, (1.0, 1.0), (1.0, 1.0))
    assert simulated == pytest.approx(2.3 / 3, abs=0.02)


def test_simulation_is_seeded():
    arguments = ([1, 1], (1.0, 0.5), (1.0, 1.0))
    first = simulated_variance_ratio(*arguments, draws=100, seed=1)
    assert simulated_variance_ratio(*arguments, draws=100, seed=1) == first
    assert simulated_variance_ratio(*arguments, draws=100, seed=2) != first


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2, 3, -1], ">= 0"),
        ([0, 0, 0, 0], "not all 0"),
        ([1, 2, 3, np.inf], "finite"),
        ([[1, 2]], "a vector"),
    ],
)
def test_weights_that_are_none_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        variance_ratio(weights, (1.0, 1.0), (1.0, 1.0))


def test_ratio_of_what_does_not_vary_is_refused():
    with pytest.raises(ValueError, match="nothing varies"):
        variance_ratio([1, 1], (1.0, 1.0), (0.0, 0.0))
