"""The gradient of small dense networks without autograd: the same bits, sooner.

Of a step on ``mlp`` or ``linear`` autograd's bookkeeping takes a quarter to three quarters.
Here are the kernels that autograd would call, in its order: results are equal bit for bit.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from fedsuite.workarounds.torch_modules import (
    has_gradient_hook,
    is_hooked,
    log_softmax_backward,
)

_MEAN = 1
_IGNORED = -100

# Named down to the overload: torch looks for it in each call otherwise.
nll_loss_forward = torch.ops.aten.nll_loss_forward.default
nll_loss_backward = torch.ops.aten.nll_loss_backward.default
relu_backward = torch.ops.aten.threshold_backward.default


class DenseGradients:
    """Loss and gradient of linear layers with ReLU in between.

    ``layers`` have biases, lie on the CPU, and are all trained; see
    :func:`dense_gradients`.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = layers
        self._memory = [torch.empty_like(layer.weight) for layer in layers]
        self._scale = torch.ones(())
        self.parameters = [p for layer in layers for p in (layer.weight, layer.bias)]

    def __call__(self, features: Tensor, labels: Tensor) -> float:
        """Return the mean cross-entropy of a mini-batch; set its gradient.

        ``features`` are ``[rows, ...]``, flattened for the first layer; ``labels`` int64
        ``[rows]``.
        """
        loss, gradients = self.gradients(features, labels)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss

    @torch.no_grad()
    def gradients(
        self, features: Tensor, labels: Tensor, scale: float = 1.0
    ) -> tuple[float, list[Tensor]]:
        """Return the mean cross-entropy, and its gradient times ``scale``.

        Gradients stand in the order of :attr:`parameters`. The next call overwrites those
        of weights.
        """
        inputs: list[Tensor] = []
        outputs = features.flatten(1)
        for layer in self.layers:
            # What a layer takes is what the one before gives, after its ReLU.
            inputs.append(torch.relu_(outputs) if inputs else outputs)
            outputs = torch.addmm(layer.bias, inputs[-1], layer.weight.t())
        logs = torch.log_softmax(outputs, 1)
        loss, total = nll_loss_forward(logs, labels, None, _MEAN, _IGNORED)
        slope = nll_loss_backward(
            self._scale.fill_(scale), logs, labels, None, _MEAN, _IGNORED, total
        )
        slope = log_softmax_backward(slope, logs, 1, logs.dtype)
        gradients: list[Tensor] = []
        for layer, memory, layer_inputs in reversed(
            list(zip(self.layers, self._memory, inputs, strict=True))
        ):
            gradients += slope.sum(0), torch.mm(slope.t(), layer_inputs, out=memory)
            if layer is not self.layers[0]:
                slope = relu_backward(
                    _slope_of_inputs(slope, layer.weight, layer_inputs), layer_inputs, 0
                )
        return float(loss), gradients[::-1]


def _slope_of_inputs(slope: Tensor, weight: Tensor, layer_inputs: Tensor) -> Tensor:
    # As autograd chooses: a single number lies in memory by columns as well as by rows.
    if layer_inputs.stride(0) == 1 and layer_inputs.stride(1) == layer_inputs.size(0):
        return torch.mm(weight.t(), slope.t()).t()
    return torch.mm(slope, weight)


def dense_gradients(model: nn.Module) -> DenseGradients | None:
    """Return a network's gradient function, None unless it has :func:`plain_layers`."""
    layers = plain_layers(model)
    return DenseGradients(layers) if layers else None


def plain_layers(model: nn.Module) -> list[nn.Linear]:
    """Return :func:`dense_layers` of float32 on the CPU, all trained; else none."""
    layers = dense_layers(model)
    plain = all(
        p is not None
        and p.is_cpu
        and p.dtype is torch.float32
        and p.requires_grad
        and not has_gradient_hook(p)
        for layer in layers
        for p in (layer.weight, layer.bias)
    )
    return layers if plain else []


def dense_layers(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a plain chain, none of another network.

    A plain chain is a :class:`torch.nn.Sequential` of a :class:`~torch.nn.Flatten` and
    linear layers with biases and a ReLU between them, without hooks.
    """
    # Looked at before each client's training: without what makes torch's looks slow.
    if type(model) is not nn.Sequential:
        return []
    modules = list(model)
    if tuple(map(type, modules)) != _chain(len(modules)):
        return []
    flatten = modules[0]
    layers = [module for module in modules if isinstance(module, nn.Linear)]
    if flatten.start_dim != 1 or flatten.end_dim != -1:
        return []
    if any(map(is_hooked, (model, *modules))):
        return []
    return layers if all(layer.bias is not None for layer in layers) else []


@cache
def _chain(length: int) -> tuple[type[nn.Module], ...]:
    """Return the kinds of modules in a plain chain of so many, none of a wrong number."""
    if length < 2 or length % 2:
        return (nn.Module,) * (length + 1)
    return (nn.Flatten, nn.Linear, *(nn.ReLU, nn.Linear) * (length // 2 - 1))
