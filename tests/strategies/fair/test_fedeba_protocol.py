"""What FedEBA+ sends and records, and other people's clients."""

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from fedsuite.clients.fair.fedeba import FedEBAClient, FedEBAPlusClient
from fedsuite.core.errors import RunError
from fedsuite.messages.records import ARRAYS, NUM_EXAMPLES, PROBE, TRAIN, Reply, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.fair.fedeba_equations import entropy_weights
from fedsuite.strategies.fair.fedeba_plus import FedEBAPlus, PracFedEBAPlus
from fedsuite.training.base import FederatedClient
from tests.strategies.fair.probing import NUM_CLIENTS, assert_close, made, network, run

# ---- T10 (a): alpha 0


def test_alpha_0_makes_all_variants_fedeba() -> None:
    common: Any = {"effective_clients": 0.0, "temperature": 0.5}
    reference, _ = run(made(FedEBA, **common), FedEBAClient, 3)
    for theta in (0.0, 1.0, 90.0):
        plus, _ = run(made(FedEBAPlus, alpha=0.0, theta=theta, **common), num_rounds=3)
        assert_close(plus, reference)
        prac, _ = run(
            made(PracFedEBAPlus, alpha=0.0, theta=theta, **common), FedEBAClient, 3
        )
        assert_close(prac, reference)


# ---- T13: protocol


def test_one_sample_of_clients_serves_all_exchanges_of_a_round() -> None:
    strategy = made(FedEBAPlus, theta=0.5, clients_per_round=2)
    _, grid = run(strategy, num_rounds=1)
    assert strategy.round_metrics["branch"] == 1.0
    kinds = [kind for kind, _, _ in grid.sent]
    assert kinds == [PROBE, PROBE, PROBE, PROBE, TRAIN, TRAIN]
    chosen = grid.nodes_of(TRAIN)
    assert len(set(chosen)) == 2
    assert grid.nodes_of(PROBE) == chosen * 2


@pytest.mark.parametrize(
    ("theta", "exchanges", "down", "up", "paper"),
    [
        (0.0, 2, 3, 2, 2),  # eager: model; model and fair gradient | gradient; model
        (0.5, 3, 4, 2, 2),  # lazy: one more model down
        (90.0, 2, 2, 2, 1),  # model branch: model twice | model and first step
    ],
)
def test_bytes_of_a_round(
    theta: float, exchanges: int, down: int, up: int, paper: int
) -> None:
    strategy = made(FedEBAPlus, theta=theta)
    _, grid = run(strategy, num_rounds=1)
    gradient_branch = theta < 90
    assert strategy.round_metrics["branch"] == float(gradient_branch)
    assert len(grid.sent) == exchanges * NUM_CLIENTS
    fair = ["fair-gradient" in names for kind, _, names in grid.sent if kind == TRAIN]
    assert fair == [gradient_branch] * NUM_CLIENTS
    report = strategy.reports["train"]
    unit = NUM_CLIENTS * sum(array.nbytes for array in model_arrays(network()).values())
    assert (report.bytes_down, report.bytes_up) == (down * unit, up * unit)
    assert strategy.round_metrics["bytes_train"] == (down + up) * unit
    assert strategy.round_metrics["bytes_paper"] == paper * unit


def test_paper_s_extra_cost_is_a_over_1_plus_a() -> None:
    """A share a of rounds in the gradient branch costs a / (1 + a) of the traffic."""

    class Alternating(FedEBAPlus):
        def choose_branch(self, losses: Sequence[float]) -> bool:
            super().choose_branch(losses)
            return self.server_round % 4 == 0

        def finish_round(self) -> None:
            super().finish_round()
            costs.append(self.round_metrics["bytes_paper"])

    costs: list[float] = []
    run(made(Alternating, theta=0.0), num_rounds=8)
    unit = min(costs)
    assert sum(cost - unit for cost in costs) / sum(costs) == pytest.approx(0.25 / 1.25)


def test_fedeba_and_prac_make_the_one_exchange_of_fedavg() -> None:
    unit = NUM_CLIENTS * sum(array.nbytes for array in model_arrays(network()).values())
    for strategy in (made(FedEBA), made(PracFedEBAPlus, theta=0.0)):
        _, grid = run(strategy, FedEBAClient, 1)
        assert [kind for kind, _, _ in grid.sent] == [TRAIN] * NUM_CLIENTS
        assert strategy.round_metrics["bytes_train"] == 2 * unit
        assert strategy.round_metrics["bytes_paper"] == unit


