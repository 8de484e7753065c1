"""Metrics that choose a model or the end of a run: of validation rows where there are some.

A choice by test rows makes the result on the same rows look better than it is. So where
clients have validation rows, a choice by test rows is refused.
"""

from collections.abc import Mapping

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Value

CHOICES = ("best-model-metric", "early-stop-metric")
"""Keys that name a metric of ``rounds.jsonl`` to choose by."""

FRACTION = "client-validation-fraction"

_SCORES = ("accuracy_", "evaluate_", "train_trained_")
_VALIDATION = "validation_"
_ON_TRAINING_ROWS = ("evaluate_received_training_loss", "evaluate_training_examples")
_USUAL = "validation_accuracy_mean"
_INSTEAD = {
    "evaluate_loss": "evaluate_validation_loss",
    "evaluate_accuracy": "evaluate_validation_accuracy",
    "accuracy_worst10": "validation_accuracy_worst10",
    "accuracy_variance": "validation_accuracy_variance",
}


def chosen_metric(values: Mapping[str, Value], key: str) -> str:
    """Return the metric that a key of :data:`CHOICES` names; empty for none.

    ``auto`` is the mean over clients of the accuracy, on validation rows where there are
    some.
    """
    metric = str(values[key])
    if metric != AUTO:
        return metric
    return _USUAL if values[FRACTION] else "accuracy_mean"


def check_choices(values: Mapping[str, Value]) -> None:
    """Refuse a choice by test rows beside validation rows, or by rows that nobody has.

    Raises
    ------
    ConfigError
        Naming the key, and what to set.
    """
    for key in CHOICES:
        metric = chosen_metric(values, key)
        if values[FRACTION] and reads_test_rows(metric):
            raise ConfigError(
                f"key {key} = {metric!r} looks at test rows, and clients have validation "
                f"rows to choose by: set {_INSTEAD.get(metric, _USUAL)!r}"
            )
        if not values[FRACTION] and reads_validation_rows(metric):
            raise ConfigError(
                f"key {key} = {metric!r}: clients have no validation rows: set {FRACTION} "
                "above 0, such as 0.1"
            )


def reads_test_rows(metric: str) -> bool:
    """Return whether a metric of ``rounds.jsonl`` is measured on test rows."""
    if reads_validation_rows(metric) or metric in _ON_TRAINING_ROWS:
        return False
    return metric.startswith(_SCORES)


def reads_validation_rows(metric: str) -> bool:
    """Return whether a metric of ``rounds.jsonl`` is of clients' validation rows."""
    return metric.startswith((_VALIDATION, *_SCORES)) and _VALIDATION in metric
