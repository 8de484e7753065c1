"""The two-client quadratic problem of the specification, through the real classes.

Client 0 has F(x) = 2 (x - 2)^2 and client 1 has F(x) = (x + 4)^2 / 2: one parameter, one
sample a client, exact gradients.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor, nn

from fedsuite.clients.fair.fedeba import FedEBAClient, FedEBAPlusClient
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import Arrays
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.workarounds.identity import flower_identity

Curve = tuple[float, float]
"""Factor a and centre c of F(x) = a (x - c)^2."""

TWO_CLIENTS: Sequence[Curve] = ((2.0, 2.0), (0.5, -4.0))


class Point(nn.Module):
    """One parameter; the features of a sample are the factor and centre of its curve."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        return features[:, 0] * (self.x - features[:, 1]) ** 2


def quadratic_loss(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    return torch.as_tensor(model(features)).mean()


class PlainQuadratic(FedEBAClient):
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return quadratic_loss(model, features, labels)


class ProbedQuadratic(FedEBAPlusClient):
    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return quadratic_loss(model, features, labels)


def quadratic_client(
    client_class: type[FederatedClient], curve: Curve, client_id: int, **training: Any
) -> FederatedClient:
    """Return a client of one sample; two full-batch steps of 0.05 unless told else."""
    data = Split(torch.tensor([curve], dtype=torch.float64), torch.zeros(1).long())
    options = TrainingOptions(
        **{"local_steps": 2, "batch_size": 0, "learning_rate": 0.05, **training}
    )
    return client_class(Point(), data, data, training=options, client_id=client_id)


def start(
    strategy: FederatedStrategy,
    x: float,
    *,
    curves: Sequence[Curve] = TWO_CLIENTS,
    client_class: type[FederatedClient] = ProbedQuadratic,
    num_rounds: int = 1,
    **training: Any,
) -> float:
    """Run rounds from x in this process and return the new x."""

    def client_fn(context: Context, client_id: int) -> FederatedClient:
        curve = curves[client_id]
        return quadratic_client(client_class, curve, client_id, **training)

    initial: Arrays = {"x": np.array([x])}
    with flower_identity():
        grid = LocalGrid(
            make_client_app(client_fn, list(client_class.ACTIONS)), len(curves)
        )
        result = strategy.start(grid, to_record(initial), num_rounds)
    return float(to_arrays(result.arrays)["x"][0])


def options(**changes: Any) -> dict[str, Any]:
    """Return the keywords of the golden rounds: two nodes, no evaluation."""
    return {
        "fraction_evaluate": 0.0,
        "temperature": 5.0,
        "max_failed_rounds": 1,
        **changes,
    }
