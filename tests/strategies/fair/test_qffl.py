"""q-FFL: the golden round, the extremes, and losses that break a power."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.strategies.fair.qffl import QFFL, q_fedavg_weights
from tests.helpers import bits
from tests.strategies.fair.fair_rounds import (
    MODELS,
    PLAIN_MEAN,
    fair_round,
    final,
    plain_mean_run,
    quadratic_run,
    shares,
    three,
)


def test_golden_round() -> None:
    """By hand, L = 10, ||w - w_k||^2 = 0.04, 0.1, 0.05, q = 1.

    Delta = (-1, 0), (2, -6), (-1, 2), sum (0, -4); h = 4 + 5, 10 + 20, 5 + 10, sum 54;
    w = (0, 4 / 54).
    """
    trace = fair_round(QFFL(qffl_q=1.0, **three()))
    np.testing.assert_allclose(final(trace), [0, 4 / 54], atol=1e-7)
    # a_k = F_k is 0.5, 2, 1; the old model's weight is (54 - 35) / 54.
    np.testing.assert_allclose(shares(trace), [1 / 7, 4 / 7, 2 / 7], rtol=1e-9)
    old = trace.reports[0].metrics["weight_of_old_model"]
    assert old == pytest.approx(19 / 54, rel=1e-6)


def test_a_cut_share_leaves_the_old_model_its_weight() -> None:
    """The golden round's shares of 1, 4 and 2 sevenths; a half is the most here."""
    trace = fair_round(QFFL(qffl_q=1.0, max_share_ratio=1.5, **three()))
    np.testing.assert_allclose(shares(trace), [1 / 6, 1 / 2, 1 / 3], rtol=1e-6)
    old = trace.reports[0].metrics["weight_of_old_model"]
    assert old == pytest.approx(19 / 54, rel=1e-6)


