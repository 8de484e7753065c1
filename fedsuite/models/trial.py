"""Trial of a network on inputs of a shape."""

import torch
from torch import nn

from fedsuite.models.torchvision_import import first_line


def failure(model: nn.Module, input_shape: tuple[int, ...]) -> str:
    """Return why a CPU model cannot take inputs of a shape; empty if it can.

    The trial changes nothing in the model and draws nothing.
    """
    model.eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, *input_shape))
    except (RuntimeError, AssertionError, ValueError, TypeError, AttributeError) as error:
        return first_line(error)
    finally:
        model.train()
    return ""
