"""Whether a network can train on a mini-batch of one row.

Batch normalisation has no variance of one value per channel: torch raises, and layers of
one's own give NaN. Which networks this is true of depends on the size of their inputs, and
so it is tried.
"""

import warnings
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedsuite.models.trial import FAILURES, first_line

_KNOWN: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""What :func:`one_row_failure` said of a network."""


def one_row_failure(model: nn.Module, rows: Tensor) -> str:
    """Return why a network trains on two rows and not on one; empty of all others.

    A network is tried once. Nothing in it changes, and no random stream.

    Parameters
    ----------
    model
        The network.
    rows
        Two rows or more ``[rows, ...]`` on its device; of one, it counts twice.
    """
    if model not in _KNOWN:
        pair = rows[:2] if len(rows) > 1 else rows.repeat(2, *[1] * (rows.ndim - 1))
        alone = _failure(model, pair[:1])
        _KNOWN[model] = alone if alone and not _failure(model, pair) else ""
    return _KNOWN[model]


@torch.no_grad()
def _failure(model: nn.Module, rows: Tensor) -> str:
    """Return what goes wrong in a forward pass in training mode; empty if nothing does."""
    buffers = list(model.buffers())
    before = [buffer.clone() for buffer in buffers]
    modes = [(module, module.training) for module in model.modules()]
    devices = [rows.device] if rows.is_cuda else []
    try:
        with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
            # Of a variance of one value, which is what is looked for.
            warnings.simplefilter("ignore")
            outputs = model.train()(rows)
        if not outputs.isfinite().all():
            return "its outputs are NaN or infinite"
        # A constant may have been infinite before.
        kept = zip(buffers, before, strict=True)
        if not all((now.isfinite() | ~was.isfinite()).all() for now, was in kept):
            return "its statistics are NaN or infinite then"
    except FAILURES as error:
        return first_line(error)
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        for module, mode in modes:
            module.training = mode
    return ""
