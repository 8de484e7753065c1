"""Flower's keywords for metrics and for the names of records: here they mean the same."""

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from fedsuite.core.errors import ConfigError
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.scaffold import Scaffold
from fedsuite.workarounds.identity import flower_identity
from tests.docs.pages import DOCS
from tests.helpers import (
    LAYOUTS,
    Trace,
    matrix_app,
    run,
    run_tampered,
    strategy_for,
)
from tests.rounds.test_strangers import stranger_model
from tests.strangers import legacy_app, message_app

Caplog = pytest.LogCaptureFixture


def worst(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Return the worst loss, who has how much, and how many arrays came."""
    metrics = [next(iter(c.metric_records.values())) for c in contents]
    losses = [v for m in metrics for k, v in m.items() if "loss" in k]
    arrays = [len(record) for c in contents for record in c.array_records.values()]
    counts = [metric[weighted_by_key] for metric in metrics]
    return MetricRecord({"worst": max(losses), "counts": counts, "arrays": sum(arrays)})  # type: ignore[type-var,dict-item]


def own_app(
    metrics: Callable[[int], dict[str, Any]], arrays: str = "arrays", config: str = "config"
) -> ClientApp:
    """Return an app with metrics and names of records of its own; it adds 1."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert message.content[config]["server-round"] >= 1
        client = int(context.node_config["partition-id"])
        received = message.content.array_records[arrays]
        model = {k: Array(a.numpy() + 1) for k, a in received.items()}
        found = MetricRecord({"num-examples": 1 + client, **metrics(client)})
        content = RecordDict({arrays: ArrayRecord(model), "found": found})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        assert arrays in message.content
        found = MetricRecord({"num-examples": 1 + client, **metrics(client)})
        return Message(RecordDict({"found": found}), reply_to=message)

    return app


def initial() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(2, np.float32))})


def start(strategy: Any, app: ClientApp, arrays: ArrayRecord | None = None) -> Any:
    with flower_identity():
        return strategy.start(LocalGrid(app, 3), arrays or initial(), 2)


def rounded(record: MetricRecord) -> dict[str, Any]:
    return {name: pytest.approx(value, rel=1e-12) for name, value in record.items()}


@pytest.mark.parametrize("wire", ["message", "numpy"])
def test_functions_get_what_flower_gives_them(wire: Any) -> None:
    functions = {"train_metrics_aggr_fn": worst, "evaluate_metrics_aggr_fn": worst}
    app = message_app.app if wire == "message" else legacy_app.app
    ours = start(FedAvg(wire=wire, **functions), app, stranger_model())
    stock = flower.FedAvg(min_train_nodes=3, min_evaluate_nodes=3, **functions)
    theirs = start(stock, message_app.app, stranger_model())
    for round_ in (1, 2):
        trained, evaluated = (
            ours.train_metrics_clientapp[round_],
            ours.evaluate_metrics_clientapp[round_],
        )
        expected = theirs.train_metrics_clientapp[round_]
        assert sorted(trained["counts"]) == [20, 30, 40]
        assert (trained["arrays"], evaluated["arrays"]) == (12, 0)
        # Flower's strategies do not sum in the order of clients.
        assert trained["worst"] == pytest.approx(expected["worst"], rel=1e-4)
        assert evaluated["worst"] == pytest.approx(
            theirs.evaluate_metrics_clientapp[round_]["worst"], rel=1e-4
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_functions_change_no_row_and_get_the_examples_that_count(layout: str) -> None:
    def summed(contents: list[RecordDict], key: str) -> MetricRecord:
        records = [content["metrics"] for content in contents]
        assert [content["arrays"] is not None for content in contents] == [True] * 3
        return MetricRecord({"sum": sum(record[key] for record in records)})  # type: ignore[misc]

    strategy = strategy_for(layout, train_metrics_aggr_fn=summed, max_examples=1.5)
    plain = strategy_for(layout, max_examples=1.5)
    grids = (LocalGrid(matrix_app(), LAYOUTS[layout]) for _ in range(2))
    trace, other = (run(s, g) for s, g in zip((strategy, plain), grids, strict=True))
    assert trace.result is not None
    assert dict(trace.result.train_metrics_clientapp[1]) == {"sum": 1 + 1.5 + 1}
    assert trace.reports[0].train.rows == other.reports[0].train.rows


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda contents, key: {"a": 1.0}, "it returned dict, not a MetricRecord"),
        (lambda contents, key: MetricRecord({"a": 1 / 0}), "ZeroDivisionError: division"),
    ],
)
def test_a_function_that_fails_costs_the_run_nothing(
    function: Any, words: str, caplog: Caplog
) -> None:
    with caplog.at_level(logging.WARNING):
        result = start(FedAvg(train_metrics_aggr_fn=function), own_app(lambda k: {"a": k}))
    assert result.train_metrics_clientapp[2]["a"] == pytest.approx((2 + 6) / 6)
    assert to_arrays(result.arrays)["w"].tolist() == [2.0, 2.0]
    first, _ = (record.getMessage() for record in caplog.records)
    assert first.startswith("train_metrics_aggr_fn failed: ")
    assert words in first
    assert "the weighted means stand in for it" in first
    assert "\n" not in first
    assert ".py, line " in first


