"""Losses and accuracy by hand, with one target a row and with sequences."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.data import Split
from fedsuite.data.specs import IGNORED
from fedsuite.training import evaluation
from fedsuite.training.evaluation import (
    correct_predictions,
    evaluate_model,
    mean_loss,
    probe_model,
)
from fedsuite.training.loop import (
    TrainingOptions,
    run_steps,
)
from fedsuite.training.losses import (
    count_targets,
    cross_entropy,
    focal_loss,
    right_rows,
    right_targets,
)

from ..helpers import digits_experiment, run_digits

OUT = IGNORED


class Table(nn.Module):
    """Scores of the next word: one row for each word, nothing else."""

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.tensor(rows))

    def forward(self, words: Tensor) -> Tensor:
        return self.scores[words]


LOG2 = math.log(2.0)
LOG4 = math.log(4.0)
# Softmax: 1/4 each after word 0; 1/2, 1/4, 1/4, 0 after word 1 (e^-100 is nothing).
WORDS = [[0.0, 0.0, 0.0, 0.0], [LOG2, 0.0, 0.0, -100.0]]
TEXT = Split(
    torch.tensor([[0, 1, 0], [1, 1, 0]]),
    torch.tensor([[3, 0, OUT], [2, OUT, OUT]]),
)
"""Three targets: losses log 4, log 2 and log 4; only the second is predicted."""


def test_cross_entropy_of_sequences_is_the_mean_over_targets_that_count() -> None:
    loss = cross_entropy(Table(WORDS), TEXT.features, TEXT.labels)
    assert loss.item() == pytest.approx((2 * LOG4 + LOG2) / 3)
    assert count_targets(TEXT.labels) == 3


def test_evaluation_of_sequences() -> None:
    loss, accuracy = evaluate_model(Table(WORDS), TEXT)
    assert loss == pytest.approx((2 * LOG4 + LOG2) / 3)
    assert accuracy == pytest.approx(1 / 3)


def test_what_is_never_right_counts_all_the_same() -> None:
    """The one right guess is at word 0: of three targets none is right."""
    strict = Split(TEXT.features, TEXT.labels, never_right=0)
    loss, accuracy = evaluate_model(Table(WORDS), strict)
    assert accuracy == 0.0
    assert loss == pytest.approx((2 * LOG4 + LOG2) / 3)


def test_parts_of_an_evaluation_weigh_by_their_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 3)  # one sequence a part
    model = Table(WORDS)
    expected = (2 * LOG4 + LOG2) / 3
    assert mean_loss(model, TEXT) == pytest.approx(expected)
    assert evaluate_model(model, TEXT)[0] == pytest.approx(expected)
    loss, gradient = probe_model(model, TEXT)
    assert loss == pytest.approx(expected)
    # Softmax minus target, word by word: after 0 target 3; after 1 targets 0 and 2.
    after_0 = [0.25, 0.25, 0.25, -0.75]
    after_1 = [2 * 0.5 - 1, 2 * 0.25, 2 * 0.25 - 1, 0.0]
    found = 3 * torch.from_numpy(gradient["scores"])
    assert torch.allclose(found, torch.tensor([after_0, after_1]), atol=1e-6)


def test_parts_of_an_evaluation_are_bounded_by_their_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sequence of three has three: at most two of them fit into seven."""
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 7)
    seen: list[int] = []
    model = Table(WORDS)
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    five = Split(TEXT.features[[0, 1, 0, 1, 0]], TEXT.labels[[0, 1, 0, 1, 0]])
    evaluate_model(model, five)
    assert seen == [2, 2, 1]


def test_training_reports_the_mean_over_targets() -> None:
    model = Table(WORDS)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = iter([torch.tensor([0]), torch.tensor([1])])
    summary = run_steps(model, TEXT, batches, still, cross_entropy)
    assert summary.loss == pytest.approx((2 * LOG4 + LOG2) / 3)


