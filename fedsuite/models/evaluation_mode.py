"""How a model is asked without being trained: in evaluation mode, part by part."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

EVALUATION_BATCH = 128
"""Targets in a forward pass over all data: bounds the memory, not the result. A processor
takes parts of this size through a convolution up to twice as fast as large ones, because
what lies between the layers stays in its cache; small networks do not mind."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back afterwards."""
    before = [module for module in model.modules() if module.training]
    if before:
        model.eval()
    try:
        yield
    finally:
        for module in before:
            # Past torch's own way, which first looks for a parameter of that name.
            object.__setattr__(module, "training", True)
