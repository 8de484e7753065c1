"""Filters of dense and factored networks in one space, and the spread of vectors."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.models.arrays import model_arrays
from fedsuite.models.decomposed import DecomposedConv2d, decompose, recompose
from simulations.decomposition.filters import DenseSpace, Spread


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Conv2d(2, 1, 1), nn.Flatten(), nn.Linear(4, 2)
    )


def test_filters_by_hand():
    atoms = torch.tensor([[[1.0, 2.0]], [[10.0, 20.0]]])
    coefficients = torch.tensor([[[1.0, 1.0]], [[2.0, 0.0]]])
    space = DenseSpace(nn.Sequential(DecomposedConv2d(atoms, coefficients)))
    arrays = {"0.atoms": atoms.numpy(), "0.coefficients": coefficients.numpy()}
    assert space.is_factored
    assert space.filters(arrays).tolist() == [11, 22, 2, 4]
    assert space.filters(arrays).dtype == np.float64


def test_a_factored_network_has_the_space_of_its_dense_one():
    dense = network()
    factored = decompose(dense, 9)
    spaces = DenseSpace(dense), DenseSpace(factored)
    filters = [
        space.filters(model_arrays(m))
        for space, m in zip(spaces, (dense, factored), strict=True)
    ]
    assert filters[0].shape == (2 * 9 + 2,)
    np.testing.assert_allclose(*filters, atol=1e-6)
    assert not spaces[0].is_factored
    back = model_arrays(recompose(factored))
    found = spaces[1].dense(model_arrays(factored))
    assert set(found) == set(back)
    for name, array in back.items():
        np.testing.assert_allclose(found[name], array, atol=1e-6)


def test_no_convolutions():
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="no convolutions"):
        DenseSpace(model).filters(model_arrays(model))


def test_spread_by_hand():
    spread = Spread()
    spread.add(np.array([0.0, 0.0]))
    assert spread.variance == 0
    spread.add(np.array([2.0, 4.0]))
    assert spread.mean.tolist() == [1, 2]
    assert spread.variance == 5
    assert spread.count == 2


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), min_size=1, max_size=8)
)
def test_spread_is_the_population_variance(vectors):
    spread = Spread()
    given = np.array(vectors)
    for vector in given:
        spread.add(vector)
    np.testing.assert_allclose(spread.mean, given.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(spread.variance, given.var(axis=0).sum(), atol=1e-6)
    np.testing.assert_array_equal(given, np.array(vectors))
