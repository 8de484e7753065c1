"""The average that all methods take: identity, cap, refusals, and who refuses the keys."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from hypothesis import example, given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    ARRAYS,
    Arrays,
)
from fedsuite.rounds.average import Counted, capped_shares
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.rounds.robust_rules import liars_of
from fedsuite.rounds.round_settings import AVERAGE_KEYS
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.averaging.fedbuff import FedBuff
from fedsuite.strategies.drift.fedmpr import FedMPR
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.fair.qffl import QFFL
from fedsuite.strategies.fair.term import TERM
from tests.helpers import TamperingGrid, aggregated, matrix_app, run

RULES = ("median", "trimmed-mean", "geometric-median", "multi-krum")
TAKERS = [
    n for n, m in METHODS.items() if "aggregator" not in load_strategy(m).WITHOUT_EFFECT
]


def replies(values: Any, counts: Any = None) -> list[ClientReply]:
    counts = np.ones(len(values)) if counts is None else counts
    return [
        ClientReply(k, {ARRAYS: model(value)}, {}, float(count))
        for k, (value, count) in enumerate(zip(values, counts, strict=True))
    ]


def model(value: Any) -> Arrays:
    return {
        "weight": np.array(value, np.float32),
        "norm.running_var": np.full(2, abs(np.float32(value).flat[0])),
        "norm.num_batches_tracked": np.array(7, np.int64),
    }


def averaged(strategy: FedAvg, given: list[ClientReply]) -> Arrays:
    found = strategy.average(given)
    assert found is not None
    return found


SEVEN = [(1.0, 0.1), (2.0, 0.2), (1.5, 0.3), (1.7, 0.4), (1.1, 0.7), (1.4, 0.6), (9.0, 9.0)]


@given(st.lists(st.floats(-9, 9, width=32), min_size=7, max_size=7), st.integers(0, 9))
@pytest.mark.parametrize(
    "keys",
    [
        {"aggregator": "trimmed-mean", "liars": 0},
        {"aggregator": "multi-krum", "liars": 0},
        {"aggregator": "median", "liars": 0, "mix": "nearest"},
        {"max_client_weight": 1.0},
    ],
    ids=str,
)
def test_without_liars_it_is_the_mean_bit_for_bit(
    keys: dict[str, Any], values: list[float], seed: int
) -> None:
    counts = np.random.default_rng(seed).integers(1, 900, 7)
    given = replies([(value, 1.0) for value in values], counts)
    found = averaged(FedAvg(**keys), given)
    mean = averaged(FedAvg(), given)
    for name, array in mean.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize("aggregator", RULES)
@pytest.mark.parametrize("mix", ["none", "nearest"])
def test_a_rule_withstands_a_liar_that_the_mean_follows(aggregator: Any, mix: Any) -> None:
    given = replies([*SEVEN[:6], (1e38, -1e38)], [10] * 6 + [1000])
    found = averaged(FedAvg(aggregator=aggregator, mix=mix, liars=1), given)
    assert (np.abs(found["weight"] - [1.45, 0.4]) < 1).all()
    # The liar's variance is one of seven numbers, of which the middle one counts.
    assert 1.0 <= found["norm.running_var"][0] <= 2.0
    assert found["norm.num_batches_tracked"] == 7
    assert found["norm.num_batches_tracked"].dtype == np.int64
    assert np.abs(averaged(FedAvg(), given)["weight"]).max() > 1e37


def test_auto_leaves_liars_less_than_half() -> None:
    """A claim of 1,000 buys one liar of five a third: 1 / (2 x 1 + 1)."""
    strategy = FedAvg(aggregator="median", liars=1)
    capped = strategy.averaging.shares(np.array([1.0, 1, 1, 1, 1000]))
    np.testing.assert_allclose(capped, [1 / 6] * 4 + [1 / 3])
    weights = np.array([5.0, 3.0, 1.0, 1.0])
    np.testing.assert_allclose(
        FedAvg(max_client_weight=0.4).averaging.shares(weights), [0.4, 0.36, 0.12, 0.12]
    )
    assert FedAvg().averaging.shares(weights) is weights


def test_the_median_of_a_statistic_has_the_weights_of_the_models() -> None:
    """One of five has ten times the rows of each other, and counts a third: 2.5, not 3."""
    given = replies([(k, k) for k in (1.0, 2.0, 3.0, 4.0, 5.0)], [10, 1, 1, 1, 1])
    found = averaged(FedAvg(aggregator="median", liars=1), given)
    assert found["weight"].tolist() == [2.5, 2.5]
    assert found["norm.running_var"].tolist() == [2.5, 2.5]


@pytest.mark.parametrize("heavy", range(5))
def test_no_client_of_four_or_more_outweighs_the_others(heavy: int) -> None:
    """1,990 examples beside 20 each: half of the mean, whoever comes when."""
    values, counts = [(1.0, 0.0)] * 5, [20.0] * 5
    values[heavy], counts[heavy] = (3.0, 0.0), 1990.0
    given = replies(values, counts)
    assert averaged(FedAvg(), given)["weight"][0] == pytest.approx(2.0)
    free = averaged(FedAvg(max_client_weight=1.0), given)["weight"][0]
    assert free == pytest.approx((80 + 3 * 1990) / 2070)
    few = averaged(FedAvg(), replies(values[:3], [20.0, 20.0, 1990.0]))["weight"][0]
    assert few == pytest.approx(
        (np.array([20, 20, 1990]) @ [v[0] for v in values[:3]]) / 2030
    )


@pytest.mark.parametrize(
    ("counts", "binds"), [((99, 33, 33, 34), 0), ((101, 33, 33, 34), 1)]
)
def test_half_binds_just_beyond_half(counts: Any, binds: int) -> None:
    given = replies([(1.0, 0.0)] * 4, counts)
    strategy = FedAvg()
    assert averaged(strategy, given)["weight"][0] == pytest.approx(1.0)
    assert strategy.averaging._told == bool(binds)


@pytest.mark.parametrize("others", [1.98, 2.02])
def test_claims_move_a_share_to_twice_that_of_the_size(others: float) -> None:
    """Sizes 10, 20, 30, 40 give the first a tenth: what it claims gives it two tenths."""
    sizes = np.array([10.0, 20, 30, 40])
    lie = others * 10 / (1 - others / 10)  # So that its share is others / 10.
    weights = sizes * (lie * 0.9 / 10 / 1, 1, 1, 1)
    shares = TERM().averaging.shares(weights, sizes)
    first = weights[0] / weights.sum()
    assert first == pytest.approx(others / 10)
    if others < 2:
        assert shares is weights
    else:
        np.testing.assert_allclose(shares, [0.2, *(0.8 * sizes[1:] / 90)], rtol=1e-6)


@given(st.lists(st.tuples(st.floats(0, 1e300), st.floats(1, 1e6)), min_size=4, max_size=9))
@example([(0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (5e-324, 1.0)])
def test_the_bounds_hold_whatever_is_claimed(pairs: list[tuple[float, float]]) -> None:
    weights, sizes = map(np.array, zip(*pairs, strict=True))
    shares = TERM().averaging.shares(weights, sizes)
    if not weights.any():
        return
    with np.errstate(over="ignore"):
        shares = shares / shares.sum()
    usual = capped_shares(sizes, 0.5)
    assert (shares <= np.minimum(2 * usual, 0.5) * (1 + 1e-6)).all()


def test_who_has_no_weight_counts_nowhere() -> None:
    """Not even among the clients of whom a share may lie."""
    capped = FedAvg(aggregator="median").averaging.shares
    found = capped(np.array([9.0, 1, 1, 1, 1, 0, 0, 0, 0, 0]))
    np.testing.assert_allclose(found, [1 / 3] + [1 / 6] * 4 + [0] * 5)
    given = replies([*SEVEN[:3], *[(1e38, -1e38)] * 4], [1, 1, 1, 0, 0, 0, 0])
    trimmed = averaged(FedAvg(aggregator="trimmed-mean", liars=0.3), given)
    np.testing.assert_allclose(trimmed["weight"], [1.5, 0.2])


def test_mixing_comes_before_the_rule() -> None:
    """The mixed are 2.5, four times, and 4.5; the median of the points is 3."""
    given = replies([(1.0, 0), (2.0, 0), (3.0, 0), (4.0, 0), (9.0, 0)])
    plain = averaged(FedAvg(aggregator="median", liars=1), given)["weight"][0]
    mixed = averaged(FedAvg(aggregator="median", liars=1, mix="nearest"), given)
    assert plain == 3.0
    assert mixed["weight"][0] == 2.5


def test_multi_krum_keeps_weights() -> None:
    averaging = FedAvg(aggregator="multi-krum", liars=1, max_client_weight=1.0).averaging
    given = replies([(1.0, 0), (2.0, 0), (3.0, 0), (4.0, 0), (99.0, 0)], [1, 2, 1, 1, 1])
    counted = [Counted(r, r.num_examples, r.num_examples) for r in given]
    average = averaging.of_all(counted)
    assert average.weights == {0: 1, 1: 2, 2: 1, 3: 1, 4: 0}


def test_the_cap_holds_whatever_made_the_weights() -> None:
    """A loss of 10 beside ones of 1 buys all of FedEBA at temperature 0.1."""
    losses, sizes = [1.0, 1, 1, 1, 10], [10.0] * 5
    free = FedEBA.of_paper()
    free.server_round = 1
    assert free.weights_of(losses, sizes)[-1] == pytest.approx(1)
    bound = FedEBA(effective_clients=0.0, max_share_ratio="off", max_client_weight=0.4)
    bound.server_round = 1
    np.testing.assert_allclose(bound.weights_of(losses, sizes), [0.15] * 4 + [0.4])
    usual = FedEBA(effective_clients=0.0)
    usual.server_round = 1
    np.testing.assert_allclose(usual.weights_of(losses, sizes), [0.15] * 4 + [0.4])


def test_the_mean_takes_one_model_at_a_time() -> None:
    """It holds the heaviest beside the sum, and no other."""
    average = FedAvg().averaging.begin()
    for reply in replies(SEVEN, [1, 5, 2, 1, 1, 1, 1]):
        average.add(reply, reply.num_examples, reply.num_examples)
        assert not average._counted
    assert average._heaviest.reply.client_id == 1
    assert not FedAvg(max_client_weight=0.5).averaging.streams
    assert not TERM().averaging.streams and TERM.of_paper().averaging.streams


def test_shares_of_liars_are_rounded_up() -> None:
    assert [liars_of(0.2, n) for n in (1, 4, 5, 10, 11)] == [1, 1, 1, 2, 3]
    assert liars_of(3.0, 10) == 3 and liars_of(0.0, 10) == 0


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"aggregator": "multi-krum", "liars": 2}, "'multi-krum' needs 7 clients"),
        ({"aggregator": "median", "liars": 3}, "'median' needs 7 clients"),
        ({"aggregator": "median", "liars": 0.5}, "no rule withstands half"),
        ({"aggregator": "median", "liars": 1.5}, "set a whole number, or a share"),
        ({"liars": 0.1}, "has no effect with aggregator = 'mean'"),
        ({"mix": "nearest"}, "has no effect with aggregator = 'mean'"),
        ({"max-client-weight": 0.0}, "expected a number > 0"),
        ({"aggregator": "median", "dp-noise-multiplier": 1.0}, "is not known"),
        ({"max-client-weight": 0.5, "dp-noise-multiplier": 1.0}, "dp-max-weight bounds"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_in_one_line(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        Experiment.from_values({"method": "fedavg", "num-clients": 6, **keys})
    assert "\n" not in str(caught.value)
    assert any(key in str(caught.value) for key in keys)


def test_a_constructor_refuses_too() -> None:
    with pytest.raises(ValueError, match="needs 7 clients in a round where 2 may lie"):
        FedAvg(aggregator="multi-krum", liars=2, clients_per_round=6)
    with pytest.raises(ValueError, match=r"aggregator = .* has no effect with QFFL"):
        QFFL(aggregator="median")


@pytest.mark.parametrize(
    ("made", "idle"),
    [
        (lambda: FedMPR(max_client_weight=0.5), "max_client_weight"),
        (lambda: FedMPR(aggregator="median", liars=1), "liars"),
        (lambda: FedMPR(aggregator="geometric-median", liars=0.0), "liars"),
        (lambda: FedBuff(fedbuff_size_weights=False, max_client_weight=0.5), "max_client"),
        (
            lambda: FedBuff(fedbuff_size_weights=False, aggregator="median", liars=0),
            "liars",
        ),
    ],
)
def test_where_clients_count_alike_no_weight_is_limited(made: Any, idle: str) -> None:
    with pytest.raises(ValueError, match=rf"{idle}.* has no effect .* all count alike"):
        made()


def test_what_counts_alike_heeds_the_other_keys() -> None:
    FedMPR(aggregator="trimmed-mean", liars=1)
    FedMPR(aggregator="median", liars=1, mix="nearest")
    FedBuff(max_client_weight=0.5)
    FedAvg(aggregator="median", liars=1)
    given = {"method": "fedmpr", "aggregator": "median", "liars": 0.0}
    with pytest.raises(ConfigError, match=r"key liars = 0\.0 has no effect with method"):
        Experiment.from_values(given)


def test_who_takes_an_average_was_thought_of() -> None:
    """Of each such method the class that has its rule, or says so."""
    of_a_rule = {"WITHOUT_EFFECT", "aggregate", "combine", "take", "weight_of"}
    have = set()
    for name in TAKERS:
        bases = load_strategy(METHODS[name]).__mro__
        have.add(next(base.__name__ for base in bases if of_a_rule & vars(base).keys()))
    assert have == {
        *("FedAvg", "FedSGD", "Cyclic", "FedBuff", "FedMPR", "FedEBA", "TERM", "AFL"),
        *("AAggFF", "FedwAvg", "FedDISCO", "PartialAverage", "FedBABU", "LGFedAvg"),
        *("PFedMe", "FedAS", "FedPAC", "FedAKD"),
    }, "does its rule hold for robust averages? Else its WITHOUT_EFFECT is OWN_RULE"


def test_methods_of_another_rule_refuse_every_key() -> None:
    for name in METHODS:
        strategy = load_strategy(METHODS[name])
        others = {"fedeba-plus", "prac-fedeba-plus", "qffl", "fednova"}
        given = {"aggregator": "trimmed-mean", "liars": 0.1, "mix": "nearest"}
        given |= {"max-client-weight": 0.5, "fedbuff-size-weights": True}
        given |= {"method": name, "clients-per-round": 0}
        idle = [rule for rule in strategy.rules() if "method" in rule.keys and rule.idle]
        defaults = {key.name: key.default for key in strategy.KEYS}
        idle = [rule for rule in idle if rule.refuses(given, defaults)]
        refused = {rule.keys[0] for rule in idle} & set(AVERAGE_KEYS)
        if name in others:
            assert refused == {"aggregator", "liars", "mix"}
        elif name in ("lg-fedavg", "fedmpr"):
            assert refused == {"max-client-weight"}
        else:
            assert refused == (set() if name in TAKERS else set(AVERAGE_KEYS)), name


def test_a_round_of_too_few_keeps_the_model_and_says_so(caplog: Any) -> None:
    def only_two(messages: Any) -> Any:
        return messages[:2]

    app = matrix_app(values=(1.0, 2.0, 4.0), counts=(1, 1, 1))
    strategy = FedAvg(fraction_evaluate=0.0, aggregator="median", liars=1)
    trace = run(strategy, TamperingGrid(app, 3, only_two, rounds=(2,)), 3)
    assert trace.weights == [2.0, 2.0, 2.0]
    assert "2 good replies, aggregator = 'median' needs 3 clients" in caplog.text
    with pytest.raises(QuorumMissed):
        aggregated(TERM(aggregator="median", liars=1), {}, iter(replies(SEVEN[:2])))


def test_rows_have_the_weight_that_counted() -> None:
    """Multi-Krum keeps three of four; 8 / 3 clients' worth of weights 1, 2, 1."""
    app = matrix_app(values=(1.0, 2.0, 4.0, 100.0), counts=(1, 2, 1, 1))
    trace = run(FedAvg(fraction_evaluate=0.0), TamperingGrid(app, 4), 1)
    rows = trace.reports[0].train.rows
    assert [row["weight"] for row in rows] == [0.2, 0.4, 0.2, 0.2]
    # 100 is 50 of the lower medians, 2: it counts as one.
    assert [row["clipped"] for row in rows] == [0, 0, 0, 1]
    app = matrix_app(values=(1.0, 2.0, 4.0, 3.0, 100.0), counts=(1, 1, 1, 1, 1))
    keys = {"aggregator": "multi-krum", "liars": 1, "max_update_norm": "off"}
    strategy = FedAvg(fraction_evaluate=0.0, **keys)
    trace = run(strategy, TamperingGrid(app, 5), 1)
    assert [row["weight"] for row in trace.reports[0].train.rows] == [0.25] * 4 + [0.0]
    assert trace.weights == [2.5]
    bounded = FedAvg(fraction_evaluate=0.0, max_update_norm="median x 2")
    trace = run(bounded, TamperingGrid(app, 5), 1)
    assert [row["clipped"] for row in trace.reports[0].train.rows] == [0, 0, 0, 0, 1]


