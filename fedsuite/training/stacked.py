"""Many copies of one network as one computation.

Arrays of the copies are stacked: an axis of clients stands before those of the network's
own array. Plain chains of linear layers are computed by batched products, other networks
by :func:`torch.func.vmap`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedsuite.data.specs import IGNORED
from fedsuite.training.dense_gradients import (
    dense_layers,
    nll_loss_backward,
    nll_loss_forward,
    relu_backward,
    softmax_backward,
)

Stacked = Mapping[str, Tensor]
"""Name to the arrays of all copies, ``[clients, ...]``."""

_EACH = 0


class StackedCrossEntropy:
    """Mean over each copy's targets that count; with ``gamma`` above 0 the focal loss."""

    def __init__(self, gamma: float = 0.0) -> None:
        self._gamma = gamma

    def __call__(self, outputs: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """Return the mean losses ``[clients]``.

        Parameters
        ----------
        outputs, labels
            ``[clients, rows, ..., classes]`` and ``[clients, rows, ...]``.
        counts
            Targets of each copy that count, ``[clients]``.
        """
        classes = outputs.shape[-1]
        losses = functional.cross_entropy(
            outputs.reshape(-1, classes),
            labels.reshape(-1),
            reduction="none",
            ignore_index=IGNORED,
        )
        if self._gamma:
            # As focal_loss: finite slopes at 0.
            wrong = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).tiny)
            losses = wrong**self._gamma * losses
        return losses.reshape(len(labels), -1).sum(1) / counts.clamp_min(1)

    def with_slope(
        self, outputs: Tensor, labels: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses, and their gradient with respect to outputs without graph."""
        if self._gamma or labels.ndim > 2:
            outputs.requires_grad_()
            losses = self(outputs, labels, counts)
            (slope,) = torch.autograd.grad(losses.sum(), outputs)
            return losses.detach(), slope
        # What autograd would call: its bookkeeping takes a sixth of a step.
        targets = labels.reshape(-1)
        logs = torch.log_softmax(outputs.flatten(0, 1), 1)
        ignored = (None, _EACH, IGNORED)
        found, total = nll_loss_forward(logs, targets, *ignored)
        share = counts.clamp_min(1).to(logs.dtype).reciprocal()
        scale = share[:, None].expand(labels.shape).reshape(-1)
        slope = nll_loss_backward(scale, logs, targets, *ignored, total)
        slope = softmax_backward(slope, logs, 1, logs.dtype)
        return found.view(labels.shape).sum(1) * share, slope.view(outputs.shape)


class StackedNetwork(Protocol):
    """Gradients of the copies of a network."""

    def __call__(
        self,
        arrays: Stacked,
        features: Tensor,
        labels: Tensor,
        counts: Tensor,
        loss: StackedCrossEntropy,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses ``[clients]``, and the gradients of what requires one."""


class StackedChain:
    """Copies of a plain chain of linear layers, by batched products."""

    def __init__(self, names: Sequence[tuple[str, str]]) -> None:
        self._names = names
        self._memory: dict[str, Tensor] = {}

    def __call__(
        self,
        arrays: Stacked,
        features: Tensor,
        labels: Tensor,
        counts: Tensor,
        loss: StackedCrossEntropy,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return losses and gradients; the next call overwrites those of weights."""
        with torch.no_grad():
            inputs: list[Tensor] = []
            outputs = features.flatten(2)
            for weight, bias in self._names:
                inputs.append(torch.relu_(outputs) if inputs else outputs)
                turned = arrays[weight].transpose(1, 2)
                outputs = torch.baddbmm(arrays[bias][:, None], inputs[-1], turned)
        losses, slope = loss.with_slope(outputs, labels, counts)
        return losses, self._backward(arrays, inputs, slope)

    @torch.no_grad()
    def _backward(
        self, arrays: Stacked, inputs: Sequence[Tensor], slope: Tensor
    ) -> dict[str, Tensor]:
        gradients: dict[str, Tensor] = {}
        for place in reversed(range(len(inputs))):
            weight, bias = self._names[place]
            taken = inputs[place]
            if arrays[bias].requires_grad:
                gradients[bias] = slope.sum(1)
            if arrays[weight].requires_grad:
                memory = self._memory_like(weight, arrays[weight])
                gradients[weight] = torch.bmm(slope.transpose(1, 2), taken, out=memory)
            if place:
                back = torch.bmm(slope, arrays[weight])
                slope = relu_backward(back, taken, 0)
        return gradients

    def _memory_like(self, name: str, array: Tensor) -> Tensor:
        held = self._memory.get(name)
        if held is None or held.shape[0] < array.shape[0]:
            held = self._memory[name] = torch.empty_like(array, requires_grad=False)
        return held[: array.shape[0]]


class StackedModule:
    """Copies of any network without state of its own, by :func:`torch.func.vmap`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(
        self,
        arrays: Stacked,
        features: Tensor,
        labels: Tensor,
        counts: Tensor,
        loss: StackedCrossEntropy,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return losses and gradients."""
        losses = loss(self.outputs(arrays, features), labels, counts)
        trained = [name for name, array in arrays.items() if array.requires_grad]
        found = torch.autograd.grad(losses.sum(), [arrays[name] for name in trained])
        gradients = [gradient.contiguous() for gradient in found]
        return losses.detach(), dict(zip(trained, gradients, strict=True))

    def outputs(self, arrays: Stacked, features: Tensor) -> Tensor:
        """Return the outputs ``[clients, rows, ...]`` of the copies."""

        def one(own: dict[str, Tensor], rows: Tensor) -> Tensor:
            outputs: Tensor = functional_call(self._model, own, (rows,))
            return outputs

        stacked: Tensor = vmap(one)(dict(arrays), features)
        return stacked


def stacked_network(model: nn.Module) -> StackedNetwork:
    """Return the gradient function of a network's copies, on any device."""
    layers = dense_layers(model)
    if not layers:
        return StackedModule(model)
    names = {module: name for name, module in model.named_modules()}
    return StackedChain([(f"{names[m]}.weight", f"{names[m]}.bias") for m in layers])


def obstacle(model: nn.Module, example: Tensor) -> str:
    """Return why copies of a network cannot be computed together; empty if they can.

    Parameters
    ----------
    model
        The network.
    example
        One row of features, ``[1, ...]``.
    """
    if any(True for _ in model.buffers()):
        return "it keeps statistics of its mini-batches"
    model.train()
    rows = torch.cat([example, example])
    arrays = {n: torch.stack([p.detach()] * 2) for n, p in model.named_parameters()}
    for array in arrays.values():
        array.requires_grad_()
    try:
        outputs = StackedModule(model).outputs(arrays, torch.stack([rows, rows]))
        torch.autograd.grad(outputs.sum(), list(arrays.values()))
        with torch.no_grad():
            one = model(rows)
            alike = torch.allclose(outputs[0], one, rtol=1e-3, atol=1e-5)
            # Rows that fill a mini-batch up must not change the others.
            mixed = model(torch.cat([example, torch.ones_like(example)]))
            apart = torch.allclose(mixed[:1], one[:1], rtol=1e-3, atol=1e-5)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).strip().partition("\n")[0]
    if not apart:
        return "a row's outputs depend on the other rows of its mini-batch"
    return "" if alike else "its copies give other outputs"
