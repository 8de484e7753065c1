"""Subclasses as strangers write them: methods that leave ours out, and helpers."""

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedsuite.core.errors import ConfigError
from fedsuite.engines.local import LocalGrid
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import TamperingGrid, matrix_app, run, zeros

Caplog = pytest.LogCaptureFixture


def warnings_of(strategy: FedAvg, caplog: Caplog, num_rounds: int = 3) -> list[str]:
    with caplog.at_level(logging.WARNING):
        run(strategy, TamperingGrid(matrix_app(), 3), num_rounds)
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


# aggregate_train without super()


class Own(FedEBA):
    """Takes the first reply's model, whatever the method would make of all."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        first = next(iter(replies))
        return first.content.array_records["arrays"], None


def test_a_method_that_has_no_part_in_the_model_is_told_once(caplog: Caplog) -> None:
    [line] = warnings_of(Own(), caplog)
    assert line == (
        "round 1: aggregate_train of Own did not call super().aggregate_train: FedEBA has "
        "no part in the model, and no reply is checked"
    )


def test_an_evaluation_of_ones_own_is_no_news(caplog: Caplog) -> None:
    class Scored(FedAvg):
        def aggregate_evaluate(
            self, server_round: int, replies: Iterable[Message]
        ) -> MetricRecord | None:
            return MetricRecord({"replies": len(list(replies))})

    assert warnings_of(Scored(), caplog) == []


def test_a_loop_of_the_apps_own_hears_of_it_in_the_next_round(caplog: Caplog) -> None:
    strategy, grid, arrays = Own(), TamperingGrid(matrix_app(), 3), zeros()
    with flower_identity(), caplog.at_level(logging.WARNING):
        for server_round in (1, 2, 3):
            asked = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
            strategy.aggregate_train(server_round, grid.send_and_receive(asked))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and lines[0].startswith("round 1: aggregate_train of Own")


def test_a_round_that_a_loop_drops_is_no_news(caplog: Caplog) -> None:
    """Flower's wrappers for privacy do so with a round without replies."""
    strategy, grid = FedAvg(), TamperingGrid(matrix_app(), 3)
    with flower_identity(), caplog.at_level(logging.WARNING):
        for server_round in (1, 2):
            strategy.configure_train(server_round, zeros(), ConfigRecord(), grid)
    assert caplog.records == []


# Replies that are rewritten before super()


def test_replies_may_be_rewritten_before_they_are_given_on() -> None:
    """A client that sends integers and their scale: an app decodes them so."""

    class Decoding(FedAvg):
        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            decoded = list(replies)
            for reply in decoded:
                weight = reply.content.array_records["arrays"]["weight"].numpy() * 0.0 + 7.0
                arrays = ArrayRecord({"weight": Array(weight)})
                reply.content["arrays"] = arrays
            return super().aggregate_train(server_round, decoded)

    assert run(Decoding(), TamperingGrid(matrix_app(), 3), 1).weights == [7.0]


@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_a_reply_that_the_app_left_out_is_not_said_to_be_late_alone(phase: str) -> None:
    """As of a straggler in Flower's baseline of FedProx."""
    name = f"aggregate_{phase}"

    def without_the_first(self: Any, server_round: int, replies: Iterable[Message]) -> Any:
        return getattr(FedAvg, name)(self, server_round, list(replies)[1:])

    dropping = type("Dropping", (FedAvg,), {name: without_the_first})
    trace = run(dropping(), TamperingGrid(matrix_app(), 3), 1)
    [refused] = getattr(trace.reports[0], phase).rejections
    words = f"no reply before the deadline, or {name} of Dropping left it out"
    assert refused.reason == words
    other = "evaluate" if phase == "train" else "train"
    assert getattr(trace.reports[0], other).rejections == []


# A choice of clients of one's own


class Choosing(FedAvg):
    """Keeps the messages to the nodes that it has chosen."""

    nodes: tuple[int, ...] = ()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        return [m for m in messages if m.metadata.dst_node_id in self.nodes]


def test_a_choice_that_leaves_nobody_is_told(caplog: Caplog) -> None:
    [line] = warnings_of(Choosing(), caplog, 2)
    assert line == (
        "round 1: configure_train of Choosing leaves out all 3 messages, so nobody trains: "
        "a choice of your own needs the messages to all nodes, fraction_train=1.0"
    )


def test_a_choice_of_some_is_told_where_flower_tells_the_sample(caplog: Caplog) -> None:
    strategy = Choosing(nodes=(1001,))
    with caplog.at_level(logging.INFO), flower_identity():
        strategy.start(TamperingGrid(matrix_app(), 3), zeros(), 1)
    lines = [record.getMessage() for record in caplog.records]
    place = lines.index("configure_train: Sampled 3 nodes (out of 3)")
    assert lines[place + 1] == "configure_train: Choosing asks 1 of them"


