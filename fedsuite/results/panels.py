"""Panels of the curves of runs: which columns of ``rounds.jsonl`` are drawn, and how."""

from typing import NamedTuple


class Panel(NamedTuple):
    """One panel of the curves: a column of ``rounds.jsonl`` and how to show it.

    Where ``beside`` names another column it is drawn with it, thin and dotted.
    """

    key: str
    title: str
    label: str
    scale: float
    beside: str = ""


PANELS = (
    Panel("accuracy_mean", "Mean accuracy over clients", "accuracy (%)", 100),
    Panel("accuracy_worst10", "Accuracy of the worst 10 % of clients", "accuracy (%)", 100),
    Panel("evaluate_loss", "Evaluation loss", "loss", 1),
    Panel("train_loss", "Training loss", "loss", 1),
    Panel(
        "evaluate_received_training_loss",
        "Received model on all training data",
        "loss",
        1,
    ),
    Panel(
        "train_trained_accuracy",
        "After local training; dotted: after the round",
        "accuracy, own test rows (%)",
        100,
        "evaluate_accuracy",
    ),
    Panel(
        "train_trained_whole_test_accuracy",
        "After local training; dotted: after the round",
        "accuracy, whole test part (%)",
        100,
        "evaluate_whole_test_accuracy",
    ),
    Panel("output_divergence", "Divergence of clients' outputs", "nats", 1),
    Panel(
        "discriminator_loss",
        "Discriminator's loss; dotted: log N",
        "nats",
        1,
        "log_clients",
    ),
)
