"""Standalone: nothing travels, and each client does what it would do alone."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import HELLO
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import ServerParts
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.strategies.averaging.standalone import Standalone, passes_of_round
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


def test_all_clients_train_in_each_round() -> None:
    """A file's clients-per-round is for the methods beside it."""
    values = {"clients-per-round": 1, "num-clients": 3, "method": "standalone"}
    experiment = Experiment.from_values(values, overridden=("method",))
    assert experiment["clients-per-round"] == 0
    trace = run_digits(digits_experiment(method="standalone"))
    assert [[row["client"] for row in r.train.rows] for r in trace.reports] == [
        [0, 1, 2, 3]
    ] * 3
    with pytest.raises(ConfigError, match="clients-per-round = 1 has no effect"):
        Experiment.from_values(values)
    with pytest.raises(ValueError, match="clients_per_round = 1 has no effect"):
        Standalone(clients_per_round=1)


def test_a_fraction_of_the_clients_draws_nobody_out() -> None:
    grid = TamperingGrid(matrix_app(MatrixStandaloneClient), 3)
    trace = run(Standalone(fraction_train=0.4), grid, 1)
    assert len(trace.reports[0].train.rows) == 3


def trained(rounds: int, training: TrainingOptions, epochs: int) -> dict[str, bytes]:
    """Return client 2's model after some rounds; each client's data is one batch."""
    store = MemoryStore()
    grid = TamperingGrid(
        matrix_app(MatrixStandaloneClient, training=training, store=store), 3
    )
    run(Standalone(standalone_epochs=epochs), grid, rounds)
    return bits(store.load(2, f"{rounds}.1"))


def test_a_budget_of_passes_is_spread_over_the_rounds() -> None:
    """Seven passes in three rounds are 2, 2 and 3; of two, one round has none."""
    assert [passes_of_round(7, r, 3) for r in (1, 2, 3)] == [2, 2, 3]
    training = TrainingOptions(batch_size=0, learning_rate=0.25)
    for epochs in (2, 7):
        at_once = replace(training, local_steps=epochs)
        assert trained(3, training, epochs) == trained(1, at_once, 0)
    assert trained(3, training, 7) != trained(3, training, 6)


@given(epochs=st.integers(0, 500), rounds=st.integers(1, 60))
def test_the_rounds_passes_are_the_budget(epochs: int, rounds: int) -> None:
    passes = [passes_of_round(epochs, r, rounds) for r in range(1, rounds + 1)]
    assert sum(passes) == epochs
    assert max(passes) - min(passes) <= 1
