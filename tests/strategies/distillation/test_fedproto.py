"""FedProto: the specification's example through federations, and runs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch.nn import functional

from fedsuite.clients import load_client
from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.clients.distillation.fedproto import FedProtoClient, FedProtoPublicClient
from fedsuite.core.errors import RunError
from fedsuite.core.registry import METHODS
from fedsuite.data import Split
from fedsuite.engines.api import resume, run
from fedsuite.messages.records import (
    CLASS_TABLE,
    CLASSES,
    COUNTS,
    ROWS,
    TRAIN,
    client_record,
    records_of,
)
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.strategies.distillation.fedproto import FedProto, FedProtoPublic
from fedsuite.training.loop import TrainingOptions
from tests.small_runs import SMALL, client_states
from tests.strategies.distillation.prototypes import BY_COUNT, KINDS, NINE, TABLES, UNIFORM
from tests.strategies.distillation.public import (
    ADAM,
    STANDING,
    FeatureTable,
    Federation,
    assert_same_models,
    differ,
    numbered,
    rows,
    tables_of,
    wide,
)

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
    plain = losses(federation.run(tables_of(FedProto, 1), 1))[0, 0]
    strategy = tables_of(FedProto, 1)
    strategy.prototypes = {
        ROWS: np.array(UNIFORM[:2], np.float32),
        CLASSES: np.array([0, 1]),
    }
    trace = federation.run(strategy, 1)
    assert losses(trace)[0, 0] - plain == pytest.approx(1.166667, abs=1e-6)


def test_features_are_those_of_the_last_epoch_as_the_model_moves() -> None:
    """Two epochs of two steps; the head stays, so that features move by what it says."""
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


# Settings and runs


def test_bad_settings_are_refused() -> None:
    for _, strategy in KINDS.values():
        for bad in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="proto_weight"):
                strategy(2, proto_weight=bad)


@pytest.mark.parametrize("name", KINDS)
def test_resumed_run_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
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


def test_a_run_refuses_networks_of_other_widths(tmp_path: Path) -> None:
    models = "mlp:hidden-width=4, mlp:hidden-width=5"
    keys = {"client-model-assignment": "round-robin", "client-models": models}
    with pytest.raises(RunError, match="4 at clients 0, 2; 5 at clients 1, 3"):
        run({**SMALL, **keys, "method": "fedproto", "output-dir": str(tmp_path)})


def test_they_are_listed() -> None:
    assert load_strategy(METHODS["fedproto"]) is FedProto
    assert load_client(METHODS["fedproto"]) is FedProtoClient
    assert load_strategy(METHODS["fedproto-public"]) is FedProtoPublic
    assert load_client(METHODS["fedproto-public"]) is FedProtoPublicClient
