"""Survival: losses and scores by hand, and against lifelines."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter, KaplanMeierFitter, NelsonAalenFitter
from lifelines.utils import concordance_index
from torch import Tensor

from fedsuite.core.errors import ConfigError
from fedsuite.core.tasks import interval_times
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.survival import (
    Ties,
    cox_loss,
    discrete_survival,
    discrete_time_loss,
    loss,
    scores,
)
from fedsuite.training.survival_scores import (
    Steps,
    concordance,
    cox_survival,
    integrated_brier_score,
    kaplan_meier,
)

LOG2 = math.log(2.0)


def labels(*pairs: tuple[float, int]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.float32)


def drawn(seed: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times with many ties, events, and features."""
    draws = np.random.default_rng(seed)
    return (
        draws.integers(1, 15, rows).astype(float),
        draws.integers(0, 2, rows).astype(float),
        draws.normal(size=(rows, 3)),
    )


def test_cox_loss_by_hand() -> None:
    """exp(s) = 1, 2, 4 at times 1, 2, 3; the second is censored."""
    risks = torch.tensor([0.0, LOG2, 2 * LOG2])
    wanted = math.log(7 / 1) + math.log(4 / 4)
    found = cox_loss(risks, labels((1, 1), (2, 0), (3, 1)))
    assert float(found) == pytest.approx(wanted / 3)


def test_ties_by_hand() -> None:
    """exp(s) = 1 and 2 have events at time 1, and 4 is at risk."""
    risks, targets = torch.tensor([0.0, LOG2, 2 * LOG2]), labels((1, 1), (1, 1), (2, 0))
    breslow = math.log(7 / 1) + math.log(7 / 2)
    efron = math.log(7 / 1) + math.log((7 - 3 / 2) / 2)
    assert float(cox_loss(risks, targets, "breslow")) == pytest.approx(breslow / 3)
    assert float(cox_loss(risks, targets)) == pytest.approx(efron / 3)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_partial_likelihood_and_optimum_are_those_of_lifelines(ties: Ties) -> None:
    times, events, features = drawn(1)
    table = pd.DataFrame(features, columns=list("abc")).assign(T=times, E=events)
    if ties == "breslow":
        # lifelines has Efron's rule alone: times without ties are the same in both.
        table["T"] = times = times + np.arange(len(times)) / 1000
    fitted = CoxPHFitter().fit(table, "T", "E", fit_options={"precision": 1e-12})
    weights = torch.tensor(fitted.params_.to_numpy(), requires_grad=True)
    targets = torch.tensor(np.stack([times, events], 1))
    total = cox_loss(torch.tensor(features) @ weights, targets, ties) * len(times)
    assert -float(total.detach()) == pytest.approx(fitted.log_likelihood_, abs=1e-8)
    (gradient,) = torch.autograd.grad(total, weights)
    assert gradient.abs().max() < 1e-5


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["efron", "breslow"]), st.floats(-50, 50))
def test_cox_loss_knows_neither_order_nor_level(
    seed: int, ties: Ties, level: float
) -> None:
    times, events, features = drawn(seed, 20)
    risks = torch.tensor(features[:, 0])
    targets = torch.tensor(np.stack([times, events], 1))
    wanted = float(cox_loss(risks, targets, ties))
    order = torch.randperm(20)
    assert float(cox_loss(risks[order], targets[order], ties)) == pytest.approx(wanted)
    assert float(cox_loss(risks + level, targets, ties)) == pytest.approx(wanted)
    # A change of clock that keeps the order changes nothing.
    targets[:, 0] = targets[:, 0] ** 2
    assert float(cox_loss(risks, targets, ties)) == pytest.approx(wanted)


def test_large_risks_and_batches_without_events_stay_finite() -> None:
    risks = torch.tensor([500.0, -500.0, 500.0], requires_grad=True)
    for targets in (labels((1, 1), (1, 1), (1, 1)), labels((1, 0), (2, 0), (3, 0))):
        value = cox_loss(risks, targets)
        (gradient,) = torch.autograd.grad(value, risks)
        assert bool(value.isfinite()) and bool(gradient.isfinite().all())
    assert value.item() == 0.0 and not gradient.any()


def test_discrete_time_loss_by_hand() -> None:
    """Hazards 1/2 and 1/5 in intervals that end at 2 and 4."""
    odds = torch.tensor([[0.0, -2 * LOG2]])
    ends = torch.tensor([2.0, 4.0])

    def of(time: float, event: int) -> float:
        return math.exp(-float(discrete_time_loss(odds, labels((time, event)), ends)))

    assert of(0.0, 1) == of(2.0, 1) == pytest.approx(1 / 2)
    assert of(2.1, 1) == of(4.0, 1) == pytest.approx(1 / 2 * 1 / 5)
    assert of(5.0, 1) == of(3.0, 0) == of(9.0, 0) == pytest.approx(1 / 2 * 4 / 5)
    assert of(1.0, 0) == of(2.9, 0) == pytest.approx(1 / 2)
    assert of(0.9, 0) == pytest.approx(1.0)


