"""A tiny federation of factored networks, and clients that do as they are told."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.decomposition.filter_decomposition import DecomposedClient
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    NUM_EXAMPLES,
    TRAIN,
    Arrays,
    Reply,
    Request,
    records_of,
)
from fedsuite.models import decompose, parameter_groups
from fedsuite.models.arrays import model_arrays
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.decomposition.filter_decomposition import FilterDecomposition
from fedsuite.training.app import Answering, make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import Trace, run

STEPS = TrainingOptions(local_steps=2, batch_size=4, learning_rate=0.05, momentum=0.9)
CLIENTS = 4


def tiny_model() -> nn.Module:
    """Return a factored network on 1 x 4 x 4 images, the same one each time."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        dense = nn.Sequential(
            nn.Conv2d(1, 2, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8, 4),
            nn.ReLU(),
            nn.Linear(4, 2),
        )
    return decompose(dense, 9, initialisation="kaiming-both")


GROUPS = parameter_groups(tiny_model())
ATOMS, COEFFICIENTS = "0.atoms", "0.coefficients"
FAST = ["0.atoms", "5.weight", "5.bias"]
SLOW_NAMES = ["0.coefficients", "0.bias", "3.weight", "3.bias"]


def initial() -> Arrays:
    return model_arrays(tiny_model())


def client_data(client_id: int) -> Split:
    """Return 8 + client_id made images, that differ from client to client."""
    stream = torch.Generator().manual_seed(client_id)
    count = 8 + client_id
    features = torch.randn(count, 1, 4, 4, generator=stream)
    labels = (features.mean(dim=(1, 2, 3)) > 0.1 * client_id - 0.2).long()
    return Split(features, labels)


class Told(FedAvgClient):
    """Moves each array by what :attr:`move` says instead of training."""

    move: Callable[[int, int, str], float] = staticmethod(lambda client, round_, name: 1.0)

    def on_train(self, request: Request) -> Reply:
        k, server_round = self.client_id, request.server_round
        moved = {
            name: (array + self.move(k, server_round, name)).astype(array.dtype)
            for name, array in request.arrays[ARRAYS].items()
        }
        return Reply({ARRAYS: moved}, {NUM_EXAMPLES: k + 1})


def make_app(
    client_class: type[FederatedClient] = FedAvgClient,
    *,
    wrapped: bool = True,
    model: Callable[[], nn.Module] = tiny_model,
    groups: ParameterGroups = GROUPS,
    data: Callable[[int], Split] = client_data,
    store: MemoryStore | None = None,
    training: TrainingOptions = STEPS,
    reuse: bool = False,
    watch: Callable[[int, Request, Reply | None], None] = lambda k, request, reply: None,
    **options: Any,
) -> ClientApp:
    """Return an app of factored clients.

    Parameters
    ----------
    reuse
        Whether one client object answers all rounds, on one model for all clients.
    watch
        Called with client, request and reply of what the client inside is asked.
    """
    kept = store or MemoryStore()
    shared, known = model(), dict[int, Answering]()

    class Watched(client_class):  # type: ignore[misc, valid-type]
        def answer(self, request: Request) -> Reply:
            watch(self.client_id, request, None)
            reply = super().answer(request)
            watch(self.client_id, request, reply)
            return reply

    def client_fn(context: Context, client_id: int) -> Answering:
        if client_id in known:
            return known[client_id]
        network = shared if reuse else model()
        if reuse:
            network.load_state_dict(model().state_dict())
        split = data(client_id)
        client = Watched(
            network,
            split,
            split,
            training=training,
            client_id=client_id,
            store=kept,
            **options,
        )
        made = DecomposedClient(client, groups) if wrapped else client
        if reuse:
            known[client_id] = made
        return made

    return make_client_app(client_fn, list(client_class.ACTIONS))


class Recorder(LocalGrid):
    """Keeps all messages, and tampers with replies to training."""

    def __init__(
        self,
        app: ClientApp,
        num_nodes: int = CLIENTS,
        tamper: Callable[[int, list[Message]], Iterable[Message]] | None = None,
    ) -> None:
        super().__init__(app, num_nodes)
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self._tamper = tamper

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        messages = list(messages)
        self.sent += messages
        replies = list(super().send_and_receive(messages, timeout=timeout))
        kind = messages[0].metadata.message_type if messages else ""
        if self._tamper is not None and kind == TRAIN:
            server_round = int(messages[0].metadata.group_id.partition(".")[0])
            replies = list(self._tamper(server_round, replies))
        self.replies += replies
        return iter(replies)

    def of_round(self, server_round: int, kind: str = TRAIN) -> list[Message]:
        """Return what was sent in a round."""
        return [m for m in self.sent if _is_of(m, server_round, kind)]

    def replies_of(self, server_round: int, kind: str = TRAIN) -> list[Message]:
        """Return the replies of a round."""
        return [m for m in self.replies if _is_of(m, server_round, kind)]


def _is_of(message: Message, server_round: int, kind: str) -> bool:
    facts = message.metadata
    mine = facts.group_id.partition(".")[0] == str(server_round)
    return mine and facts.message_type == kind


def arrays_in(message: Message) -> dict[str, Arrays]:
    """Return the array records of a message by name."""
    from flwr.app import ArrayRecord

    return {n: to_arrays(r) for n, r in records_of(message.content, ArrayRecord).items()}


def payload(messages: Iterable[Message]) -> int:
    """Return the bytes of all arrays in messages, as they stand there."""
    return sum(
        array.nbytes
        for message in messages
        for arrays in arrays_in(message).values()
        for array in arrays.values()
    )


def no_evaluation(**options: Any) -> FedAvg:
    return FedAvg(min_available_nodes=1, fraction_evaluate=0.0, **options)


def total(trace: Trace, name: str) -> float:
    """Return the sum of a metric over the rounds."""
    return sum(report.metrics[name] for report in trace.reports)


def changes(trace: Trace, name: str) -> list[int]:
    """Return the rounds after which an array differed from before."""
    states = [initial(), *trace.arrays]
    return [
        index
        for index in range(1, len(states))
        if not np.array_equal(states[index - 1][name], states[index][name])
    ]


def wrap(
    strategy: FederatedStrategy | None = None,
    layer_class: type[FilterDecomposition] = FilterDecomposition,
    **options: Any,
) -> FederatedStrategy:
    """Return FedAvg with the layer, unless another strategy is given."""
    inner = strategy or no_evaluation()
    layer = layer_class(groups=options.pop("groups", GROUPS), **options)
    # As the constructor's keyword, which cannot be set later.
    vars(inner)["layer"] = layer
    inner.begin_afresh()
    return inner


def federate(
    strategy: Any,
    grid: LocalGrid,
    num_rounds: int,
    start: Mapping[str, np.ndarray] | None = None,
    callbacks: Sequence[Any] = (),
) -> Trace:
    return run(strategy, grid, num_rounds, to_record(start or initial()), callbacks)


def average_of_products(coefficients: Any, atoms: Any, weights: Any) -> Any:
    """Return the average of the clients' filters, FedAvg as if there were no factors."""
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    return np.einsum("k,koiq,kqxy->oixy", shares, coefficients, atoms)


def covariance_gap(coefficients: Any, atoms: Any, weights: Any) -> Any:
    """Return the average of products minus the product of averages."""
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    alphas = coefficients - np.tensordot(shares, coefficients, axes=1)
    bases = atoms - np.tensordot(shares, atoms, axes=1)
    return average_of_products(alphas, bases, shares)
