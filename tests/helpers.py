"""One builder of tiny federations, and of replies that went wrong, for all tests.

The model is one 2 x 2 matrix W, and the loss of a sample X is ||W - X||^2 / 2. One step
over all of a client's data with learning rate 1 therefore moves W to the mean of the
client's samples, and the mean over clients is a sum that a reader can do in the head.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result
from torch import Tensor, nn

from fedsuite.callbacks import Callback, RoundReport, RunState
from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.averaging.fedsgd import FedSGDClient
from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.core.keys import Value
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    METRICS,
    TRAIN,
    Arrays,
    client_record,
)
from fedsuite.models.groups import ParameterGroups
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.rounds.validation import ClientReply
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import initial_arrays, server_parts
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity

SOME_GROUPS = ParameterGroups(head=("head",), other=("body",))
"""For strategies that are built, not run."""

NEARLY_0 = 1e-300
"""Learning rate above 0 whose steps float32 rounds to none."""

FULL_STEP = TrainingOptions(local_steps=1, batch_size=0, learning_rate=1.0)
"""One step that lands on the mean of the client's samples."""

VALUES = (1.0, 2.0, 4.0)
COUNTS = (1, 2, 1)
"""Client k holds COUNTS[k] samples full of VALUES[k]: their mean is 9 / 4."""

MEAN_OF_ALL = 2.25
MEAN_WITHOUT = (8 / 3, 2.5, 5 / 3)
"""The mean without client 0, 1, 2."""


