"""FCCL and FCCL+: the specification's numbers, and what must always hold."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.clients.distillation.fccl import (
    FCCLClient,
    constant_columns,
    correlation_loss,
    cross_correlation,
    standardise,
    with_previous,
)
from fedsuite.clients.distillation.fccl_plus import (
    FCCLPlusClient,
    non_target_loss,
    similarities,
)
from fedsuite.models.distillation import kl_divergence
from tests.strategies.distillation.correlations import FEATURES, SLOPE
from tests.strategies.distillation.public import CLIENTS, FIXTURE, tables

MEAN = torch.stack(CLIENTS).mean(dim=0)
CORRELATION = [
    (0.692535, 0.406603, -0.573070),
    (-0.155636, -0.611525, 0.295455),
    (-0.668926, -0.295541, 0.522388),
]

FIRST_PREVIOUS = [(1.5, 0, -1), (0, 0.5, 0), (1, 0, 0), (-1, 0, 1)]

LOCAL = [(2, 0, -2), (0, 1, 0)]
LOCAL_PREVIOUS = [(1, 0, -1), (0, 0, 1)]
LOCAL_PRETRAINED = [(3, 0, 0), (0, 1, 2)]
LABELS = torch.tensor([0, 2])


def matrix(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# The specification's numbers


def test_correlation_of_the_specification_s_example() -> None:
    own = CLIENTS[0].clone().requires_grad_(True)
    found = cross_correlation(own, MEAN)
    np.testing.assert_allclose(found.detach(), CORRELATION, atol=1e-6)
    loss = correlation_loss(own, MEAN)
    assert float(loss.detach()) == pytest.approx(2.945964, abs=1e-6)
    (slope,) = torch.autograd.grad(loss, own)
    np.testing.assert_allclose(slope, SLOPE, atol=1e-6)
    same = float(correlation_loss(own, MEAN, 0.0).detach())
    assert same == pytest.approx(2.919659, abs=1e-6)
    both = float(correlation_loss(own, MEAN, 1.0).detach())
    assert both - same == pytest.approx(5.157827, abs=1e-6)


def test_correlation_with_the_biased_deviation() -> None:
    def loss(weight: float) -> float:
        return float(correlation_loss(CLIENTS[0], MEAN, weight, unbiased=False))

    assert loss(0.0051) == pytest.approx(3.420984, abs=1e-6)
    assert loss(0.0) == pytest.approx(3.393527, abs=1e-6)
    assert loss(1.0) - loss(0.0) == pytest.approx(5.383795, abs=1e-6)


def test_correlation_with_the_previous_model_in_the_mean() -> None:
    target = with_previous(MEAN, CLIENTS[0], matrix(FIRST_PREVIOUS), 3)
    others = (matrix(FIRST_PREVIOUS) + CLIENTS[1] + CLIENTS[2]) / 3
    np.testing.assert_allclose(target, others, atol=1e-12)
    loss = float(correlation_loss(CLIENTS[0], target))
    assert loss == pytest.approx(3.280905, abs=1e-6)


def local_client(client_class: Any, *teachers: Any) -> Any:
    """Return a client and these teachers, whose inputs are logits."""
    client = tables(client_class).clients[0]
    client._teachers = [lambda _, held=held: matrix(held) for held in teachers]
    return client


def test_local_loss_of_the_specification_s_example() -> None:
    terms = (0.847188, 0.262145, 0.261165)
    teachers = (LOCAL_PREVIOUS, LOCAL_PRETRAINED)
    for count in range(3):
        client = local_client(FCCLClient, *teachers[:count])
        found = client.loss(nn.Identity(), matrix(LOCAL), LABELS)
        assert float(found) == pytest.approx(sum(terms[: count + 1]), abs=2e-6)


def test_similarities_of_the_specification_s_example() -> None:
    half = 0.707107
    expected = (
        [(half, 0), (half, half), (0, half)],
        [(half, 0), (half, -half), (0, -half)],
    )
    found = [similarities(matrix(held)) for held in FEATURES]
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, wanted, atol=1e-6)
    mean = torch.stack(found).mean(dim=0)
    for temperature, losses in ((1.0, (0.040013, 0.037181)), (0.02, (5.892557, 5.661507))):
        divergences = [float(kl_divergence(one, mean, temperature)) for one in found]
        assert divergences == pytest.approx(losses, abs=1e-6)


@pytest.mark.parametrize(
    ("temperature", "renormalise", "expected"),
    [
        (1.0, False, 0.062123),
        (1.0, True, 0.101361),
        (3.0, False, 0.167421),
        (3.0, True, 0.121648),
    ],
)
def test_other_classes_of_the_specification_s_example(
    temperature: float, renormalise: bool, expected: float
) -> None:
    found = non_target_loss(
        matrix(LOCAL), matrix(LOCAL_PREVIOUS), LABELS, temperature, renormalise=renormalise
    )
    assert float(found) == pytest.approx(expected, abs=1e-6)
    client = local_client(FCCLPlusClient, LOCAL_PREVIOUS)
    client.heard = {
        "distillation-temperature": temperature,
        "fccl-plus-renormalise": renormalise,
    }
    loss = client.loss(nn.Identity(), matrix(LOCAL), LABELS)
    assert float(loss) == pytest.approx(0.847188 + expected, abs=2e-6)


# What must always hold

LOGITS_OF_BATCH = st.lists(st.integers(-40, 40), min_size=15, max_size=15).map(
    lambda values: matrix(values).reshape(5, 3) / 8
)
SCALES = st.lists(st.floats(0.1, 10), min_size=3, max_size=3)
SHIFTS = st.lists(st.floats(-10, 10), min_size=3, max_size=3)


@given(LOGITS_OF_BATCH, LOGITS_OF_BATCH, SCALES, SHIFTS, st.booleans())
def test_no_map_of_a_class_changes_the_correlation(
    own: Tensor, target: Tensor, scale: list[float], shift: list[float], unbiased: bool
) -> None:
    own, target = own + UNEVEN, target - UNEVEN
    plain = float(correlation_loss(own, target, unbiased=unbiased))
    mapped = own * matrix(scale) + matrix(shift)
    for left, right in ((mapped, target), (target, mapped)):
        expected = (
            plain if right is target else correlation_loss(target, own, unbiased=unbiased)
        )
        found = float(correlation_loss(left, right, unbiased=unbiased))
        assert found == pytest.approx(float(expected), rel=1e-6)


UNEVEN = matrix([[0.01, 0.02, 0.03]]) * torch.arange(5.0, dtype=torch.float64)[:, None] ** 2
"""Keeps each class from being constant over the batch."""


@given(LOGITS_OF_BATCH)
def test_logits_correlate_with_themselves(own: Tensor) -> None:
    own = own + UNEVEN
    biased = cross_correlation(own, own, unbiased=False).diagonal()
    np.testing.assert_allclose(biased, 1, atol=1e-9)
    unbiased = cross_correlation(own, own).diagonal()
    np.testing.assert_allclose(unbiased, 4 / 5, atol=1e-9)


@given(LOGITS_OF_BATCH, LOGITS_OF_BATCH)
def test_the_slope_fixes_neither_scale_nor_offset(own: Tensor, target: Tensor) -> None:
    own = (own + UNEVEN).requires_grad_(True)
    (slope,) = torch.autograd.grad(correlation_loss(own, target + UNEVEN, 1.0), own)
    size = max(1.0, float(slope.abs().max()))
    np.testing.assert_allclose(slope.sum(dim=0), 0, atol=1e-9 * size)
    along = (slope * standardise(own.detach())).sum(dim=0)
    np.testing.assert_allclose(along, 0, atol=1e-9 * size)


def test_the_least_loss_of_clients_that_agree() -> None:
    # Ten classes whose correlations are all -1/9: a simplex around 0.
    simplex = torch.eye(10, dtype=torch.float64) - 0.1
    found = float(correlation_loss(simplex, simplex, unbiased=False))
    assert found == pytest.approx(0.0051 * 10 * 64 / 9, abs=1e-9)
    assert found == pytest.approx(0.362667, abs=1e-6)


def test_no_gradient_flows_into_what_others_said() -> None:
    own = torch.randn(4, 3, requires_grad=True)
    target = torch.randn(4, 3, requires_grad=True)
    correlation_loss(own, target).backward()
    non_target_loss(own, target, torch.tensor([0, 1, 2, 0])).backward()
    assert target.grad is None
    assert own.grad is not None


@pytest.mark.parametrize("column", [(0.1,) * 4, (1e-30, 0, 0, 0)])
def test_a_class_that_is_constant_has_no_correlation(column: tuple[float, ...]) -> None:
    own = torch.tensor(FIXTURE[1], dtype=torch.float32)
    own[:, 1] = torch.tensor(column)
    own.requires_grad_(True)
    assert constant_columns(own.detach()).tolist() == [False, True, False]
    found = cross_correlation(own, MEAN.float())
    assert found[1].tolist() == [0, 0, 0] and found[0].abs().min() > 0
    correlation_loss(own, MEAN.float()).backward()
    assert own.grad is not None and own.grad.isfinite().all()
    assert not own.grad[:, 1].any() and own.grad[:, 0].any()
    assert correlation_loss(MEAN.float(), own.detach()).isfinite()


def test_a_constant_whose_mean_is_rounded_is_constant() -> None:
    held = torch.full((7, 1), 0.3)
    assert bool((held != held.mean(dim=0)).any())
    assert constant_columns(held).tolist() == [True]
    assert standardise(held).abs().max() == 0


@given(LOGITS_OF_BATCH, st.floats(0.01, 100))
def test_the_scale_of_features_is_of_no_consequence(held: Tensor, scale: float) -> None:
    held = held + 0.01
    found = similarities(held)
    np.testing.assert_allclose(similarities(held * scale), found, atol=1e-9)
    assert found.shape == (5, 4)
    assert found.abs().max() <= 1 + 1e-12
    # Row b is of sample b, the others in order.
    by_hand = functional.cosine_similarity(held[2], held[3], dim=0)
    assert float(found[2, 2]) == pytest.approx(float(by_hand), abs=1e-9)
    assert float(found[3, 2]) == pytest.approx(float(by_hand), abs=1e-9)


def test_models_that_agree_on_other_classes() -> None:
    """The value is 0; the slope is 0 where probabilities are made to sum to 1."""
    logits = matrix(LOCAL).requires_grad_(True)
    for renormalise in (False, True):
        loss = non_target_loss(logits, logits, LABELS, 2.0, renormalise=renormalise)
        assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
        (slope,) = torch.autograd.grad(loss, logits)
        if renormalise:
            np.testing.assert_allclose(slope, 0, atol=1e-12)
            continue
        # T p_y (1 - p_y) for the label and -T p_y p_k for others, over the batch of 2.
        p = functional.softmax(logits.detach() / 2, dim=1)
        label = functional.one_hot(LABELS, 3).double()
        of_label = (p * label).sum(dim=1, keepdim=True)
        np.testing.assert_allclose(slope, of_label * (label - p), atol=1e-12)
