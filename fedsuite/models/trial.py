"""Trial of a network on inputs of a shape."""

import torch
from torch import nn

from fedsuite.models.torchvision_import import first_line

FAILURES = (RuntimeError, AssertionError, ValueError, TypeError, AttributeError)
"""What a network raises that cannot take its inputs."""


def failure(model: nn.Module, input_shape: tuple[int, ...]) -> str:
    """Return why a CPU model cannot take inputs of a shape; empty if it can.

    The trial changes nothing in the model and draws nothing.
    """
    try:
        output_of(model, torch.zeros(1, *input_shape))
    except FAILURES as error:
        return first_line(error)
    return ""


def output_of(model: nn.Module, inputs: torch.Tensor) -> object:
    """Return what a model makes of inputs in evaluation; its training mode is then on."""
    model.eval()
    try:
        with torch.no_grad():
            return model(inputs)
    finally:
        model.train()
