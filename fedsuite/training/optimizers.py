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

from fedsuite.workarounds.torch_modules import fused_sgd, has_step_hook

__all__ = ["PlainAdam", "PlainSGD"]


class PlainSGD(SGD):
    """:class:`torch.optim.SGD` with no hooks but those of steps."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        is_plain = closure is None and not has_step_hook(self)
        if not is_plain or not all(map(_moves_plainly, self.param_groups)):
            return _step_of_sgd(self, closure)
        with torch.no_grad():
            for group in self.param_groups:
                moved = [p for p in group["params"] if p.grad is not None]
                if moved:
                    fused_sgd(
                        moved,
                        [p.grad for p in moved],
                        [],
                        weight_decay=group["weight_decay"],
                        momentum=0.0,
                        lr=group["lr"],
                        dampening=0.0,
                        nesterov=False,
                        maximize=False,
                        is_first_step=True,
                    )
        return None

    # Torch would wrap it for its profiler, which takes as long as two steps.
    step.hooked = True  # type: ignore[attr-defined]


class PlainAdam(Adam):
    """:class:`torch.optim.Adam` with no hooks but those of steps."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return _step_of_adam(self, closure)


def _moves_plainly(group: dict[str, Any]) -> bool:
    """Return whether a step is one call of torch's fused kernel, with no state."""
    switched = ("momentum", "maximize", "differentiable")
    on_cpu = all(p.is_cpu for p in group["params"])
    return on_cpu and bool(group["fused"]) and not any(group[name] for name in switched)


_step_of_sgd = Optimizer.profile_hook_step(torch.no_grad()(unwrap(SGD.step)))
_step_of_adam = torch.no_grad()(unwrap(Adam.step))
