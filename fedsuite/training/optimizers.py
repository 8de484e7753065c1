"""Torch's optimisers without its compiler.

At the first use of an optimiser torch imports all of ``torch._dynamo``, to keep the
compiler out of some methods. That takes a second of processor time in each process that
answers one message between machines. These optimisers skip it; steps have the same bits.
"""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch.optim import SGD, Adam, Optimizer
from typing_extensions import override

__all__ = ["PlainAdam", "PlainSGD"]


class PlainSGD(SGD):
    """:class:`torch.optim.SGD` with no hooks but those of steps."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return _step_of_sgd(self, closure)


class PlainAdam(Adam):
    """:class:`torch.optim.Adam` with no hooks but those of steps."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return _step_of_adam(self, closure)


_step_of_sgd = torch.no_grad()(unwrap(SGD.step))
_step_of_adam = torch.no_grad()(unwrap(Adam.step))
