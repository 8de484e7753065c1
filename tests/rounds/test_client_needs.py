"""What each method needs of clients is declared once, and a stranger's app is told it."""

import logging
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from fedsuite import clients
from fedsuite.core.errors import ConfigError, FedsuiteError, RunError
from fedsuite.core.logs import log_scope
from fedsuite.core.registry import METHODS
from fedsuite.data import Split
from fedsuite.data.public import PublicData
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    EVALUATE,
    LOSS_AFTER,
    TRAIN,
)
from fedsuite.models.arrays import model_arrays
from fedsuite.models.assignment import Network, Networks
from fedsuite.models.groups import ParameterGroups, factored_groups, parameter_groups
from fedsuite.models.server_networks import ServerNetworks
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.first_exchange import first_refusal
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.validation import BadReply, Expected, spec_of
from fedsuite.running.server_parts import ServerParts
from fedsuite.running.server_validation import ServerValidation
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.decomposition.filter_decomposition import FilterDecomposition
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.fair.fedeba_plus import PracFedEBAPlus
from fedsuite.strategies.personal.ditto import Ditto
from fedsuite.training.base import FederatedClient
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import (
    TamperingGrid,
    bits,
    for_client,
    matrix_app,
    run,
    run_tampered,
    set_metrics,
    strategy_for,
)
from tests.rounds.test_strangers import stranger_model
from tests.strangers import message_app
from tests.strategies.decomposition.factored import tiny_model

Caplog = pytest.LogCaptureFixture


class CountingGrid(LocalGrid):
    """Keeps the types of the messages of each exchange."""

    def __init__(self, app: ClientApp, num_nodes: int = 3) -> None:
        super().__init__(app, num_nodes)
        self.exchanges: list[str] = []
        self.result = Result()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        messages = list(messages)
        if messages:
            self.exchanges.append(messages[0].metadata.message_type)
        return super().send_and_receive(messages, timeout=timeout)


def parts() -> ServerParts:
    """Return whatever a strategy may ask for, about the stranger's model."""
    net = message_app.Net()
    groups = parameter_groups(net)
    body = ("hidden.bias",)
    shared = tuple(name for name in groups.other if name not in body)
    of_client = Networks((Network("mlp"),), (0, 0, 0))
    return ServerParts(
        ParameterGroups(groups.head, shared, personal=body, layers=groups.layers),
        ServerValidation(net, Split(*message_app.load_data(9))),
        ServerNetworks(of_client, (model_arrays(net),), (58,), lambda _: message_app.Net()),
        PublicData(torch.randn(8, 4)),
        2,
    )


def over_strangers(
    strategy: Any, app: ClientApp = message_app.app, grid: CountingGrid | None = None
) -> CountingGrid:
    """Run two rounds over a stranger's app; return the grid that they went through."""
    grid = grid or CountingGrid(app)
    made = getattr(strategy, "strategy", strategy)
    initial = to_arrays(stranger_model())
    if made.PRIVATE_MODELS:
        initial = {}
    elif made.takes("networks"):
        initial = made.networks.join([initial])
    with flower_identity():
        grid.result = strategy.start(grid, to_record(initial), 2)
    return grid


def runs_over_any_app(strategy: Any) -> bool:
    """Return whether a strategy asks plain clients for no more than they report.

    Of some such methods the summary names the client class that makes them themselves.
    """
    needs = strategy.NEEDS_OF_CLIENT
    if not needs.client:
        # The app reports train_loss, which stands for the loss after training.
        return all(metric.name == LOSS_AFTER for metric in needs.metrics)
    if needs.stores or strategy.NOT_LEGACY or (strategy._TOLD and not needs.trusted):
        return False
    model = to_arrays(stranger_model())
    asked = strategy.train_exchange(model, [0]).expected
    return bool(asked == Expected({ARRAYS: spec_of(model)}))


@pytest.mark.parametrize("name", METHODS)
def test_a_plain_app_runs_or_is_told_at_once_what_it_lacks(name: str) -> None:
    method = METHODS[name]
    made = load_strategy(method)
    strategy = made(**parts().needed_by(made), min_available_nodes=3)  # type: ignore[arg-type]
    if runs_over_any_app(strategy):
        grid = over_strangers(strategy)
        assert grid.exchanges == [TRAIN, EVALUATE] * 2
        assert set(grid.result.train_metrics_clientapp) == {1, 2}
        return
    grid = CountingGrid(message_app.app)
    with pytest.raises(FedsuiteError) as caught:
        over_strangers(strategy, grid=grid)
    message = str(caught.value)
    needs = made.NEEDS_OF_CLIENT
    # What clients do at an evaluation shows in the first one.
    assert len(grid.exchanges) <= 1 or grid.exchanges == [TRAIN, EVALUATE]
    assert len(grid.exchanges) <= 1 or not strategy.told(TRAIN)
    assert "\n" not in message
    if needs.client:
        assert needs.client in message
    else:
        lacking = [metric for metric in needs.metrics if metric.name != LOSS_AFTER]
        assert all(metric.keyword in message for metric in lacking)
    assert made.__name__ in message