class Listing(NumPyClient):
    """Sends a list as text, as clients of the legacy API have to."""

    def fit(self, parameters: Any, config: Any) -> Any:
        return parameters, 1, {"losses": "[0.5, 0.25, 0.125]", "done": True}


def test_text_of_a_legacy_client_reaches_the_function() -> None:
    """By the example of the page for those who come from the legacy API."""
    page = (DOCS / "how-to" / "from_legacy_flower.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [code] = [block for block in blocks if "def longest_list" in block]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    app = ClientApp(client_fn=lambda context: Listing().to_client())
    given = {"wire": "numpy", "fraction_evaluate": 0.0}
    strategy = FedAvg(train_metrics_aggr_fn=namespace["longest_list"], **given)  # type: ignore[arg-type]
    result = start(strategy, app)
    assert dict(result.train_metrics_clientapp[1]) == {"most-losses": 3}


def test_a_function_may_make_nothing() -> None:
    result = start(
        FedAvg(evaluate_metrics_aggr_fn=lambda contents, key: None),  # type: ignore[arg-type,return-value]
        own_app(lambda k: {}),
    )
    assert result.evaluate_metrics_clientapp == {}


def test_no_reply_no_call() -> None:
    def refuse(contents: list[RecordDict], key: str) -> MetricRecord:
        raise AssertionError("called")

    def lose_all(replies: list[Message]) -> list[Message]:
        return []

    trace = run_tampered("single", lose_all, 1, train_metrics_aggr_fn=refuse)
    assert trace.result is not None
    assert trace.result.train_metrics_clientapp == {}


def test_means_have_the_clients_own_names_and_lists() -> None:
    app = own_app(
        lambda k: {"eval-acc": k / 2, "per_class": [float(k), 2.0 * k], "steps": [k]}
    )
    ours = start(FedAvg(), app).evaluate_metrics_clientapp[2]
    stock = flower.FedAvg(min_train_nodes=3, min_evaluate_nodes=3)
    theirs = start(stock, app).evaluate_metrics_clientapp[2]
    assert dict(ours) == rounded(theirs)


def test_lists_without_a_mean_are_told_once(caplog: Caplog) -> None:
    def metrics(client: int) -> dict[str, Any]:
        some = {"some": [1.0]} if client else {"some": 2.0}
        return {"ragged": [0.5] * (1 + client), "even": [10**400, client], **some}

    trace = Trace()
    with flower_identity(), caplog.at_level(logging.WARNING):
        FedAvg(fraction_evaluate=0.0).start(
            LocalGrid(own_app(metrics), 3), initial(), 2, callbacks=[trace]
        )
    messages = sorted(record.getMessage() for record in caplog.records)
    ragged, some = messages
    assert ragged == (
        "metric 'ragged' has no mean: 3 of 3 replies hold it as a list, of 1 or 2 or 3 "
        "numbers"
    )
    assert some.startswith("metric 'some' has no mean: 2 of 3 replies hold it as a list")
    assert trace.result is not None
    found = trace.result.train_metrics_clientapp[2]
    assert set(found) == {"even"}
    assert found["even"] == [np.inf, pytest.approx(8 / 6)]
    assert not {"ragged", "even", "some"} & set(trace.reports[0].train.rows[1])


def test_lists_of_hosted_clients_are_averaged_too() -> None:
    def give_lists(replies: list[Message]) -> list[Message]:
        for reply in replies:
            for name, record in reply.content.metric_records.items():
                record["each"] = [float(name[len("client-")])]
        return replies

    trace = run_tampered("shared-node", give_lists, 1)
    assert trace.result is not None
    assert trace.result.train_metrics_clientapp[1]["each"] == [1.0]


# ---- names of records


def test_an_app_with_names_of_its_own() -> None:
    keys = {"arrayrecord_key": "model", "configrecord_key": "settings"}
    app = own_app(lambda k: {"a": k}, "model", "settings")
    ours = start(FedAvg(**keys), app)
    theirs = start(flower.FedAvg(min_train_nodes=3, **keys), app)
    assert to_arrays(ours.arrays)["w"].tolist() == [2.0, 2.0]
    assert to_arrays(theirs.arrays)["w"].tolist() == pytest.approx([2.0, 2.0])
    assert set(ours.evaluate_metrics_clientapp) == {1, 2}


def test_a_method_with_several_records_finds_the_model_by_its_key() -> None:
    seen = []
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen.append(set(message.content))
        content = RecordDict(
            {
                "control-change": message.content["control"],
                "model": message.content["model"],
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        return Message(content, reply_to=message)

    strategy = Scaffold(arrayrecord_key="model", fraction_evaluate=0.0, max_failed_rounds=1)
    result = start(strategy, app)
    assert set(result.train_metrics_clientapp) == {1, 2}
    assert seen[0] == {"model", "control", "config"}


def test_names_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="both 'x': they name two records"):
        FedAvg(arrayrecord_key="x", configrecord_key="x")
    for options in ({"wire": "numpy"}, {"identity": "partition"}):
        with pytest.raises(ValueError, match="have names of their own: leave both out"):
            FedAvg(configrecord_key="settings", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the method sends a record 'control' of its own"):
        start(Scaffold(arrayrecord_key="control"), own_app(lambda k: {}))
