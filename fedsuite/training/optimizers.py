"""Torch's optimisers without its compiler.

At the first use of an optimiser torch imports all of ``torch._dynamo``, to keep the
compiler out of some methods. That takes a second of processor time in each process that
answers one message between machines. These optimisers skip it; steps have the same bits.
"""

from inspect import unwrap

import torch
from torch.optim import SGD, Adam, Optimizer

__all__ = ["PlainAdam", "PlainSGD"]


class PlainSGD(SGD):
    """:class:`torch.optim.SGD` with no hooks but those of steps."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    step = torch.no_grad()(unwrap(SGD.step))


class PlainAdam(Adam):
    """:class:`torch.optim.Adam` with no hooks but those of steps."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    step = torch.no_grad()(unwrap(Adam.step))