# Helpers of Flower's strategies


HELPERS = {
    name
    for name in vars(flower.FedAvg)
    if name.startswith("_") and not name.startswith("__") and name != "_abc_impl"
}


def test_the_helpers_are_those_of_flowers_fedavg() -> None:
    assert {"_construct_messages", "_check_and_log_replies"} == HELPERS


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("_construct_messages", "keep those of super().configure_train(...) that you want"),
        ("_check_and_log_replies", "give the replies to super().aggregate_train"),
    ],
)
def test_a_helper_of_flowers_strategies_says_what_to_write(name: str, instead: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(FedAvg(), name)
    line = str(caught.value)
    assert line.startswith(f"FedAvg has no {name}, a helper of Flower's strategies: ")
    assert instead in line and "\n" not in line


def test_the_helpers_words_reach_who_builds_messages(caplog: Caplog) -> None:
    class Selecting(FedAvg):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Any:
            record = RecordDict({"arrays": arrays, "config": config})
            nodes = list(grid.get_node_ids())[:1]
            return self._construct_messages(record, nodes, "train")  # type: ignore[attr-defined]

    with flower_identity(), pytest.raises(AttributeError, match=r"dst_node_id"):
        Selecting().start(LocalGrid(matrix_app(), 3), zeros(), 1)


def test_a_share_of_the_choice_of_ones_own() -> None:
    """As the guide has it: all messages first, then one's own share of them."""

    class Highest(FedAvg):
        share = 0.34

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            everyone = super().configure_train(server_round, arrays, config, grid)
            nodes = {max(grid.get_node_ids())}
            return [m for m in everyone if m.metadata.dst_node_id in nodes]

    trace = run(Highest(), TamperingGrid(matrix_app(), 3), 2)
    rows = [r.train.rows for r in trace.reports if r.train]
    assert [[row["client"] for row in of_round] for of_round in rows] == [[1002], [1002]]
    assert np.isfinite(trace.weights).all()


# Names that are taken


def test_an_attribute_of_a_subclass_that_hides_a_method_is_refused() -> None:
    """The rounds would call a tuple."""
    with pytest.raises(ConfigError) as caught:
        type("Own", (FedAvg,), {"chosen": (1, 2)})
    assert str(caught.value) == (
        "Own.chosen hides a method of FedAvg, which the rounds call: give it another name"
    )


def test_an_attribute_that_is_set_in_a_methods_place_is_refused() -> None:
    class Remembering(FedAvg):
        def __init__(self) -> None:
            super().__init__()
            self.state = {}  # type: ignore[method-assign,assignment]

    with pytest.raises(ConfigError, match=r"Remembering\.state hides a method of FedAvg"):
        Remembering()


@pytest.mark.parametrize(
    ("name", "value"),
    [("directory", Path("results")), ("first", True), ("pending", []), ("privacy", 0.5)],
)
def test_an_attribute_in_the_place_of_a_part_is_refused(name: str, value: Any) -> None:
    """An app keeps its folder of results there; the rounds would wait for it."""

    class Saving(FedAvg):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, value)
            self.losses: Any = {}
            self.losses = []

    line = f"Saving.{name} is a part of FedAvg, which the rounds use: give it another name"
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        Saving()


def test_an_attribute_in_the_place_of_a_class_method_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^Own\.of_paper hides a method of FedAvg"):
        type("Own", (FedAvg,), {"of_paper": True})


def test_a_helper_of_a_methods_name_with_other_arguments_is_refused() -> None:
    def average(self: Any) -> None:
        """Return the mean of something else."""

    with pytest.raises(ConfigError) as caught:
        type("Own", (FedAvg,), {"average": average})
    assert str(caught.value) == (
        "Own.average() hides a method of FedAvg, average(replies, weights), which the "
        "rounds call: take the same arguments, or give it another name"
    )


def test_start_is_called_by_the_app_alone() -> None:
    class Starting(FedAvg):
        def start(self, grid: Grid, initial_arrays: ArrayRecord, train_config: Any) -> Any:  # type: ignore[override]
            """Leave out what the app never gives."""
            return super().start(grid, initial_arrays, 2, train_config=train_config)

    with flower_identity():
        result = Starting().start(LocalGrid(matrix_app(), 3), zeros(), ConfigRecord())
    assert len(result.train_metrics_clientapp) == 2


def test_a_method_may_be_overridden_and_replaced_by_another(monkeypatch: Any) -> None:
    class Counting(FedAvg):
        def weight_of(self, reply: Any, scale: float = 1.0) -> float:
            return scale

        def drawn(self, *given: Any) -> list[int]:
            return super().drawn(*given)

    strategy = Counting()
    monkeypatch.setattr(strategy, "take", lambda reply: None)
