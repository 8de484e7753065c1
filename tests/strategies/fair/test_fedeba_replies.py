"""How FedEBA, FedEBA+ and Prac-FedEBA+ take failures and false reports."""

from typing import Any

import numpy as np
import pytest

from fedsuite.clients.fair.fedeba import FedEBAPlusClient
from fedsuite.messages.records import NUM_EXAMPLES, TRAIN, Reply, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.fair.fedeba_plus import FedEBAPlus, PracFedEBAPlus
from tests.strategies.fair.fair_rounds import fair_round, final, three
from tests.strategies.fair.probing import assert_same, made, network, run
from tests.strategies.fair.quadratic import ProbedQuadratic, options, start


class Failing(FedEBAPlusClient):
    """Fails where its number stands in FAIL: message type to client ids."""

    FAIL: dict[str, set[int]] = {}  # noqa: RUF012

    def on_probe(self, request: Request) -> Reply:
        kind = "gradient" if request.config.get("report-gradient") else "loss"
        if self.client_id in self.FAIL.get(kind, set()):
            raise OSError("lost")
        return super().on_probe(request)

    def on_train(self, request: Request) -> Reply:
        if self.client_id in self.FAIL.get("train", set()):
            raise OSError("lost")
        return super().on_train(request)


def failing(**fail: set[int]) -> type[Failing]:
    return type("FailingHere", (Failing,), {"FAIL": fail})


@pytest.mark.parametrize("theta", [0.0, 0.5, 90.0])
def test_a_client_lost_between_probe_and_training_is_left_out(theta: float) -> None:
    strategy = made(FedEBAPlus, theta=theta)
    final, grid = run(strategy, failing(train={1}), 1)
    report = strategy.reports["train"]
    assert [row["client"] for row in report.rows] == [1000, 1002, 1003]
    assert sum(report.column("weight")) == pytest.approx(1.0, abs=1e-12)
    # The fair gradient stays as it was made, with the lost client in it.
    assert sum(report.column("fair_weight")) < 1 - 1e-6
    assert grid.nodes_of(TRAIN) == [0, 1, 2, 3]
    assert all(np.isfinite(array).all() for array in final.values())


def test_a_client_that_fails_the_probe_is_not_asked_to_train() -> None:
    strategy = made(FedEBAPlus, theta=0.5)
    _, grid = run(strategy, failing(loss={2}), 1)
    assert grid.nodes_of(TRAIN) == [0, 1, 3]
    assert sum(strategy.reports["train"].column("fair_weight")) == pytest.approx(1.0)
    assert len(strategy.reports["train"].rejections) == 1


def test_a_client_that_fails_the_gradient_still_trains() -> None:
    strategy = made(FedEBAPlus, theta=0.5)
    _, grid = run(strategy, failing(gradient={0}), 1)
    assert grid.nodes_of(TRAIN) == [0, 1, 2, 3]
    rows = strategy.reports["train"].rows
    assert ["fair_weight" in row for row in rows] == [False, True, True, True]
    fair = sum(strategy.reports["train"].column("fair_weight"))
    assert fair == pytest.approx(1.0, abs=1e-12)
    assert sum(strategy.reports["train"].column("weight")) == pytest.approx(1.0)


@pytest.mark.parametrize("stage", ["loss", "gradient", "train"])
def test_a_round_in_which_all_fail_keeps_the_model(stage: str) -> None:
    strategy = made(FedEBAPlus, theta=0.5, max_failed_rounds=5)
    final, _ = run(strategy, failing(**{stage: {0, 1, 2, 3}}), 2)
    assert_same(final, model_arrays(network()))
    assert strategy.judge.failed_rounds == 2


class Bragging(FedEBAPlusClient):
    """Client 0 reports a false loss."""

    FALSE = 0.0

    def full_loss(self, request: Request) -> float:
        return self.FALSE if self.client_id == 0 else super().full_loss(request)


@pytest.mark.parametrize("false", [1e308, 0.0, -5.0])
@pytest.mark.parametrize("strategy_class", [FedEBA, FedEBAPlus, PracFedEBAPlus])
def test_false_losses_are_survived(strategy_class: Any, false: float) -> None:
    client_class = type("BraggingHere", (Bragging,), {"FALSE": false})
    changes = {} if strategy_class is FedEBA else {"theta": 20.0}
    off = {"effective_clients": 0.0, "max_share_ratio": "off", "max_client_weight": 1.0}
    strategy = made(strategy_class, **off, **changes)
    final, _ = run(strategy, client_class, 1)
    assert all(np.isfinite(array).all() for array in final.values())
    weight = strategy.reports["train"].column("weight")[0]
    assert weight == pytest.approx(1.0) if false > 1 else weight < 0.25


