"""Standalone: nothing travels, and each client does what it would do alone."""

from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedsuite.messages.records import HELLO
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import ServerParts
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import (
    SOME_GROUPS,
    MatrixStandaloneClient,
    TamperingGrid,
    Trace,
    bits,
    digits_experiment,
    matrix_app,
    run,
    run_digits,
)


def test_no_array_goes_or_comes() -> None:
    seen: list[set[type]] = []

    def look(replies):
        seen.extend(
            {type(record).__name__ for record in r.content.values()} for r in replies
        )
        return replies

    grid = TamperingGrid(matrix_app(MatrixStandaloneClient), 3, look)
    trace = run(Standalone(identity="partition", num_clients=3), grid, 2)
    assert seen == [{"MetricRecord"}] * 3
    assert not any(message.content.array_records for message in grid.sent)
    assert len([m for m in grid.sent if m.metadata.message_type == "train"]) == 6
    for report in trace.reports:
        assert report.metrics["bytes_down"] == report.metrics["bytes_up"] == 0
        assert len(report.evaluate.rows) == 3
    assert trace.weights == [0.0, 0.0]


def test_own_model_goes_on_from_round_to_round() -> None:
    """Half steps towards the own value: losses 2 x^2, x^2 / 2, x^2 / 8."""
    training = TrainingOptions(local_steps=1, batch_size=0, learning_rate=0.5)
    grid = TamperingGrid(matrix_app(MatrixStandaloneClient, training=training), 3)
    trace = run(Standalone(), grid, 3)
    losses = [[row["loss"] for row in report.train.rows] for report in trace.reports]
    assert losses == [[2.0, 8.0, 32.0], [0.5, 2.0, 8.0], [0.125, 0.5, 2.0]]


def losses(trace: Trace, client: int) -> list[tuple[str, float]]:
    return [
        (phase.phase, row["loss"])
        for report in trace.reports
        for phase in report.phases
        for row in phase.rows
        if row["client"] == client
    ]


def stored(store: MemoryStore, client: int) -> dict[str, bytes]:
    return bits(store.load(client, "3.1"))


def test_equals_each_client_alone() -> None:
    """Other clients leave no trace in a client's model, though they share its memory."""
    experiment = digits_experiment(method="standalone")
    store = MemoryStore()
    together = run_digits(experiment, store)
    assert len({str(stored(store, client)) for client in range(4)}) == 4
    for client in range(4):
        own = MemoryStore()
        with flower_identity():
            app = client_app_for(Worker(experiment, own))
            grid = Only(client, app)
            alone = run(build_strategy(experiment, ServerParts(SOME_GROUPS)), grid, 3)
        assert len(losses(alone, client)) == 6
        assert losses(alone, client) == losses(together, client)
        assert stored(own, client) == stored(store, client)


class Only(TamperingGrid):
    """A grid on which all nodes answer the hello, and one the rest."""

    def __init__(self, client: int, app: ClientApp) -> None:
        super().__init__(app, 4)
        self._awake = 1000 + client

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        asked = [
            message
            for message in messages
            if message.metadata.message_type == HELLO
            or message.metadata.dst_node_id == self._awake
        ]
        return super().send_and_receive(asked, timeout=timeout)


def test_a_client_that_was_not_sampled_keeps_its_version() -> None:
    grid = TamperingGrid(matrix_app(MatrixStandaloneClient), 3)
    strategy = Standalone(identity="partition", num_clients=3, clients_per_round=1, seed=2)
    trace = run(strategy, grid, 6)
    last = {
        row["client"]: report.server_round
        for report in trace.reports
        for row in report.train.rows
    }
    assert strategy.client_versions == {k: f"{r}.1" for k, r in last.items()}
    sent = [m for m in grid.sent if m.metadata.message_type == "evaluate"][-3:]
    versions = [m.content["config"].get("start-versions", [""])[0] for m in sent]
    assert versions == [strategy.client_versions.get(k, "") for k in range(3)]
