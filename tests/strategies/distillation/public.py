"""Small federations that exchange outputs on public data, and what travelled in them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from torch import Tensor, nn

from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    CLASS_TABLE,
    Arrays,
    records_of,
)
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.distillation.class_tables import ClassTables
from fedsuite.strategies.distillation.public_exchange import PublicExchange
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import ClientStore, MemoryStore
from tests.helpers import NEARLY_0, Trace, run

CLASSES = 3
WIDTH = 4
ADAM = TrainingOptions(local_steps=2, batch_size=8, learning_rate=0.01, optimizer="adam")
NO_TRAINING = TrainingOptions(local_epochs=0, learning_rate=1.0)
"""No step on private data; of the transfer plain steps by the gradient itself."""

STANDING = TrainingOptions(local_steps=1, batch_size=0, learning_rate=NEARLY_0)
"""One step on all data that goes nowhere."""

Build = Callable[[], nn.Module]


class Fixed(nn.Module):
    """The same logits whatever the input: gradients by logits are seen in parameters."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, features: Tensor) -> Tensor:
        return self.logits.expand(len(features), -1)


def small() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, CLASSES))


def normalised() -> nn.Module:
    """A network whose outputs depend on the mode, and on draws of its own."""
    return nn.Sequential(
        nn.Linear(WIDTH, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(6, CLASSES),
    )


FIXTURE = {
    1: ((2, 0, -2), (0, 1, 0), (1, 0.5, -1), (-1, 0, 2)),
    2: ((0, 1, 0), (1, -1, 0), (2, 0, 1), (0, 0.5, 1)),
    3: ((1, 2.5, -1), (-1, 0, 2), (0, 0, 3), (0.5, 1, 0)),
}
"""Logits of three clients on four samples."""

CLIENTS = [torch.tensor(logits, dtype=torch.float64) for logits in FIXTURE.values()]


class Table(nn.Module):
    """Logits by sample: the input's first number says which."""

    def __init__(self, logits: Any, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=dtype))

    def forward(self, features: Tensor) -> Tensor:
        return self.logits[features[:, 0].long()]


class FeatureTable(nn.Module):
    """Features by sample, and a classifier of them."""

    def __init__(self, features: Any, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.features = nn.Parameter(torch.tensor(features, dtype=dtype))
        self.head = nn.Linear(len(features[0]), CLASSES).to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.features[inputs[:, 0].long()])


MIXED: tuple[Build, ...] = (small, wide, normalised)


def rows(seed: int, count: int = 23) -> Split:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, WIDTH, generator=generator)
    return Split(features, torch.randint(CLASSES, (count,), generator=generator))


def numbered(*labels: int) -> Split:
    """Return samples with these labels, each with its number."""
    count = torch.arange(float(len(labels)))
    return Split(count[:, None].expand(-1, WIDTH).contiguous(), torch.tensor(labels))


NUMBERED = numbered(0, 0, 0, 0).features
"""The fixture's four samples."""

PUBLIC = rows(99, 20).features