class Matrix(nn.Module):
    """One 2 x 2 parameter, zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 2))

    def forward(self, features: Tensor) -> Tensor:
        """Return two logits a sample, for the evaluation."""
        return (features * self.weight).sum(dim=1)


class MatrixLoss:
    """Gives a client the loss of this module's docstring."""

    def loss(self, model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * ((model.weight - features) ** 2).sum(dim=(1, 2)).mean()


class MatrixClient(MatrixLoss, FedAvgClient):
    pass


class MatrixProxClient(MatrixLoss, FedProxClient):
    pass


class MatrixSGDClient(MatrixLoss, FedSGDClient):
    pass


class MatrixStandaloneClient(MatrixLoss, StandaloneClient):
    pass


def samples(value: float, count: int) -> Split:
    """Return ``count`` equal samples; labels are all 0."""
    return Split(torch.full((count, 2, 2), value), torch.zeros(count, dtype=torch.int64))


def matrix_app(
    client_class: type[FederatedClient] = MatrixClient,
    *,
    values: Sequence[float] = VALUES,
    counts: Sequence[int] = COUNTS,
    training: TrainingOptions = FULL_STEP,
    store: MemoryStore | None = None,
    before: Callable[[int], None] = lambda client_id: None,
    mods: list[Any] | None = None,
) -> ClientApp:
    """Return a ClientApp of the tiny federation; ``before`` is called with each client."""
    kept = store or MemoryStore()

    def client_fn(context: Context, client_id: int) -> FederatedClient:
        before(client_id)
        data = samples(values[client_id], counts[client_id])
        return client_class(
            Matrix(), data, data, training=training, client_id=client_id, store=kept
        )

    return make_client_app(client_fn, list(client_class.ACTIONS), mods=mods)


Tamper = Callable[[list[Message]], Iterable[Message]]
"""Turns the replies to one training exchange into those that arrive."""


class TamperingGrid(LocalGrid):
    """A local grid that keeps what was sent, and tampers with the replies of some rounds.

    Parameters
    ----------
    tamper
        What is done to the replies of a training exchange; None leaves them.
    rounds
        Rounds in which it is done.
    """

    def __init__(
        self,
        app: ClientApp,
        num_nodes: int,
        tamper: Tamper | None = None,
        rounds: Sequence[int] = (1,),
    ) -> None:
        super().__init__(app, num_nodes)
        self.sent: list[Message] = []
        self._tamper = tamper
        self._rounds = rounds
        self._exchanges = 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        messages = list(messages)
        self.sent += messages
        replies = super().send_and_receive(messages, timeout=timeout)
        if not messages or messages[0].metadata.message_type != TRAIN:
            return replies
        self._exchanges += 1
        if self._tamper is None or self._exchanges not in self._rounds:
            return replies
        return iter(self._tamper(list(replies)))


@dataclass
class Trace(Callback):
    """A callback that keeps each round's report and arrays."""

    reports: list[RoundReport] = field(default_factory=list)
    arrays: list[dict[str, np.ndarray]] = field(default_factory=list)
    error: BaseException | None = None
    result: Result | None = None

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        self.reports.append(report)
        self.arrays.append(to_arrays(state.arrays))

    def on_end(self, state: RunState, error: BaseException | None) -> None:
        self.error = error
        self.result = state.result

    @property
    def weights(self) -> list[float]:
        """The value that fills W after each round; fails if it is not one value."""
        found = []
        for arrays in self.arrays:
            assert np.all(arrays["weight"] == arrays["weight"][0, 0])
            found.append(float(arrays["weight"][0, 0]))
        return found


def zeros() -> ArrayRecord:
    """Return the initial arrays of the tiny federation."""
    return to_record({"weight": np.zeros((2, 2), dtype=np.float32)})


LAYOUTS = {"single": 3, "hosted": 3, "shared-node": 2}
"""Layout to number of nodes; on two nodes clients 0 and 2 share the first."""


def strategy_for(layout: str, **options: Any) -> FederatedStrategy:
    """Return a FedAvg for the tiny federation in one of the layouts."""
    if layout != "single":
        options |= {"identity": "partition", "num_clients": 3}
    return FedAvg(**{"min_available_nodes": 1, "connect_timeout": 5.0, **options})


def client_number(layout: str, client: int) -> int:
    """Return the id by which the server knows client 0, 1 or 2."""
    return 1000 + client if layout == "single" else client


def aggregated(
    strategy: FederatedStrategy, arrays: Arrays, replies: Iterable[ClientReply]
) -> Arrays | None:
    """Return what a strategy makes of replies that it takes one after the other."""
    take_all(strategy, arrays, replies)
    return strategy.aggregate(arrays)


def take_all(
    strategy: FederatedStrategy, arrays: Arrays, replies: Iterable[ClientReply]
) -> None:
    """Have a strategy take the replies of a round."""
    strategy._average = strategy.averaging.begin()
    strategy.begin_aggregation(arrays)
    for reply in replies:
        strategy.take(reply)


def run(
    strategy: FederatedStrategy,
    grid: LocalGrid,
    num_rounds: int = 1,
    initial: ArrayRecord | None = None,
    callbacks: Sequence[Callback] = (),
) -> Trace:
    """Run rounds through the strategy's own ``start`` and return what happened."""
    trace = Trace()
    arrays = zeros() if initial is None else initial
    with flower_identity():
        strategy.start(grid, arrays, num_rounds, callbacks=[*callbacks, trace])
    # A check inside a client is a failed client: the run would go on without it.
    reasons = [r.reason for t in trace.reports for p in t.phases for r in p.rejections]
    assert not [reason for reason in reasons if "AssertionError" in reason]
    return trace


def run_tampered(
    layout: str, tamper: Tamper | None, num_rounds: int = 2, **options: Any
) -> Trace:
    """Run the tiny federation, tampering with the replies of round 1."""
    grid = TamperingGrid(matrix_app(), LAYOUTS[layout], tamper)
    return run(strategy_for(layout, **options), grid, num_rounds)


Change = Callable[[RecordDict, str], None]
"""Changes one client's entry of a reply: gets the content and the entry's prefix."""


def for_client(client: int, layout: str, change: Change) -> Tamper:
    """Return a tamper that changes the entry of one client."""

    def tamper(replies: list[Message]) -> list[Message]:
        content = replies[client % LAYOUTS[layout]].content
        change(content, "" if layout == "single" else client_record(client, ""))
        return replies

    return tamper


def set_arrays(**arrays: Any) -> Change:
    """Return a change that replaces the arrays; an ``Array`` is taken as it is."""

    def change(content: RecordDict, prefix: str) -> None:
        record = ArrayRecord()
        for name, value in arrays.items():
            record[name] = value if isinstance(value, Array) else to_record({"": value})[""]
        content[prefix + ARRAYS] = record

    return change


def set_metrics(**metrics: float | None) -> Change:
    """Return a change of metrics, named in snake case; None drops one."""

    def change(content: RecordDict, prefix: str) -> None:
        record = content.metric_records[prefix + METRICS]
        for name, value in metrics.items():
            key = name.replace("_", "-")
            if value is None:
                del record[key]
            else:
                record[key] = value

    return change


def mark(message: Message, **facts: Any) -> Message:
    """Change facts of a message's metadata that Flower offers no setter for."""
    for name, value in facts.items():
        assert f"_{name}" in message.metadata.__dict__
        message.metadata.__dict__[f"_{name}"] = value
    return message


def digits_experiment(**changes: Value) -> Experiment:
    """Return a small experiment on digits; ``changes`` are keys in snake case."""
    values: dict[str, Value] = {
        "dataset": "digits",
        "model": "linear",
        "num-clients": 4,
        "num-rounds": 3,
        "run-name": "run",
        "device": "cpu",
        "report": False,
    }
    values |= {name.replace("_", "-"): value for name, value in changes.items()}
    return Experiment.from_values(values)


def run_digits(
    experiment: Experiment,
    store: MemoryStore | None = None,
    tamper: Tamper | None = None,
) -> Trace:
    """Run a small experiment on digits in this process, without a run's folder."""
    store = store or MemoryStore()
    worker = Worker(experiment, store)
    data = federated_data(experiment)
    model = network_model(experiment, data)
    parts = server_parts(experiment, data, model)
    strategy, initial = (
        build_strategy(experiment, parts),
        initial_arrays(experiment, model, parts),
    )
    grid = TamperingGrid(client_app_for(worker), 4, tamper, rounds=range(1, 100))
    return run(strategy, grid, int(experiment["num-rounds"]), to_record(initial))


def play(**changes: Value) -> Trace:
    """Run a small experiment on digits; ``changes`` are keys in snake case."""
    return run_digits(digits_experiment(**changes))


def bits(arrays: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Return what must be equal where the same bits are asked for."""
    return {name: array.tobytes() for name, array in arrays.items()}


def final_bits(**changes: Value) -> dict[str, bytes]:
    """Return the final arrays of a small experiment on digits."""
    return bits(play(**changes).arrays[-1])