def test_a_model_that_hardly_moves_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Momentum of 0.9 makes a change up to ten times as long: here 100 times b_k."""
    for longer, told in ((1.0, 0), (10.0, 1)):
        models = [(longer * a, longer * b) for a, b in MODELS]
        with caplog.at_level(logging.WARNING):
            trace = fair_round(QFFL(**three()), num_rounds=2, models=models)
        old = trace.reports[0].metrics["weight_of_old_model"]
        lines = [r.getMessage() for r in caplog.records if "old model" in r.getMessage()]
        assert len(lines) == told
        # b_k is 19 / 35 of a_k in the golden round.
        assert old == pytest.approx(19 * longer**2 / (19 * longer**2 + 35), rel=1e-6)
    assert lines[0].startswith("round 1: q-FFL keeps 98 % of the old model")


def test_numbers_of_examples_do_not_count() -> None:
    one = final(fair_round(QFFL(**three())))
    other = final(fair_round(QFFL(**three()), examples=(1, 1, 99)))
    assert bits({"w": one}) == bits({"w": other})


def test_known_learning_rate_needs_no_metric() -> None:
    """With L = 5 instead of 10: h = 1 + 2.5, 2.5 + 10, 1.25 + 5; Delta is halved."""
    strategy = QFFL(qffl_q=1.0, learning_rate=0.2, **three())
    trace = fair_round(strategy, extra=lambda client: {"learning-rate": 7.0 + client})
    np.testing.assert_allclose(final(trace), [0, 2 / 22.25], atol=1e-7)


def test_one_liar_does_not_set_the_learning_rate() -> None:
    trace = fair_round(
        QFFL(**three()), extra=lambda client: {"learning-rate": 0.1 if client else 1e-9}
    )
    np.testing.assert_allclose(final(trace), [0, 4 / 54], atol=1e-7)


def test_the_decayed_rate_is_used() -> None:
    """One client of loss F at w = 0: the step is Delta / h by hand, each round at its rate.

    The client holds W = 4 everywhere: F = 8 (w - 4)^2 / 4 = 2 (w - 4)^2 in the helper's
    loss. Two steps of rate r from w: w_k = 4 + (w - 4) (1 - r)^2.
    """
    trace = quadratic_run(QFFL(qffl_q=2.0, **three()), 2, values=[4.0] * 3, counts=[1] * 3)
    expected, found = 0.0, trace.weights
    for rate, weight in zip((0.3, 0.27), found, strict=True):
        loss = 2 * (expected - 4) ** 2
        update = (expected - 4) * (1 - (1 - rate) ** 2)
        # Four entries, all alike.
        b = 2 * 4 * update**2 / (loss * rate)
        expected -= update / (1 + b)
        assert weight == pytest.approx(expected, rel=1e-6)


def test_q_0_is_the_plain_mean_bit_for_bit() -> None:
    fair = quadratic_run(QFFL(qffl_q=0.0, **three()))
    plain = plain_mean_run()
    assert [bits(a) for a in fair.arrays] == [bits(a) for a in plain.arrays]
    assert fair.weights != quadratic_run(QFFL(qffl_q=0.5, **three())).weights
    np.testing.assert_allclose(final(fair_round(QFFL(qffl_q=0, **three()))), PLAIN_MEAN)


def test_larger_q_gives_the_worst_client_more() -> None:
    for made, most in ((QFFL, 2 / 3), (QFFL.of_paper, 1.0)):
        found = [fair_round(made(qffl_q=q, **three())) for q in (0, 0.5, 1, 5, 50)]
        weights = [shares(trace)[1] for trace in found]
        assert weights == sorted(weights)
        assert weights[0] == pytest.approx(1 / 3)
        assert weights[-1] == pytest.approx(most, abs=1e-6)


@pytest.mark.parametrize("losses", [(0, 0, 0), (0, 2, 1), (1e300, 1, 0), (1e308,) * 3])
@pytest.mark.parametrize("q", [0.001, 0.5, 15.0, 1e6])
def test_hostile_losses_keep_the_model_finite(losses: tuple[float, ...], q: float) -> None:
    new = final(fair_round(QFFL(qffl_q=q, **three()), losses=losses))
    assert np.isfinite(new).all()
    assert np.abs(new).max() <= 0.3


def test_negative_loss_is_refused_and_the_others_count() -> None:
    trace = fair_round(QFFL(qffl_q=0.0, **three()), losses=(-1.0, 2.0, 1.0))
    np.testing.assert_allclose(final(trace), [0.0, 0.05], atol=1e-7)
    [rejection] = trace.reports[0].train.rejections
    assert rejection.client_id == 0
    assert rejection.reason == "metric loss-before is -1: expected 0 to inf"


def test_one_client() -> None:
    """h = 10 (1 * 0.04 * 10 / 0.5 + 1) F: the step is 1 / 1.8 of the update."""
    options = three(num_clients=1)
    trace = fair_round(QFFL(**options), models=[(0.2, 0.0)], losses=[0.5], examples=[3])
    np.testing.assert_allclose(final(trace), [0.2 / 1.8, 0.0], rtol=1e-6)


def test_client_without_examples_is_left_out() -> None:
    trace = fair_round(QFFL(qffl_q=0.0, **three()), examples=(0, 5, 5))
    np.testing.assert_allclose(final(trace), [0.0, 0.05], atol=1e-7)
    assert shares(trace) == [0.0, 0.5, 0.5]


losses_and_lengths = st.integers(1, 6).flatmap(
    lambda size: st.tuples(
        st.lists(st.floats(0, 1e6), min_size=size, max_size=size),
        st.lists(st.floats(0, 1e3), min_size=size, max_size=size),
    )
)


@given(losses_and_lengths, st.floats(0, 20), st.floats(1e-4, 10))
def test_weights_are_those_of_the_paper(
    drawn: tuple[list[float], list[float]], q: float, rate: float
) -> None:
    losses, lengths = map(np.array, drawn)
    clients, sent = q_fedavg_weights(losses, lengths, q, rate)
    assert ((clients >= 0) & (clients <= 1)).all() and clients.max() == 1 and sent >= 0
    floor = losses + 1e-10
    scale = floor.max()
    # h_k of the paper, with F in units of the largest, against a_k + b_k.
    ratio = floor / scale
    h = q * ratio**q / floor * lengths / rate**2 + ratio**q / rate
    np.testing.assert_allclose(clients.sum() + sent, h.sum() * rate, rtol=1e-9)


@pytest.mark.parametrize("q", [-1.0, float("nan"), float("inf")])
def test_bad_q(q: float) -> None:
    with pytest.raises(ValueError, match=r"qffl_q = .*: expected"):
        QFFL(qffl_q=q)


def test_bad_arguments_of_the_function() -> None:
    ones = np.ones(2)
    with pytest.raises(ValueError, match="q = -1"):
        q_fedavg_weights(ones, ones, -1, 0.1)
    with pytest.raises(ValueError, match="learning_rate = 0"):
        q_fedavg_weights(ones, ones, 1, 0)
    with pytest.raises(ValueError, match="learning_rate = -1"):
        QFFL(learning_rate=-1)
