"""Federations of a small network that a probe could disturb, and what was sent in them."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from torch import nn

from fedsuite.clients.fair.fedeba import FedEBAPlusClient
from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import Arrays
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.workarounds.identity import flower_identity

NUM_CLIENTS = 4


def network() -> nn.Module:
    """Return a net with everything that a probe could disturb: dropout and batch norm."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2)
        )


def split_of(client_id: int) -> Split:
    generator = torch_stream(3, "made-data", 0, client_id)
    features = torch.randn(20 + 4 * client_id, 3, generator=generator)
    return Split(features, (features[:, 0] > 0.3 * client_id).long())


def client_of(client_class: type[FederatedClient], client_id: int = 0) -> FederatedClient:
    data = split_of(client_id)
    training = TrainingOptions(local_steps=4, batch_size=8)
    return client_class(network(), data, data, training=training, client_id=client_id)


class WatchingGrid(LocalGrid):
    """Notes what is sent: message type, node, array records."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sent: list[tuple[str, int, list[str]]] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        messages = list(messages)
        for message in messages:
            names = sorted(message.content.array_records)
            node = message.metadata.dst_node_id - 1000
            self.sent.append((message.metadata.message_type, node, names))
        return super().send_and_receive(messages, timeout=timeout)

    def nodes_of(self, message_type: str) -> list[int]:
        return [node for kind, node, _ in self.sent if kind == message_type]


def run(
    strategy: FederatedStrategy,
    client_class: type[FederatedClient] = FedEBAPlusClient,
    num_rounds: int = 2,
) -> tuple[Arrays, WatchingGrid]:
    def client_fn(context: Context, client_id: int) -> FederatedClient:
        return client_of(client_class, client_id)

    with flower_identity():
        app = make_client_app(client_fn, list(client_class.ACTIONS))
        grid = WatchingGrid(app, NUM_CLIENTS)
        initial = to_record(model_arrays(network()))
        result = strategy.start(grid, initial, num_rounds)
    return to_arrays(result.arrays), grid


def made(strategy_class: Any, **changes: Any) -> Any:
    return strategy_class(
        **{"fraction_evaluate": 0.0, "min_available_nodes": NUM_CLIENTS, **changes}
    )


def assert_same(left: Arrays, right: Arrays) -> None:
    assert list(left) == list(right)
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


def assert_close(left: Arrays, right: Arrays) -> None:
    assert list(left) == list(right)
    for name, array in left.items():
        np.testing.assert_allclose(array, right[name], atol=2e-6, err_msg=name)