class Post(LocalGrid):
    """A local grid that keeps all messages, and may hand replies on in another order."""

    def __init__(
        self,
        *args: Any,
        order: Callable[[list[Message]], Iterable[Message]] = iter,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self._order = order

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        messages = list(messages)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        self.sent += messages
        self.replies += replies
        return iter(list(self._order(replies)))

    def arrays(self, message_type: str, *, sent: bool) -> list[dict[str, Arrays]]:
        """Return the named arrays of all messages of a type, or of the replies to it."""
        return [
            {name: to_arrays(r) for name, r in records_of(m.content, ArrayRecord).items()}
            for m in (self.sent if sent else self.replies)
            if m.metadata.message_type == message_type and not m.has_error()
        ]


class Federation:
    """Clients of one method with networks of their own, and a run of them.

    Parameters
    ----------
    client_class
        The method's client.
    builds
        A network a client.
    training, store, public
        Of all clients.
    data
        Private rows of each.
    """

    def __init__(
        self,
        client_class: type[FederatedClient],
        builds: Sequence[Build] = MIXED,
        *,
        training: TrainingOptions = ADAM,
        store: ClientStore | None = None,
        public: Tensor = PUBLIC,
        order: Callable[[list[Message]], Iterable[Message]] = iter,
        data: Callable[[int], Split] = rows,
    ) -> None:
        self.store = store or MemoryStore()
        self.clients: dict[int, Any] = {}
        self._make = client_class, tuple(builds), training, public, data
        app = make_client_app(self._client, list(client_class.ACTIONS))
        self.grid = Post(app, len(builds), order=order)

    def _client(self, context: Context, client_id: int) -> FederatedClient:
        if client_id not in self.clients:
            client_class, builds, training, public, rows_of = self._make
            with torch.random.fork_rng():
                torch.manual_seed(client_id)
                model = builds[client_id]()
            data = rows_of(client_id)
            self.clients[client_id] = client_class(
                model,
                data,
                data,
                training=training,
                client_id=client_id,
                store=self.store,
                public=public,
            )
        return self.clients[client_id]

    def run(self, strategy: FederatedStrategy, num_rounds: int = 2) -> Trace:
        """Run rounds; nothing is sent as a model."""
        return run(strategy, self.grid, num_rounds, to_record({}))

    def models(self) -> list[list[np.ndarray]]:
        """Return the parameters and buffers of each client, as the last message left."""
        return [
            [
                tensor.numpy().copy()
                for tensor in self.clients[k].model.state_dict().values()
            ]
            for k in sorted(self.clients)
        ]


def strategy_of(kind: type[PublicExchange], num_clients: int = 3, **options: Any) -> Any:
    """Return a strategy for the small federations."""
    options = {"transfer_steps": 2, "public_batch_size": 6} | options
    options = {"public_rows": len(PUBLIC)} | options
    return kind(
        num_classes=CLASSES,
        num_clients=num_clients,
        identity="partition",
        min_available_nodes=1,
        **options,
    )


def tables_of(kind: type[ClassTables], num_clients: int = 3, **options: Any) -> Any:
    """Return a strategy of class tables for the small federations."""
    return kind(
        num_classes=CLASSES,
        num_clients=num_clients,
        identity="partition",
        min_available_nodes=1,
        **options,
    )


def tables(client_class: type[FederatedClient], logits: Iterable[Any] = ()) -> Federation:
    """Return clients with these logits, or the fixture's: no step on private data."""
    builds = [lambda held=held: Table(held) for held in logits or FIXTURE.values()]
    federation = Federation(client_class, builds, training=NO_TRAINING, public=NUMBERED)
    for client_id in range(len(builds)):
        # Private rows carry no sample's number.
        client: Any = federation._client(Context(0, 0, {}, RecordDict(), {}), client_id)
        client.train_data.features.zero_()
        client.test_data = client.train_data
    return federation


def tables_strategy(kind: type[PublicExchange], **options: Any) -> Any:
    """Return a strategy of one exchange a round on all four samples."""
    of_fixture = {"public_rows": 4, "public_batch_size": 0, "transfer_steps": 1}
    return strategy_of(kind, **(of_fixture | options))


def assert_same_models(left: Federation, right: Federation) -> None:
    for one, other in zip(left.models(), right.models(), strict=True):
        for array, twin in zip(one, other, strict=True):
            np.testing.assert_array_equal(array, twin)


def differ(left: Federation, right: Federation) -> bool:
    pairs = zip(left.models(), right.models(), strict=True)
    return any(
        not np.array_equal(a, b)
        for one, two in pairs
        for a, b in zip(one, two, strict=True)
    )


def equal(left: Arrays, right: Arrays) -> bool:
    return set(left) == set(right) and all(np.array_equal(left[n], right[n]) for n in left)


def lying(client_class: type[FederatedClient], told: Arrays) -> type[FederatedClient]:
    """Return a client of which number 1 tells another class table."""

    class Lying(client_class):  # type: ignore[misc, valid-type]
        def on_train(self, request: Any) -> Any:
            reply = super().on_train(request)
            if self.client_id == 1:
                reply.arrays[CLASS_TABLE].update(told)
            return reply

    return Lying
