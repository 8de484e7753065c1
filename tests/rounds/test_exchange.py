"""Replies that are lost, late, doubled or foreign; and the order in which they count."""

import gc
import random
import weakref

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedsuite.messages.records import ERROR, METRICS
from fedsuite.rounds.exchange import Exchange, build_messages
from fedsuite.rounds.membership import Members
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import (
    LAYOUTS,
    MEAN_OF_ALL,
    MEAN_WITHOUT,
    MatrixClient,
    TamperingGrid,
    client_number,
    for_client,
    mark,
    matrix_app,
    run,
    run_tampered,
    strategy_for,
)


def reasons(trace, server_round: int = 1) -> list[tuple[int | None, str]]:
    rejections = trace.reports[server_round - 1].train.rejections
    return [(rejection.client_id, rejection.reason) for rejection in rejections]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_second_reply_counts_nothing(layout: str) -> None:
    trace = run_tampered(layout, lambda replies: [*replies, replies[1]])
    assert trace.weights == [MEAN_OF_ALL, MEAN_OF_ALL]
    doubled = [(client_number(layout, 1), "a second reply to one request")]
    assert reasons(trace) == doubled


def test_second_reply_of_a_node_is_refused_for_each_of_its_clients() -> None:
    trace = run_tampered("shared-node", lambda replies: [replies[0], *replies])
    assert trace.weights == [MEAN_OF_ALL, MEAN_OF_ALL]
    assert [client for client, _ in reasons(trace)] == [0, 2]


@pytest.mark.parametrize("layout", ["single", "hosted"])
def test_lost_reply(layout: str) -> None:
    trace = run_tampered(layout, lambda replies: [replies[0], replies[2]])
    assert trace.weights == [MEAN_WITHOUT[1], MEAN_OF_ALL]
    assert reasons(trace) == [(client_number(layout, 1), "no reply before the deadline")]


@pytest.mark.parametrize("layout", ["single", "hosted"])
def test_no_reply_at_all_keeps_the_model(layout: str) -> None:
    trace = run_tampered(layout, lambda replies: [])
    assert trace.weights == [0.0, MEAN_OF_ALL]
    assert len(reasons(trace)) == 3


@pytest.mark.parametrize("group_id", ["", "1.2", "0.1", "11"])
def test_reply_of_another_round_or_exchange(group_id: str) -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        assert replies[1].metadata.group_id == "1.1"
        mark(replies[1], group_id=group_id)
        return replies

    trace = run_tampered("single", tamper)
    assert trace.weights == [MEAN_WITHOUT[1], MEAN_OF_ALL]
    assert reasons(trace) == [
        (None, "node 1001: a reply to another round or exchange"),
        (1001, "no reply before the deadline"),
    ]


def test_reply_of_a_node_that_nobody_asked() -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        mark(replies[1], src_node_id=77)
        return replies

    trace = run_tampered("single", tamper)
    assert trace.weights[0] == MEAN_WITHOUT[1]
    assert reasons(trace)[0] == (None, "node 77: a reply that nobody asked for")


def failed(message: Message, reason: str) -> Message:
    error = Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)
    return mark(
        error,
        src_node_id=message.metadata.src_node_id,
        group_id=message.metadata.group_id,
    )


def test_error_of_a_node() -> None:
    trace = run_tampered(
        "single", lambda replies: [replies[0], failed(replies[1], "gone\naway"), replies[2]]
    )
    assert trace.weights == [MEAN_WITHOUT[1], MEAN_OF_ALL]
    assert reasons(trace) == [(1001, "node failed: gone away")]


def test_error_made_by_the_superlink_names_no_node() -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        lost = mark(failed(replies[1], "unavailable"), src_node_id=1, group_id="")
        return [replies[0], lost, replies[2]]

    trace = run_tampered("single", tamper)
    assert trace.weights == [MEAN_WITHOUT[1], MEAN_OF_ALL]
    assert reasons(trace) == [
        (None, "node failed: unavailable"),
        (1001, "no reply before the deadline"),
    ]


def test_error_that_belongs_to_another_round_does_not_hit_this_one() -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        return [mark(failed(replies[1], "late"), group_id="0.1"), *replies]

    trace = run_tampered("single", tamper)
    assert trace.weights == [MEAN_OF_ALL, MEAN_OF_ALL]


