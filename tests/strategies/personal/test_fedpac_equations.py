"""FedPAC: golden statistics, head weights and prototypes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.personal.fedpac import class_means, feature_variance, scaled_means
from fedsuite.strategies.personal import fedpac
from fedsuite.strategies.personal.fedpac import (
    collaboration_matrix,
    head_weights,
    mean_prototypes,
)
from tests.strategies.personal.own_heads import MEANS, VARIANCES

FEATURES = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
LABELS = np.array([0, 1, 0])


def test_golden_statistics() -> None:
    assert feature_variance(FEATURES, LABELS, 2) == pytest.approx(0.814815, abs=1e-6)
    assert class_means(FEATURES, LABELS, 3).tolist() == [[2, 0], [0, 2], [0, 0]]
    expected = [[4 / 3, 0], [0, 2 / 3], [0, 0]]
    assert scaled_means(FEATURES, LABELS, 3) == pytest.approx(np.array(expected))


@given(st.integers(0, 20), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_variance_is_the_papers_sum(count: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features, labels = rng.normal(2, 1, (count, 3)), rng.integers(0, classes, count)
    total = 0.0
    for label in range(classes):
        held = features[labels == label]
        if len(held):
            share = len(held) / count
            square = np.square(held).sum(axis=1).mean()
            total += share * square - share**2 * np.square(held.mean(axis=0)).sum()
    expected = total / max(count, 1)
    assert feature_variance(features, labels, classes) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("client", "diagonal", "weights"),
    [(0, [0.04, 0.07], [0.636364, 0.363636]), (1, [0.09, 0.02], [0.181818, 0.818182])],
)
def test_golden_weights(client: int, diagonal: list[float], weights: list[float]) -> None:
    matrix = collaboration_matrix(MEANS, VARIANCES, client)
    assert matrix == pytest.approx(np.diag(diagonal), abs=1e-12)
    assert head_weights(matrix, client) == pytest.approx(np.array(weights), abs=1e-6)


def test_matrix_off_the_diagonal() -> None:
    """<H_0 - H_1, H_0 - H_2> for the first of three."""
    means = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    matrix = collaboration_matrix(means, np.array([5.0, 7.0, 11.0]), 0)
    assert matrix.tolist() == [[5, 0, 0], [0, 9, -2], [0, -2, 15]]


def test_equal_clients_count_by_variance() -> None:
    means, variances = np.ones((3, 4)), np.array([1.0, 2.0, 4.0])
    for client in range(3):
        weights = head_weights(collaboration_matrix(means, variances, client), client)
        assert weights == pytest.approx(np.array([4, 2, 1]) / 7)


def test_small_weights_are_none() -> None:
    weights = head_weights(np.diag([1.0, 1500.0, 500.0]), 0)
    assert weights[1] == 0
    assert weights == pytest.approx(np.array([500 / 501, 0, 1 / 501]), rel=1e-6)
    many = head_weights(np.eye(1100), 0)
    assert many == pytest.approx(np.full(1100, 1 / 1100))


def test_a_solver_that_fails_leaves_the_own_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(matrix: Any) -> Any:
        raise RuntimeError("no end")

    monkeypatch.setattr(fedpac, "least_form_on_simplex", fail)
    assert head_weights(np.eye(3), 1).tolist() == [0, 1, 0]


def test_golden_prototypes() -> None:
    means = [np.array([[1.0, 0.0], [9.0, 9.0]]), np.array([[0.0, 1.0], [9.0, 9.0]])]
    counts = [np.array([2.0, 0.0]), np.array([3.0, 0.0])]
    prototypes, present = mean_prototypes(means, counts)
    assert prototypes == pytest.approx(np.array([[0.4, 0.6], [0.0, 0.0]]))
    assert present.tolist() == [1, 0]
