"""A client of one's own: the page's example, its table, and an app with its own loop."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsuite.clients import ScaffoldClient, load_client
from fedsuite.core.registry import METHODS
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.strategies import FedAvg, Scaffold, load_strategy
from fedsuite.training.app import make_client_app
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.sent import may_send
from fedsuite.training.store import FileStore
from fedsuite.workarounds.identity import flower_identity
from tests.docs.pages import DOCS, blocks

NODES = 3


def program(page: str, mark: str) -> dict[str, Any]:
    """Run the page's program that has a text in it; return its names."""
    text = (DOCS / "how-to" / f"{page}.md").read_text()
    [source] = [body for kind, body in blocks(text) if kind == "python" and mark in body]
    names: dict[str, Any] = {"build_model": build_model, "load_rows": load_rows}
    exec(source, names)
    return names


def build_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def load_rows(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(number))
    return rows, (rows.sum(dim=1) > 0).long()


def trained(app: ClientApp) -> dict[str, torch.Tensor]:
    """Return SCAFFOLD's model after three rounds of an app."""
    start = ArrayRecord(build_model().state_dict())
    with flower_identity():
        strategy = Scaffold(fraction_evaluate=0.0, seed=0)
        result = strategy.start(LocalGrid(app, NODES), start, num_rounds=3)
    return result.arrays.to_torch_state_dict()


def test_a_scaffold_client_by_hand_trains_as_ours(tmp_path: Path) -> None:
    by_hand = program("own_clients", "control-change")
    options = TrainingOptions(
        local_epochs=by_hand["STEPS"], batch_size=12, learning_rate=by_hand["RATE"]
    )

    def ours(context: Context, client_id: int) -> ScaffoldClient:
        split = Split(*load_rows(int(context.node_config["partition-id"])))
        kept = FileStore(tmp_path)
        return ScaffoldClient(
            build_model(), split, split, training=options, client_id=client_id, store=kept
        )

    app = make_client_app(ours, list(ScaffoldClient.ACTIONS))
    expected, found = trained(app), trained(by_hand["app"])
    for name, array in expected.items():
        torch.testing.assert_close(found[name], array, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found["weight"], build_model().state_dict()["weight"])


def scores(accuracies: list[float], rates: list[float]) -> ClientApp:
    """Return an app that notes the rate, and has these accuracies round by round."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rates.append(float(message.content["config"]["lr"]))  # type: ignore[arg-type]
        return answer(message, {"num-examples": 1})

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        server_round = int(message.content["config"]["server-round"])  # type: ignore
        accuracy = accuracies[server_round - 1]
        return answer(message, {"num-examples": 1, "accuracy": accuracy})

    return app


def answer(message: Message, metrics: dict[str, int | float]) -> Message:
    content = RecordDict({"metrics": MetricRecord(metrics)})  # type: ignore[arg-type]
    if message.metadata.message_type == "train":
        content["arrays"] = message.content["arrays"]
    return Message(content, reply_to=message)


def test_a_loops_halved_rate_is_a_subclass() -> None:
    rates: list[float] = []
    strategy = program("flower_apps", "HalvedRate")["HalvedRate"]()
    with flower_identity():
        grid = LocalGrid(scores([0.5, 0.4, 0.6], rates), NODES)
        strategy.start(grid, ArrayRecord([np.zeros(2)]), num_rounds=3)
    assert sorted(set(rates), reverse=True) == [0.1, 0.05]


def test_a_loop_that_stays_calls_the_strategys_parts() -> None:
    rates: list[float] = []
    strategy, arrays = FedAvg(), ArrayRecord([np.ones(2)])
    with flower_identity():
        grid = LocalGrid(scores([0.5, 0.75], rates), NODES)
        for server_round in (1, 2):
            config = ConfigRecord({"lr": 0.1})
            asked = strategy.configure_train(server_round, arrays, config, grid)
            replies = grid.send_and_receive(asked)
            new, _ = strategy.aggregate_train(server_round, replies)
            assert new is not None
            arrays = new
            asked = strategy.configure_evaluate(server_round, arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(asked)
            metrics = strategy.aggregate_evaluate(server_round, replies)
    assert metrics is not None and metrics["accuracy"] == 0.75
    assert arrays.to_numpy_ndarrays()[0].tolist() == [1.0, 1.0]


def test_a_row_says_what_its_method_declares() -> None:
    """What a client does, and records that its class may send."""
    from client_wire import PAGE

    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if "| `" in line]
    listed = {name: row for row in rows for name in re.findall(r"`([\w-]+)`", row[0])}
    for name, method in METHODS.ours.items():
        # A method that is new here has its row from the slow test's command.
        if row := listed.get(name):
            assert row[1] == load_strategy(method).NEEDS_OF_CLIENT.does
            records = re.findall(r"`([\w-]+)`", re.sub(r"\([^)]*\)", "", row[4]))
            sent = {sent.partition("/")[0] for sent in may_send(load_client(method))}
            assert {r for r in records if not r.startswith("model-")} <= sent, name
    assert {"scaffold", "ditto", "fedal", "filter-decomposition"} <= listed.keys()


@pytest.mark.slow
def test_the_table_is_what_all_methods_send() -> None:
    from client_wire import PAGE, rendered, with_table

    new = with_table(PAGE.read_text(), rendered())
    assert new == PAGE.read_text(), "run `python docs/client_wire.py --write`"