def test_error_after_a_good_reply_changes_nothing() -> None:
    trace = run_tampered("single", lambda replies: [*replies, failed(replies[1], "late")])
    assert trace.weights == [MEAN_OF_ALL, MEAN_OF_ALL]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_client_that_raises(layout: str) -> None:
    calls = 0

    def before(client_id: int) -> None:
        nonlocal calls
        calls += client_id == 1
        if client_id == 1 and calls == 1:
            raise ValueError("broken\ndata\x1b[31m")

    grid = TamperingGrid(matrix_app(before=before), LAYOUTS[layout])
    trace = run(strategy_for(layout), grid, 2)
    assert trace.weights == [MEAN_WITHOUT[1], MEAN_OF_ALL]
    who = "node" if layout == "single" else "client"
    reason = f"{who} failed: ValueError: broken data?[31m"
    assert reasons(trace) == [(client_number(layout, 1), reason)]


@pytest.mark.parametrize("layout", ["hosted", "shared-node"])
def test_hosted_client_whose_metrics_cannot_be_packed(layout: str) -> None:
    """One client's failure is an entry of the reply, and the others count."""

    class Untidy(MatrixClient):
        SENDS = MatrixClient.SENDS | {"note"}

        def train_metrics(self, summary):
            metrics = super().train_metrics(summary)
            return {**metrics, "note": "text"} if self.client_id == 2 else metrics

    grid = TamperingGrid(matrix_app(Untidy), LAYOUTS[layout])
    trace = run(strategy_for(layout), grid)
    assert trace.weights == [np.float32(MEAN_WITHOUT[2])]
    [(client, reason)] = reasons(trace)
    assert client == 2
    assert reason.startswith("client failed: TypeError")


def test_node_whose_reply_lacks_one_client() -> None:
    def drop(content, prefix):
        for name in [name for name in content if name.startswith(prefix)]:
            del content[name]

    trace = run_tampered("shared-node", for_client(2, "shared-node", drop))
    assert trace.weights == [np.float32(MEAN_WITHOUT[2]), MEAN_OF_ALL]
    assert reasons(trace) == [(2, "the node's reply has no entry for it")]


def test_node_that_answers_for_a_client_of_another_node() -> None:
    """Records of clients that the node does not host are not even looked at."""

    def tamper(replies: list[Message]) -> list[Message]:
        stolen = replies[1].content
        for name in [name for name in stolen if name.startswith("client-1.")]:
            replies[0].content[name] = stolen[name]
        return [replies[0]]

    trace = run_tampered("shared-node", tamper)
    assert trace.weights[0] == MEAN_WITHOUT[1]
    assert reasons(trace) == [(1, "no reply before the deadline")]


def test_error_entry_wins_over_what_came_with_it() -> None:
    from flwr.app import ConfigRecord

    def add_error(content, prefix):
        content[f"{prefix}{ERROR}"] = ConfigRecord({"code": 3})
        assert f"{prefix}{METRICS}" in content

    trace = run_tampered("hosted", for_client(1, "hosted", add_error))
    assert reasons(trace) == [(1, "client failed: no reason given")]


# Order


def irrational_run(tamper) -> bytes:
    """Values whose float sum depends on the order in which it is taken."""
    values = [
        float(v) for v in np.random.default_rng(0).normal(size=9) * 10.0 ** np.arange(9)
    ]
    app = matrix_app(values=values, counts=[3, 1, 7, 2, 5, 11, 1, 4, 6])
    grid = TamperingGrid(app, 9, tamper, rounds=(1, 2))
    trace = run(strategy_for("single"), grid, 2)
    assert not trace.reports[0].train.rejections
    return trace.arrays[-1]["weight"].tobytes()


def test_order_of_arrival_does_not_change_a_bit() -> None:
    def shuffled(replies: list[Message]) -> list[Message]:
        return random.Random(5).sample(replies, len(replies))

    straight = irrational_run(None)
    assert irrational_run(lambda replies: replies[::-1]) == straight
    assert irrational_run(shuffled) == straight


@pytest.mark.parametrize("layout", ["hosted", "shared-node"])
def test_hosting_does_not_change_a_bit(layout: str) -> None:
    straight = run_tampered("single", None)
    other = run_tampered(layout, None if layout == "hosted" else lambda r: r[::-1])
    assert straight.arrays[-1]["weight"].tobytes() == other.arrays[-1]["weight"].tobytes()


