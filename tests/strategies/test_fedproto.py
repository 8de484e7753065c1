"""FedProto, native and on public features: the specification's numbers, and federations."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedsuite.api import resume, run
from fedsuite.clients.fedproto import (
    FedProtoClient,
    FedProtoPublicClient,
    NearestPrototype,
    prototype_loss,
)
from fedsuite.clients.standalone import StandaloneClient
from fedsuite.clients.training import TrainingOptions
from fedsuite.data import Split
from fedsuite.errors import RunError
from fedsuite.records import (
    CLASS_TABLE,
    CLASSES,
    COUNTS,
    FEATURE_WIDTH,
    FEATURES,
    LOCAL_PHASE,
    MEAN_OUTPUTS,
    ROWS,
    TRAIN,
    TRANSFER,
    client_record,
    records_of,
)
from fedsuite.registry import METHODS
from fedsuite.strategies.class_tables import mean_rows
from fedsuite.strategies.fedproto import FedProto, FedProtoPublic
from fedsuite.strategies.standalone import Standalone
from tests.small_runs import SMALL, client_states, without_plots
from tests.strategies.public import (
    ADAM,
    NO_TRAINING,
    STANDING,
    WIDTH,
    FeatureTable,
    Federation,
    assert_same_models,
    differ,
    lying,
    numbered,
    rows,
    strategy_of,
    tables_of,
    wide,
)


def deep() -> nn.Module:
    """Another network with nine features, and layers that draw and normalise."""
    return nn.Sequential(
        nn.Linear(WIDTH, 7),
        nn.BatchNorm1d(7),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(7, 9),
        nn.ReLU(),
        nn.Linear(9, 3),
    )


NINE = (wide, deep, wide)


# Pure functions

TABLES = (
    ({0: (1, 0), 1: (0, 2)}, (3, 1, 0)),
    ({0: (3, 0)}, (1, 0, 0)),
    ({1: (2, 2), 2: (-1, 1)}, (0, 2, 4)),
)
UNIFORM = [(2, 0), (1, 2), (-1, 1)]
BY_COUNT = [(1.5, 0), (4 / 3, 2), (-1, 1)]


def filled(held: dict[int, Any]) -> np.ndarray:
    found = np.zeros((3, 2))
    for label, row in held.items():
        found[label] = row
    return found


def test_golden_aggregations() -> None:
    found = [filled(held) for held, _ in TABLES]
    counts = [np.array(count) for _, count in TABLES]
    means, present = mean_rows(found, [count > 0 for count in counts])
    np.testing.assert_allclose(means, UNIFORM, atol=1e-12)
    assert present.tolist() == [True] * 3
    means, _ = mean_rows(found, counts)
    np.testing.assert_allclose(means, BY_COUNT, atol=1e-12)
    _, present = mean_rows(found[:2], counts[:2])
    assert present.tolist() == [True, True, False]


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_means_are_of_those_that_have_the_class_in_any_order(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = [rng.integers(0, 3, 4) for _ in range(count)]
    tables = [rng.normal(size=(4, 2)) for _ in range(count)]
    means, present = mean_rows(tables, weights)
    order = rng.permutation(count)
    again, _ = mean_rows([tables[k] for k in order], [weights[k] for k in order])
    np.testing.assert_allclose(again, means, atol=1e-12)
    for label in range(4):
        shares = [weight[label] for weight in weights]
        assert present[label] == any(shares)
        if any(shares):
            expected = np.average([t[label] for t in tables], axis=0, weights=shares)
            np.testing.assert_allclose(means[label], expected, atol=1e-12)


def test_golden_loss() -> None:
    features = torch.tensor([[1.0, 1], [0, 0], [2, 2]], requires_grad=True)
    table = torch.tensor(UNIFORM, dtype=torch.float32)
    present = torch.tensor([True, True, False])
    loss = prototype_loss(features, table, present)
    assert loss.item() == pytest.approx(1.166667, abs=1e-6)
    loss.backward()
    expected = [(-1 / 3, 1 / 3), (-1 / 3, -2 / 3), (0, 0)]
    np.testing.assert_allclose(features.grad, expected, atol=1e-6)
    assert float(prototype_loss(table, table, ~present | present)) == 0


def test_the_nearest_prototype_among_candidates() -> None:
    model = nn.Linear(2, 3)
    prototypes = torch.tensor([[0.0, 0], [1, 0], [5, 0]])
    inputs = torch.tensor([[0.4, 0.0], [0.6, 3.0], [4.0, 0.0]])
    every = NearestPrototype(model, prototypes, torch.tensor([True] * 3))
    assert every(inputs).argmax(dim=1).tolist() == [0, 1, 2]
    two = NearestPrototype(model, prototypes, torch.tensor([True, False, True]))
    assert two(inputs).argmax(dim=1).tolist() == [0, 0, 2]


# Native federations

Z = {
    0: ([(2, -1), (1, 1), (0, 0), (0, 2)], (0, 0, 0, 1)),
    1: ([(3, 0)], (0,)),
    2: ([(2, 2), (2, 2), (-1, 1), (-1, 1), (-1, 1), (-1, 1)], (1, 1, 2, 2, 2, 2)),
}
"""Features and labels by client; their means are the specification's tables."""


