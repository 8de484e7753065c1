"""The gradient of small dense networks without autograd: the same bits, sooner.

Of a step on ``mlp`` or ``linear`` autograd's bookkeeping takes a quarter to three quarters.
Here are the kernels that autograd would call, in its order: results are equal bit for bit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_MEAN = 1
_IGNORED = -100


class DenseGradients:
    """Loss and gradient of linear layers with ReLU in between.

    ``layers`` have biases, lie on the CPU, and are all trained; see
    :func:`dense_gradients`.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = layers
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
        for layer in self._layers:
            # What a layer takes is what the one before gives, after its ReLU.
            inputs.append(torch.relu_(outputs) if inputs else outputs)
            outputs = torch.addmm(layer.bias, inputs[-1], layer.weight.t())
        logs = torch.log_softmax(outputs, 1)
        loss, total = torch.ops.aten.nll_loss_forward(logs, labels, None, _MEAN, _IGNORED)
        slope = torch.ops.aten.nll_loss_backward(
            self._scale.fill_(scale), logs, labels, None, _MEAN, _IGNORED, total
        )
        slope = torch.ops.aten._log_softmax_backward_data(slope, logs, 1, logs.dtype)
        gradients: list[Tensor] = []
        for layer, memory, taken in reversed(
            list(zip(self._layers, self._memory, inputs, strict=True))
        ):
            gradients += slope.sum(0), torch.mm(slope.t(), taken, out=memory)
            if layer is not self._layers[0]:
                slope = torch.ops.aten.threshold_backward(
                    _slope_of_inputs(slope, layer.weight, taken), taken, 0
                )
        return float(loss), gradients[::-1]


def _slope_of_inputs(slope: Tensor, weight: Tensor, taken: Tensor) -> Tensor:
    # As autograd chooses: a single number lies in memory by columns as well as by rows.
    if taken.stride(0) == 1 and taken.stride(1) == taken.size(0):
        return torch.mm(weight.t(), slope.t()).t()
    return torch.mm(slope, weight)


def dense_gradients(model: nn.Module) -> DenseGradients | None:
    """Return the gradient function of a network, None unless it is a plain chain.

    That is one of :func:`dense_layers`, of float32 on the CPU, all trained.
    """
    layers = dense_layers(model)
    return DenseGradients(layers) if layers and all(map(_is_plain, layers)) else None


def dense_layers(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers of a plain chain, none of another network.

    A plain chain is a :class:`torch.nn.Sequential` of a :class:`~torch.nn.Flatten` and
    linear layers with biases and a ReLU between them, without hooks.
    """
    if type(model) is not nn.Sequential or len(model) < 2 or len(model) % 2:
        return []
    kinds = [nn.Flatten, nn.Linear, *[nn.ReLU, nn.Linear] * (len(model) // 2 - 1)]
    modules = list(model)
    if [type(module) for module in modules] != kinds:
        return []
    if (flatten := modules[0]).start_dim != 1 or flatten.end_dim != -1:
        return []
    if any(map(_has_hooks, [model, *modules])):
        return []
    layers = [module for module in modules if isinstance(module, nn.Linear)]
    return layers if all(layer.bias is not None for layer in layers) else []


def _is_plain(layer: nn.Linear) -> bool:
    return all(
        p.is_cpu and p.dtype == torch.float32 and p.requires_grad and not p._backward_hooks
        for p in (layer.weight, layer.bias)
    )


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