def test_rows_are_in_client_order_whatever_arrives_first() -> None:
    trace = run_tampered("single", lambda replies: replies[::-1])
    assert [row["client"] for row in trace.reports[0].train.rows] == [1000, 1001, 1002]


@pytest.mark.parametrize("layout", ["single", "hosted"])
def test_memory_of_a_mean_does_not_grow_with_clients(layout: str) -> None:
    """When a client starts, the heaviest reply is held beside the last one.

    The garbage collector is off: arrays that wait for it would pile up in memory.
    """
    alive: list[weakref.ref] = []
    most = 0

    class Counted(MatrixClient):
        def on_train(self, request):
            nonlocal most
            most = max(most, sum(reference() is not None for reference in alive))
            reply = super().on_train(request)
            alive.append(weakref.ref(reply.arrays["arrays"]["weight"]))
            return reply

    app = matrix_app(Counted, values=[1.0] * 8, counts=[1] * 8)
    identity = {"identity": "partition", "num_clients": 8} if layout == "hosted" else {}
    gc.disable()
    try:
        run(
            FedAvg(**identity, max_examples="off", max_update_norm="off"),
            TamperingGrid(app, 8),
        )
    finally:
        gc.enable()
    assert len(alive) == 8
    assert most == 2


# What is sent


def test_single_layout_is_that_of_flowers_quickstarts() -> None:
    grid = TamperingGrid(matrix_app(), 3)
    run(strategy_for("single", fraction_evaluate=0.0), grid)
    assert [message.metadata.dst_node_id for message in grid.sent] == [1000, 1001, 1002]
    for message in grid.sent:
        assert set(message.content) == {"arrays", "config"}
        assert dict(message.content["config"]) == {"server-round": 1}


def test_hosted_layout_sends_shared_arrays_once_a_node() -> None:
    grid = TamperingGrid(matrix_app(), 2)
    run(strategy_for("shared-node", fraction_evaluate=0.0), grid)
    trains = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert [m.content["config"]["client-ids"] for m in trains] == [[0, 2], [1]]
    assert [len(m.content.array_records) for m in trains] == [1, 1]


def test_what_is_for_one_node_is_in_no_other_message() -> None:
    exchange = Exchange(
        "train",
        [0, 1, 2],
        shared={"arrays": {"w": np.zeros(2)}},
        own={1: {"control": {"w": np.ones(2)}}},
        config={"rate": 0.5},
    )
    members = Members([0, 1, 2], {0: 10, 1: 11, 2: 12}, hosted=True)
    with flower_identity():
        messages = build_messages(
            exchange,
            members,
            "message",
            "2.1",
            start_versions={0: "1.1"},
            keep_versions={1: "0.1"},
        )
    contents = [message.content for message in messages]
    assert [dict(content["config"]) for content in contents] == [
        {"rate": 0.5, "client-ids": [0], "start-versions": ["1.1"]},
        {"rate": 0.5, "client-ids": [1], "keep-versions": ["0.1"]},
        {"rate": 0.5, "client-ids": [2]},
    ]
    assert [set(content) for content in contents] == [
        {"arrays", "config"},
        {"arrays", "client-1.control", "config"},
        {"arrays", "config"},
    ]
    # The model is one record in all of them: it is packed, and over a wire sent, once.
    assert len({id(content["arrays"]) for content in contents}) == 1


def test_bytes_are_counted_once_a_client() -> None:
    trace = run_tampered("shared-node", None, fraction_evaluate=0.0)
    assert trace.reports[0].metrics["bytes_down"] == 3 * 4 * 4
    assert trace.reports[0].metrics["bytes_up"] == 3 * 4 * 4


def test_configure_returns_lists() -> None:
    """Over HTTP Flower iterates twice: a generator would send nothing, silently."""
    from flwr.app import ConfigRecord

    from tests.helpers import zeros

    grid = TamperingGrid(matrix_app(), 3)
    for options in ({}, {"fraction_train": 0.0, "fraction_evaluate": 0.0}):
        strategy = strategy_for("single", **options)
        with flower_identity():
            train = strategy.configure_train(1, zeros(), ConfigRecord(), grid)
            evaluate = strategy.configure_evaluate(1, zeros(), ConfigRecord(), grid)
        assert type(train) is list
        assert type(evaluate) is list
        assert len(train) == len(evaluate) == (0 if options else 3)
