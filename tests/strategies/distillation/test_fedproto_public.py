"""FedProto on public features."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.clients.distillation.fedproto import FedProtoPublicClient
from fedsuite.messages.records import (
    FEATURES,
    LOCAL_PHASE,
    MEAN_OUTPUTS,
    TRANSFER,
    records_of,
)
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.strategies.distillation.fedproto import FedProtoPublic
from tests.strategies.distillation.prototypes import NINE
from tests.strategies.distillation.public import (
    NO_TRAINING,
    STANDING,
    FeatureTable,
    Federation,
    assert_same_models,
    differ,
    numbered,
    strategy_of,
    wide,
)

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
