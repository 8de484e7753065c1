"""Distillation and selection: the specification's numbers, and what must always hold."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from fedsuite.clients.distillation import fedakd as client_module
from fedsuite.models.distillation import distillation_loss, select_correct
from fedsuite.strategies.distillation import fedakd as strategy_module

STUDENT = (2.0, 0.0, -1.0)
TEACHER = (1.0, 1.0, 0.0)

LOGITS = st.lists(st.floats(-20, 20), min_size=12, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64).reshape(4, 3)
)
TEMPERATURES = st.floats(0.2, 20)


def row(values: tuple[float, ...]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64, requires_grad=True)


def gradient(loss: Tensor, logits: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(loss, logits)
    return [float(value) for value in found.flatten()]


@pytest.mark.parametrize(
    ("temperature", "divergence", "slope"),
    [
        (1.0, 0.463214, (0.421476, -0.308124, -0.113352)),
        (2.0, 0.490788, (0.489760, -0.304856, -0.184904)),
    ],
)
def test_golden_divergence_and_gradient(temperature, divergence, slope):
    student = row(STUDENT)
    loss = distillation_loss(student, row(TEACHER), temperature)
    assert float(loss.detach()) == pytest.approx(divergence, abs=1e-6)
    assert gradient(loss, student) == pytest.approx(slope, abs=1e-6)


def test_golden_sum_with_the_labels_loss():
    student = row(STUDENT)
    label = functional.cross_entropy(student, torch.tensor([0]))
    loss = label + distillation_loss(student, row(TEACHER))
    assert float(loss.detach()) == pytest.approx(0.633060, abs=1e-6)
    expected = (0.265271, -0.193928, -0.071342)
    assert gradient(loss, student) == pytest.approx(expected, abs=1e-6)


def test_cross_entropy_form_has_the_same_gradient():
    student, teacher = row(STUDENT), row(TEACHER).detach().softmax(dim=1)
    crossed = -(teacher * student.log_softmax(dim=1)).sum()
    assert float(crossed.detach()) == pytest.approx(1.480571, abs=1e-6)
    divergence = distillation_loss(student, row(TEACHER))
    expected = gradient(divergence, student)
    assert gradient(crossed, student) == pytest.approx(expected)


def test_soft_label_form():
    """CE + alpha KD is (1 + alpha) x CE against (y + alpha p) / (1 + alpha), plus
    alpha times minus the teacher's entropy."""
    student, alpha = row(STUDENT), 2.5
    p = row(TEACHER).detach().softmax(dim=1)
    soft = (torch.tensor([[1.0, 0.0, 0.0]]) + alpha * p) / (1 + alpha)
    entropy = float(-(p * p.log()).sum())
    left = functional.cross_entropy(student, torch.tensor([0])) + alpha * distillation_loss(
        student, row(TEACHER)
    )
    right = -(1 + alpha) * (soft * student.log_softmax(dim=1)).sum() - alpha * entropy
    assert float(left.detach()) == pytest.approx(float(right.detach()))


def test_logistic_gradient():
    """Of two classes with logits (0, x w), d KD / d w is the mean of (s - s0) x (30)."""
    x = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64)
    w = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    teacher = torch.stack([torch.zeros(3).double(), x * -0.4], dim=1)
    loss = distillation_loss(torch.stack([0 * x, x * w], dim=1), teacher)
    expected = ((x * w).sigmoid() - (x * -0.4).sigmoid()) * x
    assert gradient(loss, w) == pytest.approx([float(expected.detach().mean())])


@given(LOGITS, TEMPERATURES)
def test_equal_predictions_have_no_loss_and_no_gradient(logits, temperature):
    student = logits.clone().requires_grad_()
    # Softmax does not know a shift of all logits.
    loss = distillation_loss(student, logits + 3.0, temperature)
    assert abs(float(loss.detach())) < 1e-7 * temperature**2
    assert gradient(loss, student) == pytest.approx([0.0] * 12, abs=1e-7 * temperature)


@given(LOGITS, LOGITS, TEMPERATURES)
def test_loss_is_a_divergence_with_the_published_gradient(student, teacher, temperature):
    student = student.clone().requires_grad_()
    teacher = teacher.clone().requires_grad_()
    loss = distillation_loss(student, teacher, temperature)
    assert float(loss.detach()) >= -1e-9
    p, q = ((x / temperature).softmax(dim=1).detach() for x in (student, teacher))
    expected = temperature * (p - q) / 4
    slope = torch.tensor(gradient(loss, student)).double().reshape(4, 3)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-9)
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(distillation_loss(student, teacher), teacher)


def test_mean_is_over_samples_not_over_classes():
    once = distillation_loss(row(STUDENT), row(TEACHER))
    many = distillation_loss(
        row(STUDENT).expand(5, -1).clone(), row(TEACHER).expand(5, -1).clone()
    )
    assert float(many.detach()) == pytest.approx(float(once.detach()))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_bad_temperatures_are_refused(temperature):
    with pytest.raises(ValueError, match=r"temperature = .*: expected a number > 0"):
        distillation_loss(row(STUDENT), row(TEACHER), temperature)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 3\) and \(1, 2\): expected one shape"):
        distillation_loss(row(STUDENT), row((1.0, 2.0)))


def test_selection_is_exactly_the_hits():
    logits = torch.tensor([[3.0, 1, 0], [0, 2, 1], [0, 2, 1], [-1, -2, -3], [0, 1, 5]])
    labels = torch.tensor([0, 1, 2, 0, 1])
    assert select_correct(logits, labels).tolist() == [True, True, False, True, False]


def test_an_unsure_hit_is_selected_unless_a_threshold_says_otherwise():
    # Label 4 of ten classes with probability 0.15, the others 0.85 / 9 each.
    probabilities = torch.full((1, 10), 0.85 / 9)
    probabilities[0, 4] = 0.15
    label = torch.tensor([4])
    for threshold, expected in ((0.0, True), (0.149, True), (0.151, False)):
        found = select_correct(probabilities.log(), label, threshold)
        assert found.tolist() == [expected]


def test_a_confident_miss_is_never_selected():
    logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]])
    assert select_correct(logits, torch.tensor([1, 1]), 0.9).tolist() == [False, True]


def test_both_sides_offer_the_functions():
    for module in (client_module, strategy_module):
        assert module.distillation_loss is distillation_loss
        assert module.select_correct is select_correct
