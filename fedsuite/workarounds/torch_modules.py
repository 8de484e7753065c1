"""What torch's modules hold, read without the time that torch's own ways take.

``state_dict`` takes longer than a copy of all that is in a small model. That a module or a
parameter has hooks is told by no public name. Without autograd a step of a small network
needs the kernel that autograd calls, whose name is private too. So is the place of the mode
that sees each call of a kernel.

Seen in torch 2.13. To delete when ``state_dict`` of a model of two layers takes no longer
than :func:`plain_state`, and hooks, that kernel and that mode have public names.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

log_softmax_backward = torch.ops.aten._log_softmax_backward_data.default
"""The gradient of ``log_softmax``, down to the overload, for which torch looks in each call
otherwise."""


def plain_state(model: nn.Module) -> dict[str, Tensor] | None:
    """Return what ``model.state_dict()`` would; None where hooks or classes have a say."""
    state: dict[str, Tensor] = {}
    return state if _collect(model, "", state) else None


def is_hooked(module: nn.Module) -> bool:
    """Return whether something is called at a module's passes, forward or back."""
    before = module._forward_pre_hooks or module._backward_pre_hooks
    return bool(before or module._forward_hooks or module._backward_hooks)


def has_gradient_hook(parameter: Tensor) -> bool:
    """Return whether something is called when a parameter's gradient is known."""
    return bool(parameter._backward_hooks)


def _collect(module: nn.Module, prefix: str, state: dict[str, Tensor]) -> bool:
    """Add a module's tensors; return whether ``state_dict`` would give no others."""
    hooked = module._state_dict_hooks or module._state_dict_pre_hooks
    if hooked or _is_special(type(module)):  # type: ignore[arg-type]
        return False
    for name, parameter in module._parameters.items():
        if parameter is not None:
            state[prefix + name] = parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            state[prefix + name] = buffer
    return all(
        child is None or _collect(child, f"{prefix}{name}.", state)
        for name, child in module._modules.items()
    )


@cache
def _is_special(kind: type[nn.Module]) -> bool:
    """Return whether a class has a say in its ``state_dict``."""
    hooks = ("state_dict", "_save_to_state_dict", "get_extra_state")
    return any(getattr(kind, hook) is not getattr(nn.Module, hook) for hook in hooks)