def golden(num_rounds: int = 2, **options: Any) -> tuple[Federation, Any, Any]:
    builds = [lambda z=z: FeatureTable(z, torch.float64) for z, _ in Z.values()]
    federation = Federation(
        FedProtoClient,
        builds,
        training=STANDING,
        data=lambda client_id: numbered(*Z[client_id][1]),
    )
    strategy = tables_of(FedProto, **options)
    return federation, strategy, federation.run(strategy, num_rounds)


def losses(trace: Any) -> np.ndarray:
    return np.array([[row["loss"] for row in r.train.rows] for r in trace.reports])


@pytest.mark.parametrize(("kind", "table"), [("uniform", UNIFORM), ("count", BY_COUNT)])
def test_the_worked_example(kind: str, table: Any) -> None:
    federation, strategy, trace = golden(proto_aggregation=kind, proto_weight=2.0)
    np.testing.assert_allclose(strategy.prototypes[ROWS], table, atol=1e-6)
    assert strategy.prototypes[CLASSES].tolist() == [0, 1, 2]
    first, second = losses(trace)
    for client_id, (z, labels) in Z.items():
        gap = np.array(z) - np.array(table)[list(labels)]
        expected = first[client_id] + 2 * np.square(gap).mean()
        assert second[client_id] == pytest.approx(expected, abs=1e-6)
        told = federation.grid.arrays(TRAIN, sent=False)[client_id]
        counts = told[client_record(client_id, CLASS_TABLE)][COUNTS].tolist()
        held = list(TABLES[client_id][1])
        assert counts == (held if kind == "count" else [int(n > 0) for n in held])


def test_first_round_is_plain_cross_entropy() -> None:
    federation, _, trace = golden(1)
    for client_id, (z, labels) in Z.items():
        model = federation.clients[client_id].model
        logits = model.head(torch.tensor(z, dtype=torch.float64))
        expected = float(functional.cross_entropy(logits, torch.tensor(labels)))
        assert losses(trace)[0][client_id] == pytest.approx(expected, abs=1e-9)
    assert not any(federation.grid.arrays(TRAIN, sent=True))


def test_a_class_without_a_prototype_adds_nothing() -> None:
    builds = [lambda: FeatureTable([(1, 1), (0, 0), (2, 2)], torch.float64)]
    federation = Federation(
        FedProtoClient, builds, training=STANDING, data=lambda _: numbered(0, 1, 2)
    )
    strategy = tables_of(FedProto, 1)
    plain = losses(federation.run(strategy, 1))[0, 0]
    strategy.prototypes = {
        ROWS: np.array(UNIFORM[:2], np.float32),
        CLASSES: np.array([0, 1]),
    }
    trace = federation.run(strategy, 1)
    assert losses(trace)[0, 0] - plain == pytest.approx(1.166667, abs=1e-6)


