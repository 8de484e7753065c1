"""Features, the inputs of a model's classifier (the last linear layer)."""

from typing import Any

from torch import Tensor, nn

from fedsuite.core.errors import ConfigError
from fedsuite.models.head import find_head


def with_features(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and logits of one forward pass, with the graph.

    The pass is the model's own: the logits are the same bits, and random draws and running
    statistics move once.

    Parameters
    ----------
    model
        A network whose last linear layer is its classifier.
    inputs
        A batch.

    Returns
    -------
    tuple
        Features, shape (batch, width) for all our classifiers of single samples, and
        logits.

    Raises
    ------
    ConfigError
        If the classifier is no linear layer, or the pass does not use it exactly once.
    """
    captured: list[Tensor] = []

    def note(_: nn.Module, received: tuple[Any, ...]) -> None:
        captured.append(received[0])

    name, head = linear_head(model)
    hook = head.register_forward_pre_hook(note)
    try:
        logits = model(inputs)
    finally:
        hook.remove()
    if len(captured) != 1:
        raise ConfigError(
            f"the model's last linear layer, {name or 'the model itself'}, takes part "
            f"{len(captured)} times in a forward pass, and as a classifier would once: its "
            "features cannot be told"
        )
    return captured[0], logits


def feature_width(model: nn.Module) -> int:
    """Return the number of features of a sample.

    Raises
    ------
    ConfigError
        If the model's classifier is no linear layer.
    """
    return linear_head(model)[1].in_features


def features_are_inputs(model: nn.Module) -> bool:
    """Return whether a model is a linear classifier only."""
    _, head = find_head(model)
    return isinstance(head, nn.Linear) and len(list(model.parameters())) == len(
        list(head.parameters())
    )


def check_trained(model: nn.Module) -> None:
    """Refuse a model whose features are its inputs.

    Raises
    ------
    ConfigError
        If nothing before the model's classifier has parameters.
    """
    name, _ = linear_head(model)
    if features_are_inputs(model):
        raise ConfigError(
            f"the model has nothing to train before its classifier, {name or 'itself'}, so "
            "that its features are its inputs: choose another model"
        )


def linear_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return a model's classifier and its name; ConfigError where it is not linear."""
    name, head = find_head(model)
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"the model's classifier, {name}, is no linear layer, so that its inputs are "
            "no features of a sample: choose another model"
        )
    return name, head