def test_no_target_at_all_is_no_loss_and_no_gradient() -> None:
    empty = Split(TEXT.features, torch.full((2, 3), OUT))
    model = Table(WORDS)
    for loss_function in (cross_entropy, focal_loss):
        model.zero_grad()
        loss = loss_function(model, empty.features, empty.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        assert float(loss.detach()) == 0.0
        assert model.scores.grad is not None and not model.scores.grad.any()
    assert evaluate_model(model, empty) == (0.0, 0.0)
    assert mean_loss(model, empty) == 0.0


def test_right_targets_and_rows() -> None:
    outputs = functional.one_hot(torch.tensor([[1, 2, 0], [1, 1, 1]]), 3).float()
    labels = torch.tensor([[1, 2, OUT], [1, 0, 1]])
    assert right_targets(outputs, labels).tolist() == [
        [True, True, False],
        [True, False, True],
    ]
    assert right_rows(outputs, labels).tolist() == [True, False]
    assert right_rows(outputs, labels, never_right=2).tolist() == [False, False]
    one = right_rows(outputs[0], torch.tensor([1, 0, 0]), never_right=0)
    assert one.tolist() == [True, False, False]


def test_a_sequence_is_right_where_all_its_targets_are() -> None:
    split = Split(torch.tensor([[1, 0], [1, 0]]), torch.tensor([[0, OUT], [0, 3]]))
    assert correct_predictions(Table(WORDS), split).tolist() == [1, 0]
    strict = replace(split, never_right=0)
    assert correct_predictions(Table(WORDS), strict).tolist() == [0, 0]


# Focal loss


def test_focal_loss_by_hand() -> None:
    """Probabilities 1/4, 1/2, 1/4 of the targets: (3/4)^2 and (1/2)^2 of their losses."""
    loss = focal_loss(Table(WORDS), TEXT.features, TEXT.labels, gamma=2.0)
    assert loss.item() == pytest.approx((2 * 0.5625 * LOG4 + 0.25 * LOG2) / 3)


def test_focal_loss_at_even_odds_is_the_papers_first_loss() -> None:
    """FedAKD's Figure 3b starts near 0.25 log 2 = 0.1733."""
    model = nn.Linear(1, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    loss = focal_loss(model, torch.ones(4, 1), torch.tensor([0, 1, 1, 0]))
    assert loss.item() == pytest.approx(0.17328680)


@given(st.integers(0, 99), st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]))
def test_focal_loss_against_its_definition(seed: int, gamma: float) -> None:
    stream = torch.Generator().manual_seed(seed)
    outputs = torch.randn(7, 3, generator=stream, dtype=torch.float64) * 3
    labels = torch.randint(0, 3, (7,), generator=stream)
    outputs.requires_grad_()
    found = focal_loss(nn.Identity(), outputs, labels, gamma)
    p = outputs.softmax(dim=1)[torch.arange(7), labels]
    wanted = (-((1 - p) ** gamma) * p.log()).mean()
    assert torch.allclose(found, wanted, rtol=1e-9)
    slopes = [torch.autograd.grad(loss, outputs)[0] for loss in (found, wanted)]
    assert torch.allclose(*slopes, rtol=1e-6, atol=1e-12)
    if gamma == 0.0:
        assert torch.allclose(found, functional.cross_entropy(outputs, labels), rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
def test_focal_loss_of_what_is_certain_has_a_finite_slope(gamma: float) -> None:
    outputs = torch.tensor([[200.0, 0.0], [0.0, 1.0]], requires_grad=True)
    labels = torch.tensor([0, 1])
    focal_loss(nn.Identity(), outputs, labels, gamma).backward()  # type: ignore[no-untyped-call]
    assert outputs.grad is not None and outputs.grad.isfinite().all()


def test_options_choose_the_loss() -> None:
    assert TrainingOptions().loss_on(torch.tensor([0, 1])) is cross_entropy
    chosen = TrainingOptions(loss="focal", focal_gamma=1.0).loss_on(torch.tensor([0]))
    found = chosen(Table(WORDS), TEXT.features, TEXT.labels)
    assert found.item() == pytest.approx((2 * 0.75 * LOG4 + 0.5 * LOG2) / 3)


def test_every_method_trains_on_the_loss_of_the_options() -> None:
    """gamma 0 is the cross-entropy up to rounding; 2 is another training."""
    plain = run_digits(digits_experiment(method="fedprox")).arrays[-1]
    same = run_digits(digits_experiment(method="fedprox", loss="focal", focal_gamma=0.0))
    other = run_digits(digits_experiment(method="fedprox", loss="focal"))
    for name, array in plain.items():
        assert np.allclose(same.arrays[-1][name], array, atol=1e-6)
        assert not np.allclose(other.arrays[-1][name], array, atol=1e-3)
    evaluated = other.reports[-1].evaluate
    assert evaluated is not None
    # The evaluation stays the cross-entropy: above its own focal loss at any accuracy.
    trained = other.reports[-1].train
    assert trained is not None
    assert min(evaluated.column("loss")) > 1.2 * max(trained.column("loss"))
