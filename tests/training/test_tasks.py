"""Losses and scores of each task, against numbers by hand."""

import math

import pytest
import torch
from torch import nn

from fedsuite.core.tasks import OF_CLASSES, TASKS
from fedsuite.data import Split
from fedsuite.training.classes import class_weights
from fedsuite.training.evaluation import model_scores
from fedsuite.training.loop import TrainingOptions, module_of

IDENTITY = nn.Identity()
NONE = torch.zeros(0, dtype=torch.int64)
BINARY = TrainingOptions(task="binary")
# Probabilities of class 1: 0.8, 0.4, 0.6, 0.2.
LOGITS = torch.tensor([[1.0, 4.0], [3.0, 2.0], [2.0, 3.0], [4.0, 1.0]]).log()
TRUTH = torch.tensor([1, 1, 0, 0])


def scores_of(
    outputs: torch.Tensor, labels: torch.Tensor, options: TrainingOptions, *names: str
) -> dict[str, float]:
    found = model_scores(IDENTITY, Split(outputs, labels), options, names)
    return {name: float(value) for name, value in found.items()}  # type: ignore[arg-type]


def test_two_classes_by_hand() -> None:
    names = [name for name in TASKS["binary"].scores if name != "accuracy"]
    found = scores_of(LOGITS, TRUTH, BINARY, *names)
    # Pairs of a positive and a negative row in the right order: 3 of 4.
    assert found["auroc"] == pytest.approx(0.75)
    # Precision 1 at the first positive, 2 of 3 at the second.
    assert found["auprc"] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found["sensitivity"] == found["specificity"] == pytest.approx(0.5)
    assert found["accuracy"] == found["balanced-accuracy"] == pytest.approx(0.5)
    assert found["macro-f1"] == pytest.approx(0.5)
    assert found["brier"] == pytest.approx((0.04 + 0.36 + 0.36 + 0.04) / 4)
    # Confidence 0.8 is right twice, 0.6 wrong twice.
    assert found["calibration-error"] == pytest.approx((2 * 0.2 + 2 * 0.6) / 4)


def test_sensitivity_and_specificity_are_not_each_other() -> None:
    always_0 = torch.tensor([[1.0, 0.0]]).repeat(3, 1)
    found = scores_of(
        always_0, torch.tensor([0, 0, 1]), BINARY, "sensitivity", "specificity"
    )
    assert (found["sensitivity"], found["specificity"]) == (0.0, 1.0)


def test_a_confusion_matrix_is_by_class_and_then_by_prediction() -> None:
    found = scores_of(LOGITS[:3], TRUTH[:3], BINARY, "confusion-matrix")
    cells = {name: n for name, n in found.items() if name.startswith("confusion")}
    assert cells == {
        "confusion-0-0": 0.0,
        "confusion-0-1": 1.0,
        "confusion-1-0": 1.0,
        "confusion-1-1": 1.0,
    }


def test_of_many_classes_auroc_is_the_mean_over_the_classes_that_have_one() -> None:
    outputs = torch.tensor([[3.0, 0, 0], [0, 3.0, 0], [2.0, 1.0, 0]])
    found = scores_of(outputs, torch.tensor([0, 1, 1]), TrainingOptions(), "auroc", "auprc")
    assert 0.0 < found["auroc"] <= 1.0
    assert not math.isnan(found["auprc"])


@pytest.mark.parametrize("labels", [[1, 1, 1], []])
def test_a_score_that_is_undefined_is_nan_and_the_rest_counts(labels: list[int]) -> None:
    rows = torch.tensor(labels, dtype=torch.int64)
    found = scores_of(LOGITS[: len(labels)], rows, BINARY, "auroc", "brier")
    assert math.isnan(found["auroc"])
    assert math.isnan(found["brier"]) == (not labels)
    assert math.isfinite(found["loss"])


