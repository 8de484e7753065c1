"""Bases of clients that receive several models."""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from fedsuite.client import (
    ARRAYS,
    MODELS,
    SHARES,
    Arrays,
    FederatedClient,
    Request,
    TrainingSummary,
    Vector,
    load_arrays,
    mean_loss,
    model_arrays,
    model_record,
)
from fedsuite.core.tasks import OF_CLASSES


def e_step(log_shares: Vector, losses: Vector) -> Vector:
    """Return the logarithms of the shares after an E-step, ``[.., models]``."""
    unscaled = log_shares - losses
    normaliser: Vector = np.logaddexp.reduce(unscaled, axis=-1, keepdims=True)
    return unscaled - normaliser


def shares_before(models: Mapping[str, Arrays], state: Arrays | None) -> Vector:
    """Return the logarithms of the shares that a client kept, or equal ones."""
    return state[SHARES] if state else np.full(len(models), -np.log(len(models)))


class Mixture(nn.Module):
    """The mean of some networks' probabilities, as logits."""

    log_shares: Tensor

    def __init__(self, networks: Sequence[nn.Module], log_shares: Vector) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        # A buffer, so that it is told from the same networks in other shares.
        self.register_buffer("log_shares", torch.tensor(log_shares, dtype=torch.float64))

    @override
    def forward(self, features: Tensor) -> Tensor:
        parts = [
            functional.log_softmax(network(features), dim=-1) + share
            for network, share in zip(self.networks, self.log_shares, strict=True)
        ]
        return torch.logsumexp(torch.stack(parts), dim=0)


def received_models(request: Request) -> dict[str, Arrays]:
    """Return the received models by record, in their order."""
    names = [model_record(m) for m in range(1, len(request.arrays))]
    return {n: request.arrays[n] for n in (ARRAYS, *names) if n in request.arrays}


class SeveralModelsClient(FederatedClient):
    """Has losses under each of the received models."""

    SENDS: ClassVar[frozenset[str]] = FederatedClient.SENDS | {MODELS}

    def losses_under(self, models: Mapping[str, Arrays]) -> Vector:
        """Return the mean loss over all training rows under each, in evaluation mode."""
        losses = []
        for model in models.values():
            load_arrays(self.model, model)
            losses.append(mean_loss(self.model, self.train_data, self._plain_loss))
        return np.array(losses)


class MixtureClient(SeveralModelsClient):
    """Trains all models, keeps its shares of them, and is scored with their mixture."""

    TASKS: ClassVar[frozenset[str]] = OF_CLASSES
    KEEPS_STATE = True
    _number = 0
    """Number of the model that is trained."""

    @abstractmethod
    def updated_shares(self, models: Mapping[str, Arrays], log_shares: Vector) -> Vector:
        """Return the logarithms of the shares after an E-step from others, ``[models]``."""

    def shares_of(self, models: Mapping[str, Arrays], state: Arrays | None) -> Vector:
        """Return the logarithms of the shares after an E-step from known or equal ones."""
        return self.updated_shares(models, shares_before(models, state))

    def train_all(
        self, request: Request, shares: Vector
    ) -> tuple[dict[str, Arrays], TrainingSummary]:
        """Return all models after training on the same mini-batches, and a summary."""
        trained: dict[str, Arrays] = {}
        summary = TrainingSummary(0.0, 0)
        for self._number, (name, model) in enumerate(received_models(request).items()):
            load_arrays(self.model, model)
            summary = summary.then(self.train_locally(request))
            trained[name] = model_arrays(self.model, model)
        # What is asked of the model after training is asked of the one that fits best.
        load_arrays(self.model, list(trained.values())[int(shares.argmax())])
        return trained, summary

    @override
    def evaluated(self, request: Request) -> nn.Module:
        models, shares = self.served(request)
        if len(models) == 1:
            load_arrays(self.model, models[0])
            return self.model
        networks = []
        for model in models:
            networks.append(copy.deepcopy(self.model))
            load_arrays(networks[-1], model)
        return Mixture(networks, shares)

    def served(self, request: Request) -> tuple[list[Arrays], Vector]:
        """Return what is mixed, and the logarithms of its shares."""
        models = received_models(request)
        state = self.load_state(request)
        shares = state[SHARES] if state else self.shares_of(models, None)
        return list(models.values()), shares
