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

__all__ = ["PlainAdam", "PlainSGD"]


class PlainSGD(SGD):
    """:class:`torch.optim.SGD` with no hooks but those of steps."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters along their gradients."""
        hooked = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        plain = closure is None and not hooked
        if not plain or not all(map(_moves_plainly, self.param_groups)):
            return _hooked_step_of_sgd(self, closure)
        for group in self.param_groups:
            _move(group)
        return None

    # Torch would wrap ``step`` for hooks and its profiler: 10 microseconds each time.
    step.hooked = True  # type: ignore[attr-defined]


class PlainAdam(Adam):
    """:class:`torch.optim.Adam` with no hooks but those of steps."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters along their gradients."""
        return _step_of_adam(self, closure)


def _moves_plainly(group: dict[str, Any]) -> bool:
    """Return whether a step is one call of torch's fused kernel, with no state."""
    switched = ("momentum", "maximize", "differentiable")
    on_cpu = all(p.is_cpu for p in group["params"])
    return on_cpu and bool(group["fused"]) and not any(group[name] for name in switched)


@torch.no_grad()
def _move(group: dict[str, Any]) -> None:
    parameters = [p for p in group["params"] if p.grad is not None]
    if parameters:
        torch._fused_sgd_(
            parameters,
            [p.grad for p in parameters],
            [],
            weight_decay=group["weight_decay"],
            momentum=0.0,
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=True,
        )


_hooked_step_of_sgd = Optimizer.profile_hook_step(torch.no_grad()(unwrap(SGD.step)))
_step_of_adam = torch.no_grad()(unwrap(Adam.step))
