"""Replies of a client that means harm: they reach neither log, nor path, nor model."""

import json
import logging
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsuite.callbacks.recorder import Recorder
from fedsuite.core.errors import RunError
from fedsuite.messages.records import split_replies
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.validation import (
    LONGEST_NAME,
    MOST_LISTED,
    MOST_METRICS,
    BadReply,
    Expected,
    check_reply,
)
from tests.helpers import (
    LAYOUTS,
    MEAN_OF_ALL,
    MEAN_WITHOUT,
    Change,
    TamperingGrid,
    client_number,
    for_client,
    mark,
    matrix_app,
    run,
    run_tampered,
    set_arrays,
    set_metrics,
    strategy_for,
)
from tests.rounds.test_bad_replies import GOOD, array_of, header

NASTY = "../../etc/passwd\x1b[31m\r\n\x00{0.__class__}%s${HOME}`id`"


def metric_named(name: str) -> Change:
    def change(content: RecordDict, prefix: str) -> None:
        content[f"{prefix}metrics"][name] = 1.0

    return change


def nasty_record(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}{NASTY}"] = ArrayRecord({"weight": Array(GOOD)})


def nasty_error(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}error"] = ConfigRecord({"reason": NASTY * 1000})


def error_of_bytes(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}error"] = ConfigRecord({"reason": [b"\x1b", b"\n"]})


def many_metrics(content: RecordDict, prefix: str) -> None:
    content[f"{prefix}more"] = MetricRecord({f"m{i}": 0.0 for i in range(MOST_METRICS)})


