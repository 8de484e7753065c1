"""Two clients with the model v u x, one body number u and one head number v, from 1.

The loss of a sample x = 1 with label y is (u v - y)^2 / 2: du = (u v - y) v,
dv = (u v - y) u. Client 0 has one sample with y = 3, client 1 three with y = 0.
"""

from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from torch import Tensor, nn

from fedsuite.data import Split
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import Arrays
from fedsuite.models.groups import parameter_groups
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import TamperingGrid, Trace, run

HALF_STEP = TrainingOptions(local_steps=1, batch_size=0, learning_rate=0.5)
LABELS = (3, 0)
COUNTS = (1, 3)
INITIAL: Arrays = {
    "0.weight": np.ones((1, 1), np.float32),
    "1.weight": np.ones((1, 1), np.float32),
}


def product() -> nn.Sequential:
    """Return the model v u x with u = v = 1."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    return model


GROUPS = parameter_groups(product())


class SquaredLoss:
    """Gives a client the loss of this module's docstring."""

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * ((model(features)[:, 0] - labels) ** 2).mean()


def split(label: int, count: int) -> Split:
    return Split(torch.ones(count, 1), torch.full((count,), label))


def play(
    strategy: Any,
    client_class: type[FederatedClient],
    num_rounds: int = 2,
    *,
    training: TrainingOptions = HALF_STEP,
    counts: tuple[int, ...] = COUNTS,
    store: MemoryStore | None = None,
) -> Trace:
    """Run the two clients; their classes get the squared loss mixed in."""
    kept = store or MemoryStore()
    kind: Any = type(client_class.__name__, (SquaredLoss, client_class), {})

    def client_fn(context: Context, client_id: int) -> FederatedClient:
        data = split(LABELS[client_id], counts[client_id])
        client: FederatedClient = kind(
            product(), data, data, training=training, client_id=client_id, store=kept
        )
        return client

    grid = TamperingGrid(make_client_app(client_fn, list(client_class.ACTIONS)), 2)
    initial: ArrayRecord = to_record(INITIAL)
    return run(strategy, grid, num_rounds, initial)


def numbers(arrays: Arrays) -> list[float]:
    """Return u and v, those of them that are there."""
    return [float(array[0, 0]) for array in arrays.values()]


TWO: dict[str, Any] = {
    "groups": GROUPS,
    "identity": "partition",
    "num_clients": 2,
    "fraction_evaluate": 0.0,
}