def test_rows_have_the_claim_where_less_of_it_counted() -> None:
    app = matrix_app(values=(1.0, 2.0, 4.0, 3.0, 5.0), counts=(1, 1, 1, 1, 500))
    trace = run(FedAvg(), TamperingGrid(app, 5), 1)
    for phase in (trace.reports[0].train, trace.reports[0].evaluate):
        assert [row["num_examples"] for row in phase.rows] == [1] * 5
        claims = [row.get("claimed_examples") for row in phase.rows]
        assert claims == [None] * 4 + [500]
        assert "claimed_examples" not in phase.means()


# Flower's own rules


def records(points: Any) -> list[RecordDict]:
    return [
        RecordDict(
            {
                "arrays": to_record({"w": point}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        for point in points
    ]


def test_flowers_krum_measures_rounding_where_ours_measures_distance() -> None:
    """Updates of 1e-4 on 1e5 weights of size 1: squared distances are 0.002."""
    multikrum = pytest.importorskip("flwr.serverapp.strategy.multikrum")
    from fedsuite.rounds.robust_rules import squared_distances

    stream = np.random.default_rng(0)
    sent = stream.normal(size=100_000)
    points = (sent + 1e-4 * stream.normal(size=(6, 100_000))).astype(np.float32)
    off = ~np.eye(6, dtype=bool)
    found = multikrum.compute_distances([ArrayRecord([point]) for point in points])
    assert found[off].min() < 0
    ours = squared_distances(points.astype(np.float64))[off]
    assert 0.0019 < ours.min() <= ours.max() < 0.0021


def test_flowers_trimmed_mean_of_four_trims_nobody_where_ours_does() -> None:
    trimmed = pytest.importorskip("flwr.serverapp.strategy.fedtrimmedavg")
    four = np.array([[1.0], [2.0], [3.0], [1e6]], np.float32)
    theirs = trimmed.trim_mean(four, 0.2)
    np.testing.assert_allclose(theirs, four.mean(axis=0))
    found = averaged(
        FedAvg(aggregator="trimmed-mean", liars=0.2), replies([(v[0], 0.0) for v in four])
    )
    assert found["weight"][0] == 2.5
