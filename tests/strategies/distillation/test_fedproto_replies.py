"""FedProto: widths and tables that cannot be right."""

import math
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedsuite.clients.distillation.fedproto import FedProtoClient
from fedsuite.core.errors import RunError
from fedsuite.messages.records import (
    CLASS_TABLE,
    CLASSES,
    COUNTS,
    FEATURE_WIDTH,
    LOCAL_PHASE,
    ROWS,
    TRAIN,
    TRANSFER,
    client_record,
)
from fedsuite.strategies.distillation.fedproto import FedProto
from fedsuite.training.loop import TrainingOptions
from tests.strategies.distillation.prototypes import KINDS, NINE, eight
from tests.strategies.distillation.public import Federation, lying, rows, tables_of, wide

# Widths


@pytest.mark.parametrize("name", KINDS)
def test_widths_that_differ_are_refused_before_training(name: str) -> None:
    client, strategy = KINDS[name]
    federation = Federation(client, [wide, eight] * 4)
    with pytest.raises(RunError) as caught:
        federation.run(strategy(8), 2)
    words = str(caught.value)
    assert "8 at clients 1, 3, 5, 7; 9 at clients 0, 2, 4, 6: give client-models" in words
    assert "\n" not in words
    assert not [
        m
        for m in federation.grid.sent
        if m.metadata.message_type in (TRAIN, LOCAL_PHASE, TRANSFER)
    ]


@pytest.mark.parametrize("name", KINDS)
def test_clients_are_asked_once_and_all_of_them(name: str) -> None:
    client, strategy = KINDS[name]
    federation = Federation(client, NINE)
    ran = strategy(3, clients_per_round=1)
    federation.run(ran, 3)
    asked = [m for m in federation.grid.sent if m.metadata.message_type == FEATURE_WIDTH]
    assert len(asked) == 3
    other = strategy(3)
    assert ran.width == 9 and other.width == 0
    other.restore(*ran.state())
    assert other.width == 9


def claiming(kind: Any, width: float) -> Any:
    """Return a class whose client 1 claims a width of features."""

    class Claiming(kind):  # type: ignore[misc]
        def on_feature_width(self, request: Any) -> Any:
            reply = super().on_feature_width(request)
            if self.client_id == 1:
                reply.metrics["feature-width"] = width
            return reply

    return Claiming


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("width", [0, 2**21, math.nan])
def test_a_width_that_cannot_be_is_no_answer(name: str, width: float) -> None:
    kind, strategy = KINDS[name]

    trace = Federation(claiming(kind, width), NINE).run(strategy(3), 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1 and "feature-width" in rejection.reason
    assert len(trace.reports[0].train.rows) == 3


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("width", [8, 10, 990])
def test_a_width_that_one_client_claims_ends_no_run(name: str, width: float) -> None:
    kind, strategy = KINDS[name]

    ran = strategy(3)
    trace = Federation(claiming(kind, width), NINE).run(ran, 1)
    (rejection,) = trace.reports[0].train.rejections
    assert ran.width == 9 and rejection.client_id == 1
    assert rejection.reason == f"its features are {width} wide, and those of most clients 9"


@pytest.mark.parametrize("name", KINDS)
def test_a_network_without_a_classifier_is_named(name: str) -> None:
    client, strategy = KINDS[name]

    def headless() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Tanh())

    with pytest.raises(RunError, match="no linear layer"):
        Federation(client, [headless]).run(strategy(1, max_failed_rounds=1), 1)


def test_a_newcomer_of_another_width_is_left_out() -> None:
    strategy = tables_of(FedProto, 3)
    strategy.width = 9
    trace = Federation(FedProtoClient, [wide, eight, wide]).run(strategy, 2)
    for report, reason in zip(trace.reports, ("shape", "of width 8"), strict=True):
        (rejection,) = report.train.rejections
        assert rejection.client_id == 1 and reason in rejection.reason


# What cannot be right


def ones(**changes: Any) -> dict[str, np.ndarray]:
    told = {ROWS: np.ones((3, 9), np.float32), COUNTS: np.ones(3, np.uint32)}
    return told | changes


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (ones(rows=np.full((3, 9), np.inf, np.float32)), "infinity"),
        (ones(rows=np.full((3, 9), -2e6, np.float32)), "beyond 1e"),
        (ones(counts=np.full(3, 2**31, np.uint32)), "beyond 1e"),
        (ones(rows=np.ones((3, 8), np.float32)), "shape"),
        (ones(rows=np.ones((3, 9), np.int64)), "dtype"),
        (ones(counts=np.ones(3, np.float32)), "dtype"),
        (ones(counts=np.array([0, 1, 1], np.uint32)), "says it does not have"),
    ],
)
def test_bad_tables_are_not_used(told: dict[str, np.ndarray], reason: str) -> None:
    strategy = tables_of(FedProto)
    trace = Federation(lying(FedProtoClient, told), [wide, wide, wide]).run(strategy, 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1 and reason in rejection.reason
    assert not np.isclose(strategy.prototypes[ROWS], 1).any()


def test_claimed_counts_weigh_no_more_than_the_examples() -> None:
    """Client 1 claims a million of each class; it has 23 rows."""
    found = []
    for count in (10**6, 23, 8):
        told = ones(counts=np.full(3, count, np.uint32))
        strategy = tables_of(FedProto, proto_aggregation="count")
        Federation(lying(FedProtoClient, told), [wide, wide, wide]).run(strategy, 1)
        found.append(strategy.prototypes[ROWS])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    np.testing.assert_allclose(found[1], found[2], rtol=1e-6)
    assert not np.allclose(found[0], 1, atol=0.1)


def test_claimed_counts_give_no_weight_where_clients_weigh_alike() -> None:
    found = []
    for count in (1, 1000):
        told = ones(counts=np.full(3, count, np.uint32))
        strategy = tables_of(FedProto)
        Federation(lying(FedProtoClient, told), [wide, wide, wide]).run(strategy, 1)
        found.append(strategy.prototypes[ROWS])
    np.testing.assert_array_equal(*found)


def test_told_counts_are_of_the_data_not_of_the_steps() -> None:
    """Five epochs and a bit: samples are seen more than once."""
    training = TrainingOptions(local_steps=17, batch_size=8, learning_rate=0.1)
    federation = Federation(FedProtoClient, [wide, wide], training=training)
    federation.run(tables_of(FedProto, 2, proto_aggregation="count"), 1)
    for client_id, told in enumerate(federation.grid.arrays(TRAIN, sent=False)):
        counts = told[client_record(client_id, CLASS_TABLE)][COUNTS]
        expected = np.bincount(rows(client_id).labels.numpy(), minlength=3)
        np.testing.assert_array_equal(counts, expected)


def test_a_class_that_no_step_saw_has_no_row() -> None:
    """One step of two rows cannot see three classes."""
    training = TrainingOptions(local_steps=1, batch_size=2, learning_rate=0.1)
    federation = Federation(FedProtoClient, [wide], training=training)
    strategy = tables_of(FedProto, 1, proto_aggregation="count")
    trace = federation.run(strategy, 2)
    assert not any(report.train.rejections for report in trace.reports)
    assert not any(report.evaluate.rejections for report in trace.reports)
    assert 1 <= len(strategy.prototypes[CLASSES]) <= 2


def test_a_round_below_the_quorum_changes_nothing() -> None:
    told = ones(rows=np.full((3, 9), np.inf, np.float32))
    strategy = tables_of(FedProto, quorum=3)
    Federation(lying(FedProtoClient, told), [wide, wide, wide]).run(strategy, 1)
    assert strategy.prototypes == {}
