"""Evaluation mode of models, and the batch size of evaluations."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

EVALUATION_BATCH = 128
"""Targets per forward pass of an evaluation, which bounds the memory. A processor computes
convolutions of batches of this size up to twice as fast as of large ones, because the
activations stay in its cache."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside the block, and restore each module's mode."""
    before = [module for module in model.modules() if module.training]
    if before:
        model.eval()
    try:
        yield
    finally:
        for module in before:
            # object.__setattr__ skips torch's search for a parameter of that name.
            object.__setattr__(module, "training", True)