@pytest.mark.parametrize("name", METHODS)
def test_declared_clients_are_the_methods_own(name: str) -> None:
    method = METHODS[name]
    made = load_strategy(method)
    needs = made.NEEDS_OF_CLIENT
    assert needs.client in ("", method.client.rpartition(".")[2])
    assert bool(needs.client) == bool(needs.does)
    assert not needs.client or issubclass(getattr(clients, needs.client), FederatedClient)
    assert not (needs.client and needs.metrics)
    for metric in needs.metrics:
        # Accepted by the constructor, through whatever options it passes on.
        value: Any = 1 if metric.keyword in ("local_steps", "learning_rate") else "mine"
        strategy = made(**{metric.keyword: value})
        assert getattr(strategy, metric.keyword) == value


def test_a_method_ends_when_replies_lack_what_it_needs_and_says_what_mends_it() -> None:
    with pytest.raises(RunError) as caught:
        over_strangers(PracFedEBAPlus(min_available_nodes=3))
    assert str(caught.value) == (
        "round 1: PracFedEBAPlus: metric 'num-steps' is missing (found: num-examples, "
        "train_loss): report the number of local steps as 'num-steps', or give it as "
        "local_steps"
    )
    over_strangers(PracFedEBAPlus(min_available_nodes=3, local_steps=5))


def test_a_weight_of_another_name() -> None:
    def answer(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"n": 3, "train_loss": 1.0})
        content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
        return Message(content, reply_to=message)

    app = ClientApp()
    app.train()(answer)
    app.evaluate()(answer)
    with pytest.raises(RunError, match=r"'num-examples' is missing .* as weighted_by_key$"):
        over_strangers(FedAvg(), app)
    over_strangers(FedAvg(weighted_by_key="n"), app)


def test_several_records_and_none_of_the_models_name() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = message.content["arrays"]
        metrics = MetricRecord({"num-examples": 3})
        content = RecordDict({"model": model, "ema": model, "metrics": metrics})
        return Message(content, reply_to=message)

    with pytest.raises(RunError, match=r"\(found: ema, model\): give .* arrayrecord_key"):
        over_strangers(FedAvg(fraction_evaluate=0.0), app)


def test_an_app_without_evaluation_trains_all_the_same() -> None:
    app = ClientApp()
    app.train()(message_app.train)
    grid = over_strangers(FedAvg(), app)
    assert grid.exchanges == [TRAIN, EVALUATE] * 2
    assert not grid.result.evaluate_metrics_clientapp


def test_one_that_lacks_it_is_left_out_and_the_run_goes_on() -> None:
    trace = run_tampered("single", for_client(1, "single", set_metrics(num_examples=None)))
    assert len(trace.reports) == 2
    assert len(trace.reports[0].train.rows) == 2


def test_after_a_good_reply_a_round_may_fail() -> None:
    """A hostile client, asked alone later on, must not end the run."""

    def strip(replies: list[Message]) -> list[Message]:
        for reply in replies:
            set_metrics(num_examples=None)(reply.content, "")
        return replies

    grid = TamperingGrid(matrix_app(), 3, strip, rounds=[2])
    trace = run(strategy_for("single"), grid, 3)
    assert [len(report.train.rows) for report in trace.reports] == [3, 0, 3]


@pytest.mark.parametrize(
    ("own_clients", "num_failed", "words"),
    [
        (False, 1, "all clients failed: "),
        (True, 1, ""),
        (True, 2, "all clients failed alike: "),
    ],
)
def test_clients_of_fedsuite_that_all_fail_are_not_told_to_be_others(
    own_clients: bool, num_failed: int, words: str
) -> None:
    failure = BadReply(Kind.CLIENT_ERROR, "client failed: ValueError: no rows")
    reader: Any = SimpleNamespace(
        exchange=Exchange(TRAIN, [0]),
        common_failure=lambda: failure,
        num_good=0,
        num_failed=num_failed,
    )
    reason = first_refusal(reader, Ditto.NEEDS_OF_CLIENT, own_clients)
    assert reason == (words and f"{words}{failure}")


# ---- the loss after training


