"""Rounds of FCCL+."""

from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.clients.distillation.fccl import correlation_loss
from fedsuite.clients.distillation.fccl_plus import FCCLPlusClient
from fedsuite.messages.records import LOGITS, MEAN_OUTPUTS, OUTPUTS, SIMILARITIES, TRANSFER
from fedsuite.strategies.distillation.fccl import FCCL
from fedsuite.strategies.distillation.fccl_plus import FCCLPlus
from tests.strategies.distillation.correlations import FEATURES, METHODS
from tests.strategies.distillation.public import (
    ADAM,
    MIXED,
    NO_TRAINING,
    NUMBERED,
    FeatureTable,
    Federation,
    Table,
    assert_same_models,
    differ,
    normalised,
    strategy_of,
    tables,
    tables_strategy,
)


@pytest.mark.parametrize(
    ("temperature", "losses"),
    [(1.0, (0.040013, 0.037181)), (0.02, (5.892557, 5.661507))],
)
def test_a_round_with_similarities(temperature: float, losses: tuple[float, float]) -> None:
    builds = [lambda held=held: FeatureTable(held) for held in FEATURES]
    federation = Federation(
        FCCLPlusClient, builds, training=NO_TRAINING, public=NUMBERED[:3]
    )
    for client_id in (0, 1):
        client: Any = federation._client(None, client_id)  # type: ignore[arg-type]
        client.train_data.features.zero_()
        client.test_data = client.train_data
    with torch.no_grad():
        logits = [federation.clients[k].model(NUMBERED[:3]) for k in (0, 1)]
    trace = federation.run(
        strategy_of(
            FCCLPlus,
            2,
            public_rows=3,
            public_batch_size=0,
            transfer_steps=1,
            fccl_plus_similarity_temperature=temperature,
            fccl_plus_similarity_weight=2.0,
        ),
        1,
    )
    mean = torch.stack(logits).mean(dim=0)
    for row, own, divergence in zip(
        trace.reports[0].train.rows, logits, losses, strict=True
    ):
        expected = float(correlation_loss(own, mean)) + 2 * divergence
        assert row["transfer_loss"] == pytest.approx(expected, abs=2e-5)
    for message in federation.grid.arrays(TRANSFER, sent=True):
        shapes = {name: array.shape for name, array in message[MEAN_OUTPUTS].items()}
        assert shapes == {LOGITS: (3, 3), SIMILARITIES: (3, 2)}


def test_without_similarities_a_transfer_is_fccl_s() -> None:
    runs = [Federation(client, training=NO_TRAINING) for _, client in METHODS.values()]
    runs += [Federation(FCCLPlusClient, training=NO_TRAINING)]
    runs[0].run(strategy_of(FCCL))
    runs[1].run(strategy_of(FCCLPlus, fccl_plus_similarity_weight=0.0))
    runs[2].run(strategy_of(FCCLPlus))
    assert_same_models(runs[0], runs[1])
    assert differ(runs[1], runs[2])


def test_each_key_of_fccl_plus_has_a_part() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"fccl_plus_similarity_temperature": 1.0},
        {"fccl_plus_renormalise": True},
        {"distillation_temperature": 1.0},
        {"fccl_off_diagonal": 1.0},
        {"fccl_std": "biased"},
    ]
    runs = [Federation(FCCLPlusClient) for _ in settings]
    for federation, options in zip(runs, settings, strict=True):
        federation.run(strategy_of(FCCLPlus, **options))
    assert all(differ(runs[0], other) for other in runs[1:])


def test_statistics_move_once_an_exchange() -> None:
    federation = Federation(FCCLPlusClient, [normalised, normalised])
    federation.run(strategy_of(FCCLPlus, 2, transfer_steps=3), 2)
    (counter,) = [
        b for n, b in federation.clients[0].model.named_buffers() if "batches" in n
    ]
    assert int(counter) == 2 * (2 + 3)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (LOGITS, np.full((6, 3), np.inf, np.float32), "infinity"),
        (SIMILARITIES, np.full((6, 5), np.nan, np.float32), "NaN"),
        (SIMILARITIES, np.zeros((6, 6), np.float32), "shape"),
        (SIMILARITIES, np.full((6, 5), 1e7, np.float32), "beyond 1e"),
    ],
)
def test_bad_outputs_are_not_used(name: str, value: np.ndarray, reason: str) -> None:
    class Lying(FCCLPlusClient):
        def outputs_without_trace(self, request: Any, step: int) -> Any:
            found = super().outputs_without_trace(request, step)
            lie = {name: torch.from_numpy(value)}
            return found | lie if self.client_id == 1 else found

    trace = Federation(Lying).run(strategy_of(FCCLPlus), 1)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.client_id == 1
    assert reason in rejection.reason


def test_a_similarity_counts_for_1_at_most() -> None:
    strategy = strategy_of(FCCLPlus)
    outputs = {
        k: {
            LOGITS: np.ones((6, 3), np.float32),
            SIMILARITIES: np.full((6, 5), value, np.float32),
        }
        for k, value in enumerate((0.5, -1e5))
    }
    found = strategy.feedback(outputs, 0).shared[MEAN_OUTPUTS][SIMILARITIES]
    np.testing.assert_allclose(found, np.full((6, 5), -0.25))


def test_nothing_but_outputs_travels() -> None:
    federation = Federation(FCCLPlusClient, MIXED, training=ADAM)
    trace = federation.run(strategy_of(FCCLPlus), 2)
    size = (6 * 3 + 6 * 5) * 4
    assert [r.train.bytes_up for r in trace.reports] == [6 * size] * 2
    assert [r.train.bytes_down for r in trace.reports] == [6 * size] * 2
    for reply in federation.grid.arrays(TRANSFER, sent=False):
        assert all(name.endswith(OUTPUTS) for name in reply)
    assert all(not arrays for arrays in trace.arrays)
    assert len(trace.reports[-1].evaluate.rows) == 3


def test_a_table_is_no_network_with_features() -> None:
    """Its outputs come from no linear layer: the client says so."""
    federation = tables(FCCLPlusClient)
    with pytest.raises(Exception, match="linear"):
        federation.run(tables_strategy(FCCLPlus, max_failed_rounds=1), 1)
    assert isinstance(federation.clients[0].model, Table)
