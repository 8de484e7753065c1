"""Client of Newton's method: gradient and Hessian of its summed loss."""

from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.functional import hessian
from torch.func import functional_call
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    CURVATURE,
    GRADIENT,
    HESSIAN,
    USUAL,
    FederatedClient,
    Reply,
    Request,
    load_arrays,
)
from fedsuite.training.loop import TrainingSummary


class NewtonClient(FederatedClient):
    """Sends gradient and Hessian, both in float64, of its loss summed over its rows.

    ``weight-decay`` adds its half times the squared parameters for each row, as for SGD.
    """

    SENDS: ClassVar[frozenset[str]] = USUAL | {
        f"{CURVATURE}/{GRADIENT}",
        f"{CURVATURE}/{HESSIAN}",
    }
    TRAINED: ClassVar[frozenset[str]] = frozenset()

    @override
    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        value, gradient, curvature = self.sums()
        rows = max(len(self.train_data), 1)
        record = {GRADIENT: gradient.cpu().numpy(), HESSIAN: curvature.cpu().numpy()}
        summary = TrainingSummary(float(value) / rows, 1)
        return Reply({CURVATURE: record}, self.train_metrics(summary))

    def sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss summed over the rows, its gradient ``[p]``, its Hessian.

        Of ``p`` numbers, in the model's order, each copy of a tied parameter has its own.
        Both derivatives are 0 at frozen parameters.
        """
        model = deepcopy(self.model).double().eval()
        features, labels = self.train_data.features.double(), self.train_data.labels
        named = dict(model.named_parameters(remove_duplicate=False))
        sizes = [parameter.numel() for parameter in named.values()]
        copies: dict[Tensor, list[str]] = {}
        for name, parameter in named.items():
            copies.setdefault(parameter, []).append(name)
        decay = self.training.weight_decay / 2

        def summed(vector: Tensor) -> Tensor:
            pieces = dict(zip(named, torch.split(vector, sizes), strict=True))
            # The server has each copy of a tied parameter. Of their mean, the shortest step
            # moves all alike.
            parameters = {
                names[0]: torch.stack([pieces[n] for n in names]).mean(0).view_as(p)
                for p, names in copies.items()
                if p.requires_grad
            }

            def at(inputs: Tensor) -> Any:
                return functional_call(model, parameters, (inputs,))

            # A loss asks a model for its outputs alone.
            mean = self._plain_loss(at, features, labels)  # type: ignore[arg-type]
            moving = torch.cat([p.flatten() for p in parameters.values()])
            return (mean + decay * moving.square().sum()) * len(features)

        start = torch.cat([p.detach().flatten() for p in named.values()])
        if not len(features):
            # No rows have no mean loss, and a sum of 0.
            zeros = torch.zeros_like(start)
            return zeros.sum(), zeros, torch.outer(zeros, zeros)
        point = start.clone().requires_grad_()
        value = summed(point)
        (gradient,) = torch.autograd.grad(value, point)
        curvature: Tensor = hessian(summed, start)  # type: ignore[no-untyped-call]
        return value.detach(), gradient, curvature