def test_flowers_name_of_the_loss_is_taken_and_told_once(caplog: Caplog) -> None:
    with caplog.at_level(logging.WARNING):
        grid = over_strangers(FedEBA(min_available_nodes=3))
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        given = over_strangers(FedEBA(min_available_nodes=3, loss_key="train_loss"))
    (line,) = lines
    assert line.startswith("metric 'train_loss' stands for 'loss-after', the loss of")
    assert "give loss_key='train_loss' if yours is that" in line
    assert not caplog.records
    assert bits(to_arrays(grid.result.arrays)) == bits(to_arrays(given.result.arrays))


def test_our_own_name_of_the_loss_wins() -> None:
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        loss = {"loss-after": float(client), "train_loss": 9.0 - client}
        metrics = MetricRecord({"num-examples": 1, **loss})
        moved = Array(np.full(2, float(client)))
        content = {"arrays": ArrayRecord({"w": moved}), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    app = ClientApp()
    app.train()(train)
    initial = ArrayRecord({"w": Array(np.zeros(2))})
    with flower_identity():
        result = FedEBA.of_paper(temperature=0.05, fraction_evaluate=0.0).start(
            LocalGrid(app, 3), initial, 1
        )
    # The worst client takes all: by our name it is the last, by the other the first.
    assert to_arrays(result.arrays)["w"] == pytest.approx(2.0)


# ---- filter decomposition


def test_groups_are_read_from_the_first_model() -> None:
    model = tiny_model()
    shown = factored_groups(model_arrays(model))
    told = parameter_groups(model)
    assert (shown.atoms, shown.coefficients) == (told.atoms, told.coefficients)
    assert set(shown.other) == {*told.other, *told.head}
    assert shown.head == ()
    misshapen = {"a.atoms": np.zeros((2, 3, 3)), "a.coefficients": np.zeros((4, 4, 3))}
    alone = {"a.atoms": np.zeros((2, 3, 3))}
    for arrays in (misshapen, alone):
        assert not factored_groups(arrays).atoms


def test_filter_decomposition_without_groups() -> None:
    with pytest.raises(ConfigError, match="no decomposed layer: decompose it"):
        over_strangers(FedAvg(layer=FilterDecomposition()))
    with pytest.raises(ValueError, match=r"head: give groups = parameter_groups\(model\)"):
        FilterDecomposition(coefficient_period=2)


def test_a_layer_in_the_place_of_a_strategy_says_where_it_goes() -> None:
    """As ``from fedsuite.strategies import FilterDecomposition as FedAvg``."""
    line = r"^FilterDecomposition goes around a strategy, and is none: write FedAvg\(layer="
    with pytest.raises(ConfigError, match=line):
        FilterDecomposition().start(grid=None, initial_arrays=None, num_rounds=3)


@pytest.mark.parametrize("fast_set", ["atoms", "atoms+head+other"])
def test_fast_sets_without_a_head_need_no_groups(fast_set: Any) -> None:
    model = tiny_model()
    arrays = to_record(model_arrays(model))
    strategies = [
        FilterDecomposition(groups=groups, coefficient_period=2, fast_set=fast_set)
        for groups in (None, parameter_groups(model))
    ]
    for strategy in strategies:
        strategy._take(arrays)
    without, given = strategies
    assert without._fast == given._fast
    assert without._layers == given._layers


def test_a_plain_app_under_filter_decomposition_is_told_the_client() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content = {
            "arrays": message.content["arrays"],
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    layer = FilterDecomposition(coefficient_period=2, fast_set="atoms")
    strategy = FedAvg(layer=layer)
    grid = CountingGrid(app)
    with flower_identity(), pytest.raises(RunError) as caught:
        strategy.start(grid, to_record(model_arrays(tiny_model())), 3)
    assert "train with fedsuite.clients.DecomposedClient, which goes" in str(caught.value)
    assert grid.exchanges == [TRAIN]


# ---- what is told


def test_the_summary_says_who_should_train(caplog: Caplog) -> None:
    caplog.set_level(logging.INFO)
    FedAvg(identity="partition", min_available_nodes=7).summary()
    load_strategy(METHODS["fedprox"])().summary()
    told = [record.getMessage() for record in caplog.records]
    assert "\t├──> Needed of clients: nothing" in told
    assert "\t├──> Needed of clients: FedProxClient" in told
    least = [line for line in told if "Minimum available nodes" in line]
    assert least[0].endswith("all (7 has no effect with 'partition')")
    assert least[1].endswith("nodes: 2")
    caplog.clear()
    with log_scope(run="mine"):
        FedAvg().summary()
    assert [r.getMessage() for r in caplog.records] == ["FedAvg: seed 0, quorum 1"]
