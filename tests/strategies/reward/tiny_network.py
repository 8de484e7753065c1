"""Federations of a small real network with normalisation, and what its clients see."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Context
from torch import nn

from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    Arrays,
    Reply,
    Request,
)
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.training.app import make_client_app
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import Tamper, TamperingGrid, Trace, run


class Tiny(nn.Module):
    """Tanh, whose gradient is not 0 at 0: an absent neuron would come back."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.norm(self.hidden(features))))
        return out


def tiny() -> Tiny:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Tiny()


def split_of(client_id: int, count: int = 12) -> Split:
    stream = torch_stream(5, "toy", 0, client_id)
    features = torch.randn(count, 2, generator=stream)
    return Split(features, (features[:, 0] * features[:, 1] > 0).long())


@dataclass
class Watch:
    """What the clients were sent, answered and scored, by round and client."""

    sent: dict[tuple[int, int], Any] = field(default_factory=dict)
    answered: dict[tuple[int, int], dict[str, Arrays]] = field(default_factory=dict)
    scored: dict[tuple[int, int], Arrays] = field(default_factory=dict)


def federate(
    strategy: FederatedStrategy,
    client_class: type[Any],
    num_rounds: int,
    *,
    counts: Sequence[int] = (12, 12, 12),
    num_nodes: int = 3,
    tamper: Tamper | None = None,
    tampered_rounds: Sequence[int] = (1,),
    **training: Any,
) -> tuple[Trace, Watch]:
    """Run rounds; client k holds ``counts[k]`` of the samples of ``split_of``."""
    watch, store = Watch(), MemoryStore()
    work = TrainingOptions(**{"local_steps": 3, "batch_size": 0, **training})

    class Watched(client_class):
        def on_train(self, request: Request) -> Reply:
            reply: Reply = super().on_train(request)
            key = (request.server_round, self.client_id)
            watch.sent[key], watch.answered[key] = request.arrays, dict(reply.arrays)
            return reply

        def on_evaluate(self, request: Request) -> Reply:
            reply: Reply = super().on_evaluate(request)
            key = (request.server_round, self.client_id)
            watch.scored[key] = model_arrays(self.model)
            return reply

    def client_fn(context: Context, client_id: int) -> Any:
        data = split_of(client_id, counts[client_id])
        return Watched(tiny(), data, data, training=work, client_id=client_id, store=store)

    app = make_client_app(client_fn, list(client_class.ACTIONS))
    grid = TamperingGrid(app, num_nodes, tamper, tampered_rounds)
    trace = run(strategy, grid, num_rounds, to_record(model_arrays(tiny())))
    return trace, watch
