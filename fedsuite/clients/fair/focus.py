"""Client of FOCUS: trains all models, and keeps what share of it each describes."""

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.core.vectors import Vector
from fedsuite.messages.records import (
    ARRAYS,
    SHARES,
    Arrays,
    Reply,
    Request,
    model_record,
)
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.training.base import FederatedClient
from fedsuite.training.evaluation import mean_loss
from fedsuite.training.loop import TrainingSummary
from fedsuite.training.told import Told


def updated(log_shares: Vector, losses: Vector) -> Vector:
    """Return the logarithms of the shares after a step E, ``[models]``."""
    unscaled = log_shares - losses
    found: Vector = unscaled - np.logaddexp.reduce(unscaled)
    return found


class Mixture(nn.Module):
    """The mean of some networks' probabilities, as logits."""

    def __init__(self, networks: Sequence[nn.Module], log_shares: Sequence[float]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.log_shares = log_shares

    def forward(self, features: Tensor) -> Tensor:
        """Return the logarithms of the mean probabilities."""
        parts = [
            functional.log_softmax(network(features), dim=-1) + share
            for network, share in zip(self.networks, self.log_shares, strict=True)
        ]
        return torch.logsumexp(torch.stack(parts), dim=0)


class FOCUSClient(FederatedClient):
    """Trains each received model on the same mini-batches, and reports its shares."""

    focus_memory = Told(bool)
    focus_inference = Told(str)

    def on_train(self, request: Request) -> Reply:
        """Update the shares, train all models, send both, and keep the shares."""
        models = _models(request)
        known = self.load_state(request) if self.focus_memory else None
        shares = self._shares(models, known)
        trained: dict[str, Arrays] = {}
        summary = TrainingSummary(0.0, 0)
        for name, model in models.items():
            load_arrays(self.model, model)
            summary = summary.then(self.train_locally(request))
            trained[name] = model_arrays(self.model, model)
        # What is asked of the model after training is asked of the one that fits best.
        load_arrays(self.model, trained[list(models)[int(shares.argmax())]])
        stored = self.save_state(request, {SHARES: shares})
        return Reply(
            {**trained, SHARES: {SHARES: np.exp(shares)}},
            {**self.train_metrics(summary), **stored},
        )

    def on_evaluate(self, request: Request) -> Reply:
        """Evaluate the mixture of the received models, or that of the largest share."""
        models = list(_models(request).values())
        known = self.load_state(request)
        shares = known[SHARES] if known else self._shares(_models(request), None)
        if self.focus_inference == "largest" or len(models) == 1:
            load_arrays(self.model, models[int(shares.argmax())])
            return self.evaluation()
        usual, networks = self.model, []
        for model in models:
            networks.append(copy.deepcopy(usual))
            load_arrays(networks[-1], model)
        try:
            self.model = Mixture(networks, shares.tolist())
            return self.evaluation()
        finally:
            self.model = usual

    def _shares(self, models: Mapping[str, Arrays], known: Arrays | None) -> Vector:
        """Return the logarithms of the shares by the losses, from known or equal ones."""
        losses = []
        for model in models.values():
            load_arrays(self.model, model)
            losses.append(mean_loss(self.model, self.train_data, self._plain_loss))
        equal = np.full(len(losses), -np.log(len(losses)))
        return updated(known[SHARES] if known else equal, np.array(losses))


def _models(request: Request) -> dict[str, Arrays]:
    """Return the received models by record, in their order."""
    names = [model_record(m) for m in range(1, len(request.arrays))]
    return {n: request.arrays[n] for n in (ARRAYS, *names) if n in request.arrays}