def test_one_class_is_told_where_it_is_wrong_and_there_alone() -> None:
    always_1 = torch.tensor([[0.0, 1.0]]).repeat(3, 1)
    assert scores_of(always_1, torch.tensor([0, 0, 1]), BINARY)["one-class"] == 1
    assert "one-class" not in scores_of(always_1, torch.tensor([1, 1, 1]), BINARY)
    assert "one-class" not in scores_of(LOGITS, TRUTH, BINARY)


def test_numbers_by_hand() -> None:
    options = TrainingOptions(task="regression", loss="quantile", quantile=0.75)
    predicted, numbers = torch.tensor([[0.0], [2.0]]), torch.tensor([1.0, -2.0])
    found = scores_of(predicted, numbers, options, *TASKS["regression"].scores)
    assert found["mae"] == pytest.approx(2.5)
    assert found["rmse"] == pytest.approx(math.sqrt(17 / 2))
    assert found["r2"] == pytest.approx(1 - 17 / 4.5)
    # One of two numbers lies at or below what is predicted.
    assert found["coverage-error"] == pytest.approx(0.25)
    assert found["loss"] == pytest.approx((0.75 * 1 + 0.25 * 4) / 2)
    assert math.isnan(scores_of(predicted, torch.ones(2), options, "r2")["r2"])


@pytest.mark.parametrize(
    ("loss", "mean"),
    [("squared", 8.5), ("absolute", 2.5), ("huber", 2.0), ("auto", 8.5)],
)
def test_losses_of_numbers(loss: str, mean: float) -> None:
    options = TrainingOptions(task="regression", loss=loss)
    function = options.loss_on(torch.tensor([1.0, -2.0]))
    found = function(IDENTITY, torch.tensor([[0.0], [2.0]]), torch.tensor([1.0, -2.0]))
    assert float(found) == pytest.approx(mean)


def test_labels_by_hand() -> None:
    options = TrainingOptions(task="multi-label")
    outputs = torch.tensor([[2.0, -1.0], [1.0, 1.0], [-1.0, 2.0]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    found = scores_of(
        outputs, labels, options, "auroc", "macro-f1", "micro-f1", "micro-auroc", "by-label"
    )
    assert found["auroc"] == found["label-auroc-0"] == 1.0
    assert math.isnan(found["label-auroc-1"])
    assert found["label-f1-0"] == pytest.approx(2 / 3)
    assert found["macro-f1"] == pytest.approx(1 / 3)
    assert found["micro-f1"] == pytest.approx(2 / 5)
    bits = nn.functional.binary_cross_entropy_with_logits(outputs, labels)
    assert found["loss"] == pytest.approx(float(bits))


def test_balanced_weights_count_classes_alike() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    assert class_weights("balanced", labels, 2).tolist() == pytest.approx([2 / 3, 2.0])
    options = TrainingOptions(class_weights="balanced")
    outputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    each = nn.functional.cross_entropy(outputs, labels, reduction="none")
    found = options.loss_on(labels)(IDENTITY, outputs, labels)
    assert float(found) == pytest.approx(float(each[:3].mean() + each[3]) / 2)
    even = TrainingOptions(class_weights="1, 1", loss="focal").loss_on(labels)
    plain = TrainingOptions(loss="focal").loss_on(labels)
    assert float(even(IDENTITY, outputs, labels)) == pytest.approx(
        float(plain(IDENTITY, outputs, labels))
    )


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"survival"}))
def test_a_file_computes_what_its_task_declares(task: str) -> None:
    declared = TASKS[task]
    module = module_of(task)
    rows = {"class": (LOGITS, TRUTH), "number": (torch.randn(4, 1), torch.randn(4))}
    several = torch.randn(4, 2), torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]])
    outputs, labels = rows.get(declared.labels, several)
    for loss in declared.losses:
        options = TrainingOptions(task=task, loss=loss)
        assert options.loss_on(labels)(IDENTITY, outputs, labels).isfinite()
        found = module.scores(declared.scores, outputs, labels, options)
        assert list(found) == list(declared.scores)
    assert set(declared.short) <= set(declared.scores)
    assert declared.has_classes == (task in OF_CLASSES)
