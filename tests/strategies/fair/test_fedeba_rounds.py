"""Golden rounds of FedEBA, FedEBA+ and Prac-FedEBA+ through the real classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ARRAYS, NUM_EXAMPLES, Arrays, Reply, Request
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.fair.fedeba_plus import AlignedFedEBA, FedEBAPlus, PracFedEBAPlus
from tests.strategies.fair.quadratic import (
    TWO_CLIENTS,
    Curve,
    PlainQuadratic,
    ProbedQuadratic,
    options,
    start,
)


def close(found: object, expected: object, tolerance: float = 1e-8) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def column(strategy: FedAvg, name: str) -> list[float]:
    return strategy.reports["train"].column(name)


class Watched(FedEBAPlus):
    """FedEBA+ that keeps the updates it aggregates."""

    updates: Sequence[float] = ()

    def combine(
        self, arrays: Arrays, replies: Sequence[ClientReply], weights: Vector
    ) -> Arrays:
        self.updates = [float((r.arrays[ARRAYS]["x"] - arrays["x"])[0]) for r in replies]
        return super().combine(arrays, replies, weights)


# ---- T6: gradient branch; theta 0 probes eagerly, theta 15 in two exchanges


@pytest.mark.parametrize("theta", [0.0, 15.0])
def test_golden_gradient_branch(theta: float) -> None:
    strategy = Watched.of_paper(**options(alpha=0.5, theta=theta))
    close(start(strategy, -1.0), -0.20217091)
    close(column(strategy, "loss_before"), (18.0, 4.5))
    close(column(strategy, "loss_after"), (7.25704813, 5.77230278))
    close(column(strategy, "fair_weight"), (0.93702664, 0.06297336))
    close(column(strategy, "weight"), (0.57369652, 0.42630348))
    close(strategy.updates, (1.09513148, 0.39773536))
    metrics = strategy.round_metrics
    assert metrics["branch"] == 1.0
    close(metrics["angle"], 30.963757, 1e-6)
    close(metrics["update_norm"], 0.79782909)
    close(metrics["effective_clients"], 1 / (0.57369652**2 + 0.42630348**2))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"alpha": 0.9}, 0.02854906),
        ({"alpha": 0.0}, -0.36287180),
        ({"alpha": 0.5, "aggregation_losses": "before"}, 0.05121411),
        ({"alpha": 0.5, "temperature": 0.2}, 0.13504223),
        ({"alpha": 0.5, "server_learning_rate": 0.5}, -1 + 0.5 * 0.79782909),
    ],
)
def test_gradient_branch_of_other_settings(
    changes: dict[str, Any], expected: float
) -> None:
    found = start(FedEBAPlus.of_paper(**options(theta=15.0, **changes)), -1.0)
    close(found, expected)


def test_a_fair_gradient_as_long_as_one_update() -> None:
    strategy = Watched.of_paper(
        **options(alpha=0.5, theta=0.0, fair_gradient_scale="one-update")
    )
    start(strategy, -1.0)
    # By hand: g~ = 0.93702664 (-12) + 0.06297336 (3) = -11.0554; 0.5 * 0.05 g~ = -0.276385
    # stands in each of the two steps of length 0.05, beside half of the own gradient.
    close(strategy.updates, (0.59625658, -0.12083198), 1e-7)


@pytest.mark.parametrize("strategy_class", [FedEBA, PracFedEBAPlus])
def test_weights_that_amount_to_a_share_of_the_clients(strategy_class: Any) -> None:
    strategy = strategy_class.of_paper(**options(temperature=0.1, effective_clients=0.8))
    start(strategy, -1.0, client_class=PlainQuadratic)
    # 1 / (0.75^2 + 0.25^2) = 1.6 of 2 clients.
    close(column(strategy, "weight"), (0.75, 0.25))
    close(strategy.round_metrics["effective_clients"], 1.6)


def test_the_fair_gradient_has_such_weights_too() -> None:
    strategy = FedEBAPlus.of_paper(
        **options(alpha=0.5, temperature=0.1, effective_clients=0.8)
    )
    start(strategy, -1.0)
    close(column(strategy, "fair_weight"), (0.75, 0.25))


def test_all_clients_and_their_sizes_are_fedavg() -> None:
    fair = FedEBA.of_paper(
        **options(temperature=0.1, effective_clients=1.0, size_prior=True)
    )
    plain = FedAvg(**{k: v for k, v in options().items() if k != "temperature"})
    found = start(fair, -1.0, client_class=PlainQuadratic)
    close(found, start(plain, -1.0, client_class=PlainQuadratic), 1e-12)


# ---- T7: model branch


def test_golden_model_branch() -> None:
    strategy = Watched.of_paper(**options(alpha=0.5, theta=60.0))
    close(start(strategy, -1.0), -0.56893590)
    close(strategy.updates, (1.08, -0.2925))
    close(column(strategy, "loss_after"), (7.3728, 3.66527813))
    close(column(strategy, "weight"), (0.67732473, 0.32267527))
    close(column(strategy, "fair_weight"), (0.93702664, 0.06297336))
    assert strategy.round_metrics["branch"] == 0.0
    close(strategy.round_metrics["update_norm"], 0.43106410)


def test_model_branch_with_rescaled_first_steps() -> None:
    strategy = FedEBAPlus.of_paper(
        **options(alpha=0.5, theta=60.0, rescale_first_steps=True)
    )
    # The first-step mean 0.225 counts twice, K = 2: the specification's "wrong" number.
    close(start(strategy, -1.0), -0.45643590)


# ---- T8: Prac


def test_golden_practical_rounds() -> None:
    strategy = PracFedEBAPlus.of_paper(**options(alpha=0.5, theta=15.0))
    close(start(strategy, -1.0, client_class=PlainQuadratic), -0.18465137)
    assert strategy.round_metrics["branch"] == 1.0
    close(column(strategy, "loss_before"), (18.0, 4.5))
    close(column(strategy, "fair_weight"), (0.93702664, 0.06297336))
    close(column(strategy, "weight"), (0.67732473, 0.32267527))
    fair = PracFedEBAPlus.of_paper(**options(alpha=0.5, theta=60.0))
    close(start(fair, -1.0, client_class=PlainQuadratic), -0.58299840)
    assert fair.round_metrics["branch"] == 0.0
    stated = PracFedEBAPlus.of_paper(**options(alpha=0.5, theta=60.0, local_steps=2))
    close(start(stated, -1.0, client_class=PlainQuadratic), -0.58299840)
    # The whole update in place of the first step: mean of 1.08 and -0.2925.
    rescaled = PracFedEBAPlus.of_paper(
        **options(alpha=0.5, theta=60.0, rescale_first_steps=True)
    )
    whole = 0.5 * (0.67732473 * 1.08 - 0.32267527 * 0.2925) + 0.5 * 0.39375
    close(start(rescaled, -1.0, client_class=PlainQuadratic), -1 + whole)


# ---- T9: the paper's toy round, computed correctly


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"temperature": 1.0}, -0.96703917),
        ({"temperature": 5.311}, -0.1000),
        ({"temperature": 6.492128}, 0.0),
        ({"temperature": 1e12}, 0.5),
        ({"temperature": 1.0, "aggregation_losses": "before"}, 0.5),
    ],
)
def test_toy_round(changes: dict[str, Any], expected: float) -> None:
    training: Any = {"local_steps": 1, "learning_rate": 0.25}
    tolerance = 1e-4 if changes["temperature"] == 5.311 else 1e-6
    strategy = FedEBA.of_paper(**options(**changes))
    found = start(strategy, 0.0, client_class=PlainQuadratic, **training)
    close(found, expected, tolerance)
    plus = FedEBAPlus.of_paper(**options(alpha=0.0, **changes))
    close(start(plus, 0.0, **training), found, 1e-12)


# ---- T10: extremes


def test_alpha_1_moves_every_client_alike_in_the_gradient_branch() -> None:
    strategy = Watched.of_paper(**options(alpha=1.0, theta=15.0))
    close(start(strategy, -1.0, local_steps=3), -1 + 0.05 * 3 * 11.05539966)
    close(strategy.updates, [0.05 * 3 * 11.05539966] * 2)


def test_alpha_1_takes_the_mean_first_step_in_the_model_branch() -> None:
    for temperature in (0.1, 5.0):
        for steps in (1, 2, 5):
            strategy = FedEBAPlus.of_paper(
                **options(alpha=1.0, theta=90.0, temperature=temperature)
            )
            close(start(strategy, -1.0, local_steps=steps), -1 + (0.6 - 0.15) / 2, 1e-12)


def test_one_full_batch_step_makes_fedeba_plus_and_prac_equal() -> None:
    common = options(alpha=0.7, theta=15.0, aggregation_losses="before")
    plus = start(FedEBAPlus.of_paper(**common), -1.0, local_steps=1)
    prac = start(
        PracFedEBAPlus.of_paper(**common), -1.0, client_class=PlainQuadratic, local_steps=1
    )
    close(plus, prac, 1e-12)
    weights = np.array([0.93702664, 0.06297336])
    close(plus, -1 + weights @ (0.6, -0.15))


@pytest.mark.parametrize("forced", [None, True, False])
@pytest.mark.parametrize("strategy_class", [FedEBAPlus, PracFedEBAPlus])
def test_one_client_takes_a_single_step(
    strategy_class: type[AlignedFedEBA], forced: bool | None
) -> None:
    class Forced(strategy_class):  # type: ignore[valid-type, misc]
        def choose_branch(self, losses: Sequence[float]) -> bool:
            chosen: bool = super().choose_branch(losses)
            return chosen if forced is None else forced

    strategy = Forced.of_paper(**options(alpha=0.3, theta=0.0, min_available_nodes=1))
    found = start(strategy, -1.0, curves=TWO_CLIENTS[:1], local_steps=1)
    close(found, -0.4, 1e-12)
    assert strategy.round_metrics["angle"] == 0.0
    assert strategy.round_metrics["branch"] == 0.0
    assert column(strategy, "weight") == [1.0]


def test_a_large_temperature_is_fedavg_and_a_small_one_the_worst_client() -> None:
    fedavg = start(FedAvg(fraction_evaluate=0.0), -1.0)
    close(fedavg, -1 + (1.08 - 0.2925) / 2)
    close(start(FedEBA.of_paper(**options(temperature=1e12)), -1.0), fedavg, 1e-9)
    close(start(FedEBA.of_paper(**options(temperature=0.01)), -1.0), -1 + 1.08, 1e-12)


def test_order_of_clients_does_not_matter() -> None:
    curves: Sequence[Curve] = ((2.0, 2.0), (0.5, -4.0), (1.0, 0.0), (0.3, 5.0))
    for theta in (0.0, 60.0):
        forward = FedEBAPlus.of_paper(**options(theta=theta, min_available_nodes=4))
        backward = FedEBAPlus.of_paper(**options(theta=theta, min_available_nodes=4))
        found = start(forward, -1.0, curves=curves, num_rounds=3)
        other = start(backward, -1.0, curves=curves[::-1], num_rounds=3)
        close(found, other, 1e-12)
        close(column(forward, "weight"), column(backward, "weight")[::-1], 1e-12)
        close(sum(column(forward, "weight")), 1.0, 1e-12)
        close(sum(column(forward, "fair_weight")), 1.0, 1e-12)


@pytest.mark.parametrize("strategy_class", [FedEBAPlus, PracFedEBAPlus])
def test_equal_losses_take_the_model_branch_even_at_theta_0(
    strategy_class: type[AlignedFedEBA],
) -> None:
    """T5: at x = 0 both losses are 8, and the two branches would part."""
    strategy = strategy_class.of_paper(**options(alpha=1.0, theta=0.0))
    # One step of 0.05 from 0 along -8 and along 4; Prac takes half of two steps.
    first = {FedEBAPlus: (0.4, -0.2), PracFedEBAPlus: (0.72 / 2, -0.39 / 2)}[strategy_class]
    close(start(strategy, 0.0), np.mean(first), 1e-12)
    assert strategy.round_metrics["branch"] == strategy.round_metrics["angle"] == 0.0


@pytest.mark.parametrize("strategy_class", [FedEBAPlus, PracFedEBAPlus])
def test_first_steps_count_by_examples(strategy_class: type[AlignedFedEBA]) -> None:
    class Sized(ProbedQuadratic):
        def on_train(self, request: Request) -> Reply:
            reply = super().on_train(request)
            count = 3 if self.client_id == 0 else 1
            return Reply(reply.arrays, {**reply.metrics, NUM_EXAMPLES: count})

    strategy = strategy_class.of_paper(**options(alpha=1.0, theta=90.0))
    found = start(strategy, -1.0, client_class=Sized, local_steps=1)
    close(found, -1 + 0.75 * 0.6 - 0.25 * 0.15, 1e-12)


# ---- options


def test_size_prior_clip_and_schedule_change_the_weights_as_they_say() -> None:
    clipped = FedEBA.of_paper(**options(loss_clip=5.0))
    start(clipped, -1.0)
    # 7.3728 counts as 5: the weights are the softmax of (5, 3.66527813) / 5.
    gap = np.exp((5.0 - 3.66527813) / 5.0)
    close(column(clipped, "weight"), (gap / (1 + gap), 1 / (1 + gap)))
    close(column(clipped, "loss_after"), (7.3728, 3.66527813))
    cooling = FedEBA.of_paper(
        **options(temperature_schedule="linear", temperature_decay=1.0)
    )
    start(cooling, -1.0, num_rounds=3)
    assert cooling.round_metrics["temperature"] == 5.0 / 3.0
    level = FedEBAPlus.of_paper(**options(alpha=0.5, theta=0.0, loss_clip=4.0))
    start(level, -1.0)
    # Both losses count as 4: equal, hence the model branch.
    assert level.round_metrics["angle"] == level.round_metrics["branch"] == 0.0

    # Where losses say nothing each has a half: 1.2 times that is 0.6.
    bounded = FedEBA.of_paper(**options(max_share_ratio=1.2))
    start(bounded, -1.0)
    close(column(bounded, "weight"), (0.6, 0.4))
    close(column(bounded, "loss_after"), (7.3728, 3.66527813))


# ---- server learning rate


def test_server_learning_rate_of_fedavg() -> None:
    mean = -1 + (1.08 - 0.2925) / 2
    assert start(FedAvg(fraction_evaluate=0.0), -1.0) == pytest.approx(mean, abs=1e-15)
    small = FedAvg(fraction_evaluate=0.0, server_learning_rate=0.19)
    close(start(small, -1.0), -1 + 0.19 * (mean + 1), 1e-15)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_server_learning_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="server_learning_rate"):
        FedAvg(server_learning_rate=rate)


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha": 1.1},
        {"alpha": -0.1},
        {"theta": 91.0},
        {"theta": -1.0},
        {"temperature": 0.0},
        {"temperature_schedule": "steep"},
        {"temperature_decay": -1.0},
        {"aggregation_losses": "later"},
        {"loss_clip": -1.0},
        {"max_share_ratio": 0.5},
        {"max_share_ratio": float("nan")},
    ],
)
@pytest.mark.parametrize("strategy_class", [FedEBAPlus, PracFedEBAPlus])
def test_impossible_options_are_refused(
    strategy_class: type[AlignedFedEBA], changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="expected"):
        strategy_class(**changes)


def test_the_papers_values_and_ours() -> None:
    plus, prac = FedEBAPlus.of_paper(), PracFedEBAPlus.of_paper()
    assert (plus.temperature, plus.alpha, plus.theta) == (0.1, 0.9, 0.0)
    assert (plus.fair_gradient_scale, plus.effective_clients) == ("printed", 0.0)
    assert (prac.temperature, prac.alpha, prac.theta) == (0.1, 0.1, 15.0)
    assert FedEBAPlus.of_paper(alpha=0.5).alpha == 0.5
    ours = FedEBAPlus()
    assert (ours.effective_clients, ours.alpha) == (0.95, 0.1)
    assert ours.fair_gradient_scale == "one-update"
    for strategy in (FedEBA, FedEBAPlus, PracFedEBAPlus):
        named = {key.argument: key.default for key in strategy.method_keys()}
        built = strategy()
        assert {name: getattr(built, name) for name in named} == named


def test_the_probed_client_serves_fedeba_and_prac_as_well() -> None:
    for theta in (15.0, 60.0):
        common = options(alpha=0.5, theta=theta)
        plain = start(PracFedEBAPlus.of_paper(**common), -1.0, client_class=PlainQuadratic)
        assert (
            start(PracFedEBAPlus.of_paper(**common), -1.0, client_class=ProbedQuadratic)
            == plain
        )