def test_a_clip_bounds_what_a_false_loss_can_get() -> None:
    client_class = type("BraggingHere", (Bragging,), {"FALSE": 1e308})
    strategy = made(FedEBA, loss_clip=1.0, effective_clients=0.0, temperature=1.0)
    run(strategy, client_class, 1)
    # At most e^1 times the weight of a client without loss.
    assert strategy.reports["train"].column("weight")[0] < np.e / (np.e + 3)


@pytest.mark.parametrize("strategy_class", [FedEBA, FedEBAPlus, PracFedEBAPlus])
def test_a_ratio_bounds_what_a_false_loss_can_get(strategy_class: Any) -> None:
    """Client 0 inflates its loss to take the round: with the option it cannot."""
    client_class = type("BraggingHere", (Bragging,), {"FALSE": 1e308})
    usual = {"effective_clients": 0.0, "temperature": 1.0}
    free = {"max_share_ratio": "off", "max_client_weight": 1.0}
    weights = []
    for limits in (free, {}, {"max_share_ratio": 1.5}, {"max_share_ratio": "off"}):
        strategy = made(strategy_class, **usual, **limits)
        run(strategy, client_class, 1)
        weights.append(strategy.reports["train"].column("weight")[0])
    # Of four clients each has a quarter where losses say nothing.
    assert weights == pytest.approx([1.0, 0.5, 0.375, 0.5])
    # A ratio that does not bind leaves honest rounds as they are, bit for bit.
    final, _ = run(made(strategy_class, **usual, **free), FedEBAPlusClient, 1)
    reference, _ = run(made(strategy_class, **usual), FedEBAPlusClient, 1)
    assert_same(final, reference)


def test_a_loss_that_is_no_number_is_refused() -> None:
    client_class = type("BraggingHere", (Bragging,), {"FALSE": float("nan")})
    strategy = made(FedEBA)
    run(strategy, client_class, 1)
    assert [r.client_id for r in strategy.reports["train"].rejections] == [1000]
    assert strategy.reports["train"].rejections[0].reason == "metric loss-after is nan"


def test_all_losses_zero_is_a_fair_round() -> None:
    class Perfect(ProbedQuadratic):
        def full_loss(self, request: Request) -> float:
            return 0.0

    strategy = FedEBAPlus.of_paper(**options(alpha=0.5, theta=10.0))
    assert start(strategy, -1.0, client_class=Perfect) == pytest.approx(
        -1 + 0.5 * 0.39375 + 0.5 * 0.225
    )
    assert strategy.round_metrics["angle"] == 0.0


class Claiming(FedEBAPlusClient):
    """Client 0 says that it has no examples."""

    def _claim(self, reply: Reply) -> Reply:
        count = 0 if self.client_id == 0 else reply.metrics[NUM_EXAMPLES]
        return Reply(reply.arrays, {**reply.metrics, NUM_EXAMPLES: count})

    def on_probe(self, request: Request) -> Reply:
        return self._claim(super().on_probe(request))

    def on_train(self, request: Request) -> Reply:
        return self._claim(super().on_train(request))


def test_clients_without_examples_have_no_weight() -> None:
    for strategy in (
        made(FedEBA, effective_clients=0.0, temperature=1e9),
        made(PracFedEBAPlus),
    ):
        run(strategy, Claiming, 1)
        rows = strategy.reports["train"].rows
        assert ["weight" in row for row in rows] == [False, True, True, True]
        assert sum(strategy.reports["train"].column("weight")) == pytest.approx(1.0)
    plus = made(FedEBAPlus)
    _, grid = run(plus, Claiming, 1)
    assert grid.nodes_of(TRAIN) == [1, 2, 3]


def test_a_client_that_took_no_step_counts_as_one_that_took_one() -> None:
    """Its first step is its update by its number of steps."""

    def after(num_steps: int) -> np.ndarray:
        strategy = PracFedEBAPlus(theta=90.0, alpha=0.5, **three())
        told = {"loss-after": 1.0, "num-steps": num_steps}
        return final(fair_round(strategy, extra=lambda client: told))

    np.testing.assert_array_equal(after(0), after(1))
    assert not np.array_equal(after(2), after(1))