def long_list(content: RecordDict, prefix: str) -> None:
    half = [0.0] * (MOST_LISTED // 2)
    content[f"{prefix}more"] = MetricRecord({"a": half, "b": [*half, 0.0]})


def claim(shape: str, body: bytes = b"") -> Change:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"
    return set_arrays(weight=array_of(header(text) + body))


HOSTILE: dict[str, tuple[Change, str]] = {
    "array-name": (set_arrays(**{NASTY: GOOD}), "array names differ"),
    "record-name": (nasty_record, "unexpected array record: ../../etc/passwd"),
    "metric-name": (metric_named(NASTY), "the name is no plain word"),
    "long-metric-name": (metric_named("m" * (LONGEST_NAME + 1)), "no plain word"),
    "many-metrics": (many_metrics, "metrics: at most 1000 are taken"),
    "long-list": (long_list, "10001 numbers in lists of metrics: at most 10000"),
    "error": (nasty_error, "client failed: ../../etc/passwd"),
    "error-of-bytes": (error_of_bytes, "client failed: [b"),
    "serialisation": (
        set_arrays(weight=array_of(b"", stype=NASTY)),
        "unknown array serialisation '../../etc",
    ),
    # Python refuses to print such a number: telling of it must not raise.
    "unprintable-shape": (claim(f"(0x{'f' * 9000},)"), "not what NumPy writes"),
    "unprintable-empty": (claim(f"(0, 0x{'f' * 9000})"), "not what NumPy writes"),
    "long-number": (claim(f"(0, {'9' * 16})"), "not what NumPy writes"),
    "many-axes": (claim(f"({'1,' * 50})", bytes(4)), "a shape that no array has"),
    "more-axes": (claim(f"({'1,' * 100})", bytes(4)), "not what NumPy writes"),
    "axis-of-truth": (claim("(2, True, 2)", bytes(16)), "not what NumPy writes"),
    # A parser of literals would warn of the escape, and print what follows it.
    "escape": (claim("'\\\x1b[31m'"), "not what NumPy writes"),
    # Ambiguous numbers would keep a careless pattern busy for ever.
    "digits": (claim(f"({'1' * 900}x)"), "not what NumPy writes"),
    "huge-empty": (claim(f"(0, {2**40}, {2**40})"), "a shape that no array has"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_reply_is_refused_in_plain_words(
    name: str, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    change, reason = HOSTILE[name]
    if layout == "single" and change in (nasty_error, error_of_bytes):
        pytest.skip("there a record called error is the app's own")
    with caplog.at_level(logging.WARNING):
        trace = run_tampered(layout, for_client(1, layout, change))
    [rejection] = trace.reports[0].train.rejections
    assert rejection.client_id == client_number(layout, 1)
    assert reason in rejection.reason
    assert rejection.reason.isprintable()
    assert len(rejection.reason) <= 300
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert trace.weights == [MEAN_WITHOUT[1], MEAN_OF_ALL]


def test_what_fills_the_bounds_is_taken() -> None:
    def change(content: RecordDict, prefix: str) -> None:
        # Two are there: num-examples and loss; one more has the longest name.
        count = MOST_METRICS - len(content[f"{prefix}metrics"]) - 1
        content["more"] = MetricRecord({f"m{i}": 0.0 for i in range(count)})
        content["more"]["n" * LONGEST_NAME] = 1.0
        content["more"]["m0"] = [0.0] * MOST_LISTED

    trace = run_tampered("single", for_client(1, "single", change))
    assert not trace.reports[0].train.rejections
    assert trace.weights == [MEAN_OF_ALL, MEAN_OF_ALL]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_reach_no_path_and_no_control_character_a_table(
    layout: str, tmp_path: Path
) -> None:
    def tamper(replies: list[Message]) -> list[Message]:
        for change, _ in HOSTILE.values():
            replies = for_client(1, layout, change)(replies)
        return replies

    folder = RunFolder.create(tmp_path / "run", {}, {})
    grid = TamperingGrid(matrix_app(), LAYOUTS[layout], tamper)
    run(strategy_for(layout), grid, 1, callbacks=[Recorder(folder)])
    names = {"experiment.toml", "manifest.json", "rounds.jsonl", "clients.jsonl"}
    found = {path.name for path in (tmp_path / "run").iterdir()}
    assert found == names | {"events.jsonl", ".lock"}
    for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines():
        assert json.loads(line)["reason"].isprintable()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replay_of_an_older_round_counts_nothing(layout: str) -> None:
    """Node 1 answers round 2 with what it answered in round 1."""
    kept: list[Message] = []

    def tamper(replies: list[Message]) -> list[Message]:
        if not kept:
            kept.extend(replies)
            return replies
        node = replies[1].metadata.src_node_id
        old = next(m for m in kept if m.metadata.src_node_id == node)
        return [replies[0], old, *replies[2:]]

    grid = TamperingGrid(matrix_app(), LAYOUTS[layout], tamper, rounds=(1, 2))
    trace = run(strategy_for(layout), grid, 2)
    reasons = [r.reason for r in trace.reports[1].train.rejections]
    assert reasons == [
        "node 1001: a reply to another round or exchange",
        "no reply before the deadline",
    ]
    assert trace.weights == [MEAN_OF_ALL, MEAN_WITHOUT[1]]


def test_replay_under_the_mark_of_the_round_is_a_second_reply() -> None:
    """The mark is the SuperLink's, but even a forged one lets nobody count twice."""

    def tamper(replies: list[Message]) -> list[Message]:
        again = Message(replies[1].content, 1, "train")
        mark(again, src_node_id=1001, group_id=replies[1].metadata.group_id)
        return [*replies, again]

    trace = run_tampered("single", tamper, num_rounds=1)
    [rejection] = trace.reports[0].train.rejections
    assert rejection.reason == "a second reply to one request"
    assert trace.weights == [MEAN_OF_ALL]


# Bounds before allocation

SIZE = 2**22


def measured(content: RecordDict) -> tuple[str, int]:
    """Return why a reply is refused, and how much memory finding out took."""
    spec = {"weight": ((2, 2), "float32")}
    tracemalloc.start()
    try:
        with pytest.raises(BadReply) as caught:
            check_reply(0, content, Expected({"arrays": spec}))
        return str(caught.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["weight", "other"])
def test_a_payload_larger_than_announced_is_neither_read_nor_copied(name: str) -> None:
    array = Array(np.full(SIZE, np.nan, np.float32))
    record = ArrayRecord()
    record[name] = array
    reason, peak = measured(RecordDict({"arrays": record}))
    expected = f"shape ({SIZE},), expected (2, 2)" if name == "weight" else "names differ"
    assert expected in reason
    # 16 MiB came; NumPy's parser reads the header alone.
    assert peak < SIZE / 16


def test_a_bad_array_hides_no_large_one_behind_it() -> None:
    record = ArrayRecord({"weight": Array(GOOD)})
    extra = ArrayRecord()
    extra["weight"] = Array(np.zeros(SIZE, np.float32))
    reason, peak = measured(RecordDict({"arrays": record, "more": extra}))
    assert reason == "unexpected array record: more"
    assert peak < SIZE / 16


def test_records_of_nobody_cost_one_pass() -> None:
    """A node that invents records does not make the server look at each for each client."""

    class Counted(str):
        looks = 0

        def partition(self, separator: str, /) -> tuple[str, str, str]:
            Counted.looks += 1
            return super().partition(separator)

        def startswith(self, *arguments: object) -> bool:  # type: ignore[override]
            Counted.looks += 1
            return super().startswith(*arguments)  # type: ignore[arg-type]

    content = RecordDict()
    for index in range(50):
        content[Counted(f"client-{1000 + index}.arrays")] = ArrayRecord()
    content["client-07.arrays"] = ArrayRecord()
    assert split_replies(content, range(100)) == {}
    assert Counted.looks <= 50


# The hello


def test_text_of_a_node_in_the_hello_is_plain() -> None:
    """The run ends with an error that quotes what the node said."""

    def tamper(content: RecordDict) -> None:
        content["hello"] = ConfigRecord({**content["hello"], "source": f"\x1b\n{NASTY}"})

    class Grid(TamperingGrid):
        def send_and_receive(self, messages, *, timeout=None):  # type: ignore[no-untyped-def]
            for reply in super().send_and_receive(messages, timeout=timeout):
                if "hello" in reply.content:
                    tamper(reply.content)
                yield reply

    strategy = strategy_for("hosted", source_hash="0" * 64)
    with pytest.raises(RunError, match="runs other fedsuite code") as caught:
        run(strategy, Grid(matrix_app(), 3))
    assert str(caught.value).isprintable()


def test_metrics_of_a_good_client_survive_a_hostile_neighbour_on_its_node() -> None:
    """Clients 0 and 2 share a node; what client 2's entry holds costs client 0 nothing."""
    change = metric_named(NASTY)
    trace = run_tampered("shared-node", for_client(2, "shared-node", change))
    assert [r.client_id for r in trace.reports[0].train.rejections] == [2]
    assert trace.weights == [np.float32(MEAN_WITHOUT[2]), MEAN_OF_ALL]


def test_weight_of_a_client_is_no_metric_of_it() -> None:
    """A metric called like one of the server's columns does not replace it."""
    change = set_metrics(client=999.0, round=7.0, phase=3.0)
    trace = run_tampered("single", for_client(1, "single", change))
    row = trace.reports[0].train.rows[1]
    assert row["client"] == 1001
    assert {"round", "phase"}.isdisjoint(row)