def test_discrete_survival_by_hand() -> None:
    curve = discrete_survival(np.array([[0.0, -2 * LOG2]]), np.array([2.0, 4.0]))
    times = np.array([0.0, 1.9, 2.0, 4.0, 9.0])
    assert curve.at(times)[0] == pytest.approx([1, 1, 0.5, 0.4, 0.4])
    assert curve.at(times, left=True)[0] == pytest.approx([1, 1, 1, 0.5, 0.4])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_concordance_is_that_of_lifelines(seed: int) -> None:
    times, events, features = drawn(seed, 25)
    risks = features[:, 0].round(1)
    events[0], times[0], times[1] = 1, 1, 2
    wanted = concordance_index(times, -risks, events)
    assert concordance(times, events, risks) == pytest.approx(wanted, abs=1e-12)
    assert concordance(times, events, -risks) == pytest.approx(1 - wanted, abs=1e-12)


def test_concordance_by_hand() -> None:
    """Of four comparable pairs two are right, and one is tied."""
    times, events = np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 0.0, 1.0, 0.0])
    risks = np.array([3.0, 3.0, 1.0, 2.0])
    # 0 before 1 (tied), 0 before 2 (right), 0 before 3 (right), 2 before 1 and 3 (wrong).
    assert concordance(times, events, risks) == pytest.approx(2.5 / 5)
    assert math.isnan(concordance(times, np.zeros(4), risks))


def test_curves_are_those_of_lifelines() -> None:
    times, events, _ = drawn(4)
    ours = kaplan_meier(times, events).at(np.arange(16.0))
    theirs = KaplanMeierFitter().fit(times, events).predict(np.arange(16.0))
    assert ours == pytest.approx(theirs.to_numpy())
    # Of equal risks Breslow's hazard is Nelson and Aalen's.
    level = cox_survival(times, events, np.full(60, 7.0)).at(np.arange(1.0, 15.0))[0]
    aalen = NelsonAalenFitter(nelson_aalen_smoothing=False).fit(times, events)
    assert -np.log(level) == pytest.approx(aalen.predict(np.arange(1.0, 15.0)).to_numpy())


def test_integrated_brier_by_hand() -> None:
    """Two rows: an event at 2, and one seen until 4 with an event."""
    times, events = np.array([2.0, 4.0]), np.array([1.0, 1.0])
    half = Steps(np.array([0.0]), np.array([[0.5], [0.5]]), 1.0)
    assert integrated_brier_score(times, events, half) == pytest.approx(0.25)
    perfect = Steps(np.array([2.0, 4.0]), np.array([[0.0, 0.0], [1.0, 0.0]]), 1.0)
    assert integrated_brier_score(times, events, perfect) == 0.0
    # Censoring at 1 of the third row: G is 2/3 from 1 on, and weighs the others 3/2.
    times, events = np.array([2.0, 4.0, 1.0]), np.array([1.0, 1.0, 0.0])
    half = Steps(np.array([0.0]), np.full((3, 1), 0.5), 1.0)
    assert integrated_brier_score(times, events, half) == pytest.approx(0.25)
    wrong = Steps(np.array([2.0]), np.array([[1.0], [1.0], [0.0]]), 1.0)
    # From 2 to 4 the first row is 1 off: 3/2 of one of three rows, for half of the time.
    assert integrated_brier_score(times, events, wrong) == pytest.approx(0.25)
    assert math.isnan(integrated_brier_score(times, np.zeros(3), half))


def test_scores_of_a_task() -> None:
    names = ["concordance", "integrated-brier"]
    targets = labels((1, 1), (2, 1), (3, 1), (4, 0))
    options = TrainingOptions(loss="cox")
    found = scores(names, torch.tensor([[3.0], [2.0], [1.0], [0.0]]), targets, options)
    worse = scores(names, torch.tensor([[0.0], [1.0], [2.0], [3.0]]), targets, options)
    assert found["concordance"] == 1.0 and worse["concordance"] == 0.0
    assert found["integrated-brier"] < worse["integrated-brier"]
    in_time = TrainingOptions(loss="discrete-time", interval_ends="1, 2, 3")
    odds = torch.tensor([[9.0, 0, 0], [-9, 9, 0], [-9, -9, 9], [-9, -9, -9]])
    found = scores(names, odds, targets, in_time)
    assert found["concordance"] == 1.0
    assert found["integrated-brier"] == pytest.approx(0.0, abs=1e-3)
    lost = scores(names, torch.full((4, 1), math.nan), targets, options)
    assert all(math.isnan(value) for value in lost.values())


def test_wrong_widths_and_ends_are_refused() -> None:
    targets, features = labels((1, 1), (2, 0)), torch.zeros(2, 3)
    cox = loss("cox", TrainingOptions(loss="cox"), targets)
    with pytest.raises(
        ConfigError, match="has 1 outputs for each row, and this one gives 3"
    ):
        cox(torch.nn.Identity(), features, targets)
    assert interval_times("1, 2.5") == (1.0, 2.5)
    for text in ("", "2, 1", "0, 1", "1, inf", "a"):
        with pytest.raises(ConfigError, match="interval-ends"):
            interval_times(text)