def test_report_has_a_row_for_each_client_and_sums_to_one() -> None:
    for strategy, client_class in (
        (made(FedEBAPlus, theta=0.0, effective_clients=0.0), FedEBAPlusClient),
        (made(FedEBAPlus, theta=90.0, effective_clients=0.0), FedEBAPlusClient),
        (made(PracFedEBAPlus, effective_clients=0.0), FedEBAClient),
    ):
        run(strategy, client_class)
        rows = strategy.reports["train"].rows
        assert len(rows) == NUM_CLIENTS
        for name in ("weight", "fair_weight"):
            assert sum(float(row[name]) for row in rows) == pytest.approx(1.0, abs=1e-12)
        before = [float(row["loss_before"]) for row in rows]
        after = [float(row["loss_after"]) for row in rows]
        assert all(b > a > 0 for a, b in zip(after, before, strict=True))
        weights = [float(row["weight"]) for row in rows]
        np.testing.assert_allclose(weights, entropy_weights(after, 0.1), rtol=1e-12)
        fair = [float(row["fair_weight"]) for row in rows]
        np.testing.assert_allclose(fair, entropy_weights(before, 0.1), rtol=1e-12)


def test_size_prior_at_a_large_temperature_is_fedavg() -> None:
    from fedsuite.strategies.averaging.fedavg import FedAvg

    expected, _ = run(made(FedAvg), FedEBAClient)
    found, _ = run(
        made(FedEBA, effective_clients=0.0, temperature=1e9, size_prior=True), FedEBAClient
    )
    assert_close(found, expected)
    uniform, _ = run(made(FedEBA, effective_clients=0.0, temperature=1e9), FedEBAClient)
    assert (uniform["4.weight"] != expected["4.weight"]).any()


# ---- other people's clients


def test_a_client_without_the_probe_is_told_what_to_add() -> None:
    strategy = made(FedEBAPlus, max_failed_rounds=9)
    with pytest.raises(RunError) as caught:
        run(strategy, FedEBAClient)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("query.probe", "loss-before", "@app.query('probe')", "PracFedEBAPlus"):
        assert part in message


def test_legacy_clients_cannot_be_probed() -> None:
    with pytest.raises(ValueError, match=r"NumPyClient cannot answer query\.probe"):
        FedEBAPlus(wire="numpy")


class OneLoss(FederatedClient):
    """A stranger's client: a loss of its own name, and nothing about steps."""

    SENDS: ClassVar[frozenset[str]] = FederatedClient.SENDS | {"train_loss"}

    def on_train(self, request: Request) -> Reply:
        load_arrays(self.model, request.arrays[ARRAYS])
        summary = self.train_locally(request)
        metrics = {NUM_EXAMPLES: len(self.train_data), "train_loss": summary.loss}
        return Reply({ARRAYS: model_arrays(self.model)}, metrics)


def test_a_missing_loss_is_named_with_what_is_there() -> None:
    strategy = made(FedEBA, loss_key="my-loss", max_failed_rounds=9)
    with pytest.raises(RunError, match=r"my-loss' is missing.*train_loss.*loss_key"):
        run(strategy, OneLoss)
    prac = made(PracFedEBAPlus, loss_key="train_loss", max_failed_rounds=9)
    with pytest.raises(RunError, match=r"num-steps' is missing.*give it as local_steps"):
        run(prac, OneLoss)


def test_prac_with_one_loss_warns_once_and_equals_fedeba(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected, _ = run(made(FedEBA, loss_key="train_loss"), OneLoss, 3)
    strategy = made(
        PracFedEBAPlus, loss_key="train_loss", local_steps=4, alpha=0.9, theta=0.0
    )
    with caplog.at_level(logging.WARNING):
        found, _ = run(strategy, OneLoss, 3)
    assert strategy.round_metrics["branch"] == 1.0
    assert_close(found, expected)
    warnings = [r.getMessage() for r in caplog.records if "loss_before_key" in r.message]
    assert len(warnings) == 1
    assert "equals FedEBA" in warnings[0]
