"""Trial of a network on inputs of a shape."""

import torch
from torch import nn

FAILURES = (RuntimeError, AssertionError, ValueError, TypeError, AttributeError)
"""What a network raises that cannot take its inputs."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or else the error's name."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__


def output_of(model: nn.Module, inputs: torch.Tensor) -> object:
    """Return what a model makes of inputs in evaluation; its training mode is then on."""
    model.eval()
    try:
        with torch.no_grad():
            return model(inputs)
    finally:
        model.train()
