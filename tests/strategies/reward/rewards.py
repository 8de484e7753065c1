"""Federations of 2 x 2 matrices for the methods that reward each client on its own.

One full step of rate 1 moves a client's model to the mean of its samples, so from 0 a
client's update is what its samples say. Four entries: the golden vectors of d = 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context

from fedsuite.data import Split
from fedsuite.messages.records import Arrays, Reply, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import FULL_STEP, Matrix, MatrixLoss, Tamper, TamperingGrid, Trace, run

Row = Sequence[float]
Samples = Sequence[Row] | Sequence[Sequence[Row]]
"""One sample a client, or several."""


@dataclass
class Judge:
    """A server's validation that knows the answers, or judges by the distance to a goal.

    Its losses on mini-batches are ``batches``, the first the larger the further the model.

    Parameters
    ----------
    accuracies
        Answers one after the other, again from the start when they are used up; none
        judges by distance.
    batches
        Losses on the mini-batches of a model at the goal.
    """

    accuracies: Sequence[float] = ()
    batches: Sequence[float] = (0.5, 0.6)
    goal: Row = (1.0, 0.0, 0.0, 0.0)
    seen: list[Arrays] = field(default_factory=list)

    def accuracy(self, arrays: Arrays) -> float:
        self.seen.append(dict(arrays))
        if self.accuracies:
            return self.accuracies[(len(self.seen) - 1) % len(self.accuracies)]
        return 1 / (1 + self.loss(arrays))

    def loss(self, arrays: Arrays) -> float:
        values = np.concatenate([a.reshape(-1) for a in arrays.values()])
        return float(np.square(values[: len(self.goal)] - np.array(self.goal)).sum())

    def batch_losses(self, arrays: Arrays, batch_size: int) -> list[float]:
        first, *others = self.batches
        return [first * (1 + self.loss(arrays)), *others]


@dataclass
class Rewarded:
    """What a run left behind.

    Parameters
    ----------
    scored
        Round to client to the model that its evaluation scored.
    """

    strategy: FederatedStrategy
    trace: Trace
    grid: TamperingGrid
    store: MemoryStore
    scored: dict[int, dict[int, list[float]]]

    def models(self, server_round: int) -> list[list[float]]:
        """The clients' models after a round, by client."""
        return [model for _, model in sorted(self.scored[server_round].items())]

    def column(self, name: str, server_round: int) -> list[float]:
        """A column of the training report of a round."""
        report = self.trace.reports[server_round - 1].train
        assert report is not None
        return report.column(name)


def federate(
    strategy: FederatedStrategy,
    client_class: type[FederatedClient],
    samples: Samples,
    num_rounds: int = 1,
    *,
    counts: Sequence[int] | None = None,
    tamper: Tamper | None = None,
    tampered_rounds: Sequence[int] = (1,),
    training: TrainingOptions = FULL_STEP,
    store: MemoryStore | None = None,
    initial: ArrayRecord | None = None,
) -> Rewarded:
    """Run rounds; client k holds ``samples[k]``, ``counts[k]`` times."""
    counts = counts or [1] * len(samples)
    kept = store or MemoryStore()
    scored: dict[int, dict[int, list[float]]] = {}

    class Watched(MatrixLoss, client_class):  # type: ignore[misc, valid-type]
        def on_evaluate(self, request: Request) -> Reply:
            reply: Reply = super().on_evaluate(request)
            flat = model_arrays(self.model)["weight"].reshape(-1).tolist()
            scored.setdefault(request.server_round, {})[self.client_id] = flat
            return reply

    def client_fn(context: Context, client_id: int) -> FederatedClient:
        own = torch.tensor([samples[client_id]] * counts[client_id], dtype=torch.float32)
        rows = own.reshape(-1, 2, 2)
        data = Split(rows, torch.zeros(len(rows), dtype=torch.int64))
        client: FederatedClient = Watched(
            Matrix(), data, data, training=training, client_id=client_id, store=kept
        )
        return client

    app = make_client_app(client_fn, list(client_class.ACTIONS))
    grid = TamperingGrid(app, len(samples), tamper, tampered_rounds)
    trace = run(strategy, grid, num_rounds, initial)
    return Rewarded(strategy, trace, grid, kept, scored)


def options(num_clients: int, **changes: Any) -> dict[str, Any]:
    """Return the keywords of strategies that know clients as 0, 1, ..."""
    return {
        "identity": "partition",
        "num_clients": num_clients,
        "connect_timeout": 5.0,
        **changes,
    }
