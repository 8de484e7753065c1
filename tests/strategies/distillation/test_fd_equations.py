"""FD: the specification's numbers through pure functions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.distillation.fd import regulariser
from fedsuite.strategies.distillation.fd import others_means
from tests.strategies.distillation.class_means import (
    G_LOGIT,
    LABELS,
    M_LOGIT,
    PHI,
    L,
    table,
)


def test_golden_means_of_others() -> None:
    pairs = [table(rows_of) for rows_of in M_LOGIT]
    tables = {k: pair[0] for k, pair in enumerate(pairs)}
    present = {k: pair[1] for k, pair in enumerate(pairs)}
    found = others_means(tables, present, (0, 1, 2, 7))
    for client_id in range(3):
        expected, there = table(G_LOGIT[client_id])
        np.testing.assert_allclose(found[client_id][0], expected, atol=1e-12)
        np.testing.assert_array_equal(found[client_id][1], there)
    # One that has no table gets the mean over all that do.
    np.testing.assert_allclose(found[7][0][0], (1, 1.25, -1))


@pytest.mark.parametrize("client_id", range(3))
@pytest.mark.parametrize(("space", "kind"), [key for key in PHI if key[0] == "logit"])
def test_golden_regularisers(space: str, kind: str, client_id: int) -> None:
    logits = torch.tensor(L[client_id], dtype=torch.float64)
    targets = torch.tensor(table(G_LOGIT[client_id])[0])[list(LABELS[client_id])]
    there = torch.ones(3, dtype=torch.bool)
    phi = regulariser(logits, targets, there, space, kind)
    assert float(phi) == pytest.approx(PHI[space, kind][client_id], abs=1e-6)
    # A sample without a target counts as 0, and in the mean.
    without = torch.tensor([True, False, True])
    first = regulariser(logits[[0, 2]], targets[[0, 2]], there[:2], space, kind)
    phi = regulariser(logits, targets, without, space, kind)
    assert float(phi) == pytest.approx(float(first) * 2 / 3)


def test_regularisers_on_probabilities() -> None:
    logits = torch.tensor([[0.0, 0.0], [1.0, -1.0]], dtype=torch.float64)
    target = torch.tensor([[0.75, 0.25], [1.0, 0.0]], dtype=torch.float64)
    there = torch.ones(2, dtype=torch.bool)
    p = 1 / (1 + math.exp(-2))
    kl = (math.log(2) + 0.75 * math.log(0.75) + 0.25 * math.log(0.25) - math.log(p)) / 2
    assert float(regulariser(logits, target, there, "prob", "kl")) == pytest.approx(kl)
    mse = (0.25**2 + (1 - p) ** 2) / 2
    assert float(regulariser(logits, target, there, "prob", "mse")) == pytest.approx(mse)


def test_no_gradient_from_samples_without_a_target() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    there = torch.tensor([True, False])
    regulariser(logits, torch.eye(3)[:2], there, "prob", "ce").backward()
    assert logits.grad is not None
    assert logits.grad[0].any() and not logits.grad[1].any()


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_means_of_others_are_the_sums_in_any_order(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    present = {k: rng.random(4) < 0.6 for k in range(count)}
    tables = {k: rng.normal(size=(4, 3)) * present[k][:, None] for k in range(count)}
    found = others_means(tables, present, range(count))
    names = rng.permutation(count).tolist()
    renamed = others_means(
        {names[k]: tables[k] for k in tables},
        {names[k]: present[k] for k in tables},
        range(count),
    )
    for k in range(count):
        for label in range(4):
            held = [tables[m][label] for m in tables if m != k and present[m][label]]
            assert found[k][1][label] == bool(held)
            if held:
                np.testing.assert_allclose(found[k][0][label], np.mean(held, axis=0))
                np.testing.assert_allclose(renamed[names[k]][0], found[k][0], atol=1e-12)


def test_probabilities_of_others_are_never_below_zero() -> None:
    """What a subtraction of the own row from the sum would leave."""
    rng = np.random.default_rng(0)
    tables = {k: rng.dirichlet([0.01] * 5, size=5).astype(np.float32) for k in range(50)}
    present = {k: np.ones(5, bool) for k in tables}
    for mean, _ in others_means(tables, present, list(tables)).values():
        assert mean.min() >= 0