def test_features_are_those_of_the_last_epoch_as_the_model_moves() -> None:
    """Two epochs of two steps; the head stays, so that features move by what it says."""
    federation = Federation(FedProtoClient, [wide])
    noted: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Noting(FedProtoClient):
        def loss(self, model: Any, features: Any, labels: Any) -> Any:
            noted.append((model[:2](features).detach(), labels))
            return super().loss(model, features, labels)

    for epochs, steps, taken in ((2, 0, 3), (1, 0, 3), (0, 2, 2), (0, 7, 3)):
        noted.clear()
        training = TrainingOptions(
            local_epochs=epochs, local_steps=steps, batch_size=8, learning_rate=0.5
        )
        federation = Federation(Noting, [wide], training=training)
        strategy = tables_of(FedProto, 1)
        federation.run(strategy, 1)
        assert len(noted) == (steps or 3 * epochs)
        found = torch.cat([z for z, _ in noted[-taken:]]).numpy()
        labels = torch.cat([y for _, y in noted[-taken:]]).numpy()
        expected = [found[labels == k].mean(axis=0) for k in range(3)]
        np.testing.assert_allclose(strategy.prototypes[ROWS], expected, atol=1e-6)


def test_prototype_accuracy_is_that_of_the_nearest() -> None:
    """Among the classes that a client owns: client 0 has one sample near another."""
    _, _, trace = golden(1)
    found = {
        row["client"]: row["prototype_accuracy"] for row in trace.reports[0].evaluate.rows
    }
    table = np.array(UNIFORM, float)
    for client_id, (z, labels) in Z.items():
        owned = sorted(set(labels))
        gaps = np.square(np.array(z)[:, None] - table[None, owned]).sum(axis=2)
        right = np.array(owned)[gaps.argmin(axis=1)] == np.array(labels)
        assert found[client_id] == pytest.approx(right.mean())
    # Over all classes a sample of client 0 would be nearest to one that it does not own.
    z, labels = Z[0]
    gaps = np.square(np.array(z)[:, None] - table[None]).sum(axis=2)
    assert (gaps.argmin(axis=1) == np.array(labels)).mean() != found[0]


SGD = TrainingOptions(local_steps=3, batch_size=8, learning_rate=0.1)


@pytest.mark.parametrize("training", [SGD, ADAM])
def test_without_weight_it_is_standalone(training: TrainingOptions) -> None:
    proto = Federation(FedProtoClient, NINE, training=training)
    proto.run(tables_of(FedProto, proto_weight=0.0, reset_optimizer=True), 3)
    alone = Federation(StandaloneClient, NINE, training=training)
    alone.run(Standalone(identity="partition", num_clients=3), 3)
    assert_same_models(proto, alone)
    other = Federation(FedProtoClient, NINE, training=training)
    other.run(tables_of(FedProto, reset_optimizer=True), 3)
    assert differ(proto, other)


def test_order_of_replies_is_of_no_consequence() -> None:
    runs = [
        Federation(FedProtoClient, NINE),
        Federation(FedProtoClient, NINE, order=lambda replies: replies[::-1]),
    ]
    for federation in runs:
        federation.run(tables_of(FedProto), 3)
    assert_same_models(*runs)


def test_nothing_but_tables_travels() -> None:
    federation = Federation(FedProtoClient, NINE)
    trace = federation.run(tables_of(FedProto), 2)
    for message in federation.grid.replies:
        for held in records_of(message.content, ArrayRecord).values():
            shapes = {name: tuple(array.shape) for name, array in held.items()}
            assert shapes == {ROWS: (3, 9), COUNTS: (3,)}
    assert trace.reports[1].metrics["bytes_down"] == 2 * 3 * (27 * 4 + 3 * 8)


def test_prototypes_are_those_of_the_last_round() -> None:
    """Half the clients of each round: who is not there has no say."""

    def data(client_id: int) -> Split:
        held = rows(client_id)
        return Split(held.features, torch.full_like(held.labels, client_id))

    federation = Federation(FedProtoClient, NINE, data=data)
    strategy = tables_of(FedProto, clients_per_round=1, seed=3)
    trace = federation.run(strategy, 3)
    last = trace.reports[-1].train.rows[0]["client"]
    assert strategy.prototypes[CLASSES].tolist() == [last]


# Widths


def eight() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))


