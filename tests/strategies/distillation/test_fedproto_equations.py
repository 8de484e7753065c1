"""FedProto's means, loss and nearest prototype: the specification's numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsuite.clients.distillation.fedproto import NearestPrototype, prototype_loss
from fedsuite.strategies.distillation.class_tables import mean_rows
from tests.strategies.distillation.prototypes import BY_COUNT, TABLES, UNIFORM


def filled(held: dict[int, Any]) -> np.ndarray:
    found = np.zeros((3, 2))
    for label, row in held.items():
        found[label] = row
    return found


def test_golden_aggregations() -> None:
    found = [filled(held) for held, _ in TABLES]
    counts = [np.array(count) for _, count in TABLES]
    means, present = mean_rows(found, [count > 0 for count in counts])
    np.testing.assert_allclose(means, UNIFORM, atol=1e-12)
    assert present.tolist() == [True] * 3
    means, _ = mean_rows(found, counts)
    np.testing.assert_allclose(means, BY_COUNT, atol=1e-12)
    _, present = mean_rows(found[:2], counts[:2])
    assert present.tolist() == [True, True, False]


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_means_are_of_those_that_have_the_class_in_any_order(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = [rng.integers(0, 3, 4) for _ in range(count)]
    tables = [rng.normal(size=(4, 2)) for _ in range(count)]
    means, present = mean_rows(tables, weights)
    order = rng.permutation(count)
    again, _ = mean_rows([tables[k] for k in order], [weights[k] for k in order])
    np.testing.assert_allclose(again, means, atol=1e-12)
    for label in range(4):
        shares = [weight[label] for weight in weights]
        assert present[label] == any(shares)
        if any(shares):
            expected = np.average([t[label] for t in tables], axis=0, weights=shares)
            np.testing.assert_allclose(means[label], expected, atol=1e-12)


def test_golden_loss() -> None:
    features = torch.tensor([[1.0, 1], [0, 0], [2, 2]], requires_grad=True)
    table = torch.tensor(UNIFORM, dtype=torch.float32)
    present = torch.tensor([True, True, False])
    loss = prototype_loss(features, table, present)
    assert loss.item() == pytest.approx(1.166667, abs=1e-6)
    loss.backward()
    expected = [(-1 / 3, 1 / 3), (-1 / 3, -2 / 3), (0, 0)]
    np.testing.assert_allclose(features.grad, expected, atol=1e-6)
    assert float(prototype_loss(table, table, ~present | present)) == 0


def test_the_nearest_prototype_among_candidates() -> None:
    model = nn.Linear(2, 3)
    prototypes = torch.tensor([[0.0, 0], [1, 0], [5, 0]])
    inputs = torch.tensor([[0.4, 0.0], [0.6, 3.0], [4.0, 0.0]])
    every = NearestPrototype(model, prototypes, torch.tensor([True] * 3))
    assert every(inputs).argmax(dim=1).tolist() == [0, 1, 2]
    two = NearestPrototype(model, prototypes, torch.tensor([True, False, True]))
    assert two(inputs).argmax(dim=1).tolist() == [0, 0, 2]
