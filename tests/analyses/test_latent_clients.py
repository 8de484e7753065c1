"""Latent clients: the identity, its corollaries, and how much the variance falls."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.analyses.latent_clients import (
    average_of_products,
    covariance_gap,
    latent_client_decomposition,
    product_of_averages,
    simulated_variance_ratio,
    variance_ratio,
)
from fedsuite.models.decomposed import DecomposedConv2d
from fedsuite.rounds.aggregation import weighted_mean

COUNTS = (10, 20, 30, 40)


def factors(num_clients=4, out=3, channels=2, atoms=5, seed=0, spread=1.0):
    stream = np.random.default_rng(seed)
    start = stream.normal(size=(out, channels, atoms)), stream.normal(size=(atoms, 3, 3))
    return tuple(
        part + spread * stream.normal(size=(num_clients, *part.shape)) for part in start
    )


def filters(coefficients, atoms):
    layer = DecomposedConv2d(torch.tensor(atoms), torch.tensor(coefficients))
    return layer.filters().detach().numpy()


def test_terms_add_up_to_what_the_server_makes():
    """What FedAvg makes of the factors, as the layer multiplies it."""
    coefficients, atoms = factors()
    replies = [{"a": a, "d": d} for a, d in zip(coefficients, atoms, strict=True)]
    mean = weighted_mean(replies, COUNTS)
    aggregate = filters(mean["a"], mean["d"])
    by_hand = sum(
        COUNTS[i] * COUNTS[j] / 10_000 * filters(coefficients[i], atoms[j])
        for i in range(4)
        for j in range(4)
    )
    np.testing.assert_allclose(aggregate, by_hand, rtol=0, atol=1e-12)
    terms = latent_client_decomposition(coefficients, atoms, COUNTS)
    np.testing.assert_allclose(terms.total(), aggregate, rtol=0, atol=1e-12)
    product = product_of_averages(coefficients, atoms, COUNTS)
    np.testing.assert_allclose(product, aggregate, rtol=0, atol=1e-12)


def test_each_term_by_hand():
    coefficients, atoms = factors()
    terms = latent_client_decomposition(coefficients, atoms, COUNTS)
    assert terms.real.shape == (4, 3, 2, 3, 3)
    assert terms.latent.shape == (12, 3, 2, 3, 3)
    assert terms.real_weights == pytest.approx([0.01, 0.04, 0.09, 0.16])
    assert terms.real_weights.sum() == pytest.approx(0.30)
    assert terms.latent_weights.sum() == pytest.approx(0.70)
    assert terms.pairs[:4].tolist() == [[0, 1], [0, 2], [0, 3], [1, 0]]
    assert terms.latent_weights[:4] == pytest.approx([0.02, 0.03, 0.04, 0.02])
    np.testing.assert_allclose(terms.real[2], 0.09 * filters(coefficients[2], atoms[2]))
    expected = 0.02 * filters(coefficients[0], atoms[1])
    np.testing.assert_allclose(terms.latent[0], expected)


def test_it_is_not_fedavg_on_filters():
    coefficients, atoms = factors()
    average = average_of_products(coefficients, atoms, COUNTS)
    by_hand = sum(
        n / 100 * filters(coefficients[k], atoms[k]) for k, n in enumerate(COUNTS)
    )
    np.testing.assert_allclose(average, by_hand, rtol=0, atol=1e-12)
    product = product_of_averages(coefficients, atoms, COUNTS)
    assert np.linalg.norm(average - product) > 0.1 * np.linalg.norm(product)
    gap = covariance_gap(coefficients, atoms, COUNTS)
    np.testing.assert_allclose(average - product, gap, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shared", ["coefficients", "atoms"])
def test_one_shared_factor_leaves_no_gap(shared):
    coefficients, atoms = factors()
    if shared == "coefficients":
        coefficients = np.repeat(coefficients[:1], 4, axis=0)
    else:
        atoms = np.repeat(atoms[:1], 4, axis=0)
    average = average_of_products(coefficients, atoms, COUNTS)
    product = product_of_averages(coefficients, atoms, COUNTS)
    np.testing.assert_allclose(average, product, rtol=0, atol=1e-12)
    assert np.abs(covariance_gap(coefficients, atoms, COUNTS)).max() < 1e-12


def test_one_client_has_no_latent_ones():
    coefficients, atoms = factors(num_clients=1)
    terms = latent_client_decomposition(coefficients, atoms, [7])
    assert terms.latent.shape == (0, 3, 2, 3, 3)
    assert terms.pairs.shape == (0, 2)
    assert terms.real_weights.tolist() == [1.0]
    np.testing.assert_allclose(terms.total(), filters(coefficients[0], atoms[0]))


def test_gap_is_of_second_order():
    """A tenth of the drift: a hundredth of the gap, a tenth of the update."""
    start = factors(num_clients=4, spread=0.0)
    origin = filters(start[0][0], start[1][0])
    gaps, updates = [], []
    for spread in (0.1, 0.01):
        moved = factors(num_clients=4, spread=spread)
        gaps.append(np.linalg.norm(covariance_gap(*moved, COUNTS)))
        updates.append(np.linalg.norm(product_of_averages(*moved, COUNTS) - origin))
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=1e-9)
    assert updates[0] / updates[1] == pytest.approx(10, rel=0.1)


def test_one_basis_for_all_changes_nothing_and_one_for_one_client_does():
    coefficients, atoms = factors()
    stream = np.random.default_rng(1)
    matrix = stream.normal(size=(5, 5)) + 3 * np.eye(5)
    other_atoms = np.einsum("pq,kqxy->kpxy", np.linalg.inv(matrix), atoms)
    other_coefficients = coefficients @ matrix
    np.testing.assert_allclose(
        filters(other_coefficients[1], other_atoms[1]), filters(coefficients[1], atoms[1])
    )
    plain = product_of_averages(coefficients, atoms, COUNTS)
    everywhere = product_of_averages(other_coefficients, other_atoms, COUNTS)
    np.testing.assert_allclose(everywhere, plain, rtol=0, atol=1e-10)
    once_coefficients, once_atoms = coefficients.copy(), atoms.copy()
    once_coefficients[0], once_atoms[0] = other_coefficients[0], other_atoms[0]
    once = product_of_averages(once_coefficients, once_atoms, COUNTS)
    assert np.linalg.norm(once - plain) > 0.05 * np.linalg.norm(plain)


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any),
    seed=st.integers(0, 1000),
)
def test_identities_hold_for_any_weights(counts, seed):
    coefficients, atoms = factors(num_clients=len(counts), seed=seed)
    terms = latent_client_decomposition(coefficients, atoms, counts)
    assert terms.real_weights.sum() + terms.latent_weights.sum() == pytest.approx(1)
    assert len(terms.latent) == len(counts) ** 2 - len(counts)
    product = product_of_averages(coefficients, atoms, counts)
    gap = covariance_gap(coefficients, atoms, counts)
    average = average_of_products(coefficients, atoms, counts)
    np.testing.assert_allclose(terms.total(), product, rtol=0, atol=1e-12)
    np.testing.assert_allclose(product + gap, average, rtol=0, atol=1e-12)


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
    ("change", "message"),
    [
        ({"weights": [1, 2, 3]}, "3 weights"),
        ({"weights": [1, 2, 3, -1]}, ">= 0"),
        ({"weights": [0, 0, 0, 0]}, "not all 0"),
        ({"weights": [1, 2, 3, np.inf]}, "finite"),
        ({"atoms": np.zeros((4, 6, 3, 3))}, r"atoms \(4, 6, 3, 3\)"),
        ({"atoms": np.zeros((4, 5, 9))}, r"atoms \(4, 5, 9\)"),
        ({"coefficients": np.zeros((3, 3, 2, 5))}, r"coefficients \(3, 3, 2, 5\)"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    coefficients, atoms = factors()
    arguments = {"coefficients": coefficients, "atoms": atoms, "weights": COUNTS} | change
    with pytest.raises(ValueError, match=message):
        latent_client_decomposition(**arguments)


def test_ratio_of_what_does_not_vary_is_refused():
    with pytest.raises(ValueError, match="nothing varies"):
        variance_ratio([1, 1], (1.0, 1.0), (0.0, 0.0))