KINDS = {
    "fedproto": (FedProtoClient, lambda n, **o: tables_of(FedProto, n, **o)),
    "fedproto-public": (
        FedProtoPublicClient,
        lambda n, **o: strategy_of(FedProtoPublic, n, **o),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_widths_that_differ_are_refused_before_training(name: str) -> None:
    client, strategy = KINDS[name]
    federation = Federation(client, [wide, eight, *[wide] * 6])
    with pytest.raises(RunError) as caught:
        federation.run(strategy(8), 2)
    words = str(caught.value)
    assert "8 at client 1; 9 at clients 0, 2, 3, 4, 5 and 2 more: give client-models" in (
        words
    )
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


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("width", [0, 2**21, math.nan])
def test_a_width_that_cannot_be_is_no_answer(name: str, width: float) -> None:
    kind, strategy = KINDS[name]

    class Lying(kind):  # type: ignore[misc, valid-type]
        def on_feature_width(self, request: Any) -> Any:
            reply = super().on_feature_width(request)
            if self.client_id == 1:
                reply.metrics["feature-width"] = width
            return reply

    trace = Federation(Lying, NINE).run(strategy(3), 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1 and "feature-width" in rejection.reason
    assert len(trace.reports[0].train.rows) == 3


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
        (ones(rows=np.ones((3, 9))), "dtype"),
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
    np.testing.assert_allclose(found[1], found[2], rtol=0.1)
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


# On public features

PUBLIC_Z = ([(1, 0), (0, 2)], [(3, 0), (0, 0)], [(2, 3), (3, 1)])


@pytest.mark.parametrize(
    ("target", "expected", "scale"),
    [("all", (1, 1, 2), 1.0), ("others", (2.25, 2.25, 4.5), 1.5)],
)
def test_the_public_worked_example(target: str, expected: Any, scale: float) -> None:
    builds = [lambda z=z: FeatureTable(z) for z in PUBLIC_Z]
    federation = Federation(
        FedProtoPublicClient,
        builds,
        training=NO_TRAINING,
        public=numbered(0, 0).features,
        data=lambda _: numbered(0, 1),
    )
    strategy = FedProtoPublic(
        num_classes=3,
        public_rows=2,
        public_batch_size=0,
        proto_target=target,
        num_clients=3,
        identity="partition",
        min_available_nodes=1,
    )
    for client_id in range(3):
        federation._client(None, client_id)
    heads = [c.model.head.weight.detach().clone() for c in federation.clients.values()]
    trace = federation.run(strategy, 1)
    found = [row["transfer_loss"] for row in trace.reports[0].train.rows]
    assert found == pytest.approx(expected, abs=1e-6)
    moved = np.array(PUBLIC_Z[0]) - federation.models()[0][0]
    slope = scale * np.array([(-0.5, -0.5), (-0.5, 0.5)])
    np.testing.assert_allclose(moved, slope, atol=1e-6)
    (message, *_) = federation.grid.arrays(TRANSFER, sent=True)
    np.testing.assert_allclose(message[MEAN_OUTPUTS][FEATURES], [(2, 1), (1, 1)])
    distance = trace.reports[0].method_metrics["feature_distance"]
    assert distance == pytest.approx(4 / 3)
    # The classifier gets no gradient.
    for client, head in zip(federation.clients.values(), heads, strict=True):
        assert torch.equal(client.model.head.weight, head)


def test_the_public_weight_scales_the_loss() -> None:
    found = []
    for weight in (1.0, 3.0):
        federation = Federation(FedProtoPublicClient, NINE, training=NO_TRAINING)
        strategy = strategy_of(FedProtoPublic, transfer_steps=1, proto_weight=weight)
        rows_of = federation.run(strategy, 1).reports[0].train.rows
        found.append([row["transfer_loss"] for row in rows_of])
    assert found[1] == pytest.approx([3 * loss for loss in found[0]], rel=1e-6)


def test_the_feature_distance_is_of_the_round() -> None:
    """Features stand still: a distance is that of the round's own batches."""
    federation = Federation(FedProtoPublicClient, [wide, wide], training=STANDING)
    strategy = strategy_of(FedProtoPublic, 2, proto_weight=0.0)
    trace = federation.run(strategy, 2)
    seen = []
    for kind in (LOCAL_PHASE, TRANSFER):
        for reply in federation.grid.arrays(kind, sent=False):
            seen += [held[FEATURES] for held in reply.values()]
    # Two rounds' first batches, and two rounds' second ones; of two clients each.
    gaps = [
        np.square((a - b) / 2).mean() for a, b in zip(seen[::2], seen[1::2], strict=True)
    ]
    assert len(gaps) == 4
    for index, report in enumerate(trace.reports):
        expected = (gaps[index] + gaps[2 + index]) / 2
        found = report.method_metrics["feature_distance"]
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_trained_classifier_does_not_move_in_transfer() -> None:
    """Adam has moments of it from the local phase, and still leaves it."""

    class Noting(FedProtoPublicClient):
        def _step(self, request: Any, step: int) -> Any:
            before = [p.detach().clone() for p in self.model.parameters()]
            loss = super()._step(request, step)
            moved = [
                not torch.equal(p, old)
                for p, old in zip(self.model.parameters(), before, strict=True)
            ]
            steps.append(moved)
            return loss

    steps: list[list[bool]] = []
    Federation(Noting, [wide, wide]).run(strategy_of(FedProtoPublic, 2), 2)
    assert steps == [[True, True, False, False]] * 8


def test_only_features_travel() -> None:
    federation = Federation(FedProtoPublicClient, NINE)
    federation.run(strategy_of(FedProtoPublic), 2)
    for message in (*federation.grid.sent, *federation.grid.replies):
        for held in records_of(message.content, ArrayRecord).values():
            shapes = {name: tuple(array.shape) for name, array in held.items()}
            assert shapes == {FEATURES: (6, 9)}


@pytest.mark.parametrize("options", [{"proto_weight": 0.0}, {}])
def test_without_weight_or_others_only_the_local_phase_trains(options: Any) -> None:
    # Without normalisation: its running statistics see public batches all the same.
    builds = [wide, wide] if options else [wide]
    count = len(builds)
    public = Federation(FedProtoPublicClient, builds)
    public.run(strategy_of(FedProtoPublic, count, reset_optimizer=True, **options), 2)
    alone = Federation(StandaloneClient, builds)
    alone.run(Standalone(identity="partition", num_clients=count), 2)
    assert_same_models(public, alone)


def test_public_options_train_otherwise() -> None:
    runs = []
    for options in ({}, {"proto_target": "others"}, {"proto_weight": 0.0}):
        federation = Federation(FedProtoPublicClient, NINE, training=NO_TRAINING)
        federation.run(strategy_of(FedProtoPublic, **options), 1)
        runs.append(federation)
    for index, one in enumerate(runs):
        assert all(differ(one, other) for other in runs[:index])


def test_bad_features_are_not_used() -> None:
    class Lying(FedProtoPublicClient):
        def public_outputs(self, features: torch.Tensor) -> Any:
            found = super().public_outputs(features)
            if self.client_id == 1 and not torch.is_grad_enabled():
                return {FEATURES: found[FEATURES][:, :8]}
            return found

    trace = Federation(Lying, NINE).run(strategy_of(FedProtoPublic), 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1 and "shape" in rejection.reason


# Settings and runs


def test_bad_settings_are_refused() -> None:
    for _, strategy in KINDS.values():
        for bad in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="proto_weight"):
                strategy(2, proto_weight=bad)


@pytest.mark.parametrize("name", KINDS)
def test_resumed_run_ends_with_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    values = {
        **SMALL,
        "method": name,
        "num-clients": 3,
        "clients-per-round": 0,
        "client-models": "mlp:hidden-width=4, mlp:hidden-width=4:hidden-layers=1",
        "client-model-assignment": "round-robin",
        "public-size": 40,
        "device": "cpu",
        "output-dir": str(tmp_path),
    }
    whole = run({**values, "num-rounds": 3, "run-name": "whole"})
    run({**values, "num-rounds": 1, "run-name": "parts"})
    parts = resume(tmp_path / "parts", num_rounds=3)
    assert client_states(whole.path) == client_states(parts.path)
    assert len(client_states(whole.path)) == 3
    assert whole.column("train_loss")[1].tolist() == parts.column("train_loss")[1].tolist()


def test_a_run_refuses_networks_of_other_widths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    models = "mlp:hidden-width=4, mlp:hidden-width=5"
    keys = {"client-model-assignment": "round-robin", "client-models": models}
    with pytest.raises(RunError, match="4 at clients 0, 2; 5 at clients 1, 3"):
        run({**SMALL, **keys, "method": "fedproto", "output-dir": str(tmp_path)})


def test_they_are_listed() -> None:
    assert METHODS["fedproto"].load_strategy() is FedProto
    assert METHODS["fedproto"].load_client() is FedProtoClient
    assert METHODS["fedproto-public"].load_strategy() is FedProtoPublic
    assert METHODS["fedproto-public"].load_client() is FedProtoPublicClient
