"""SCAFFOLD: golden rounds, FedAvg where c is 0, and c = mean(c_k) whatever goes wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.drift.scaffold import ScaffoldClient
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import CONTROL_CHANGE
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.scaffold import Scaffold
from tests.helpers import Change, for_client, set_metrics
from tests.strategies.drift.corrected import (
    CURVES,
    M4,
    Federation,
    options,
    run_curves,
    seed_that_draws,
    sent,
)


def scaffold(num_rounds: int, num_clients: int = 2, **changes: Any) -> Federation:
    keywords = {"curves": M4[:num_clients]}
    strategy_keys = {k: changes.pop(k) for k in list(changes) if k in STRATEGY_KEYS}
    strategy = Scaffold(**options(num_clients, **strategy_keys))
    return run_curves(strategy, ScaffoldClient, num_rounds, **keywords, **changes)


STRATEGY_KEYS = {
    "clients_per_round",
    "seed",
    "quorum",
    "scaffold_mean",
    "scaffold_option",
    "server_learning_rate",
    "server_momentum",
}


def server_control(federation: Federation) -> float:
    """c as the next round would send it."""
    strategy = federation.strategy
    assert isinstance(strategy, Scaffold)
    return float(strategy.mean_vector("control", {"x": np.zeros(1)})["x"][0])


def assert_control_is_the_mean(federation: Federation, num_clients: int) -> None:
    own = federation.vector("control/x", num_clients)
    assert server_control(federation) == pytest.approx(np.mean(own), abs=1e-12)


def test_golden_rounds() -> None:
    """Round 1 by hand: -(0.19) / 0.2 = -0.95 and 0.36 / 0.2 = 1.8."""
    one, two = scaffold(1), scaffold(2)
    assert one.vector("control/x", 2) == pytest.approx([-0.95, 1.8])
    assert server_control(one) == pytest.approx(0.425)
    assert two.vector("control/x", 2) == pytest.approx([-1.0995, 1.7845])
    assert server_control(two) == pytest.approx(0.3425)
    assert two.models == pytest.approx([-0.085, -0.1535])
    assert sent(two, "control") == pytest.approx([0.0, 0.425])
    assert two.trace.reports[1].method_metrics["control_norm"] == pytest.approx(0.3425)


def test_c_is_a_mean_over_all_clients_also_those_not_asked() -> None:
    """Of four clients the first two are drawn: c is half of what it is of two."""
    found = scaffold(1, 4, clients_per_round=2, seed=seed_that_draws([0, 1]))
    assert [row["client"] for row in found.trace.reports[0].train.rows] == [0, 1]
    assert server_control(found) == pytest.approx(0.2125)
    assert found.models == pytest.approx([-0.085])


def test_option_gradient_is_the_gradient_at_the_received_model() -> None:
    """At 0: -1 and 2, with weight decay nothing more; at -0.085: -1.085 and 1.83."""
    one = scaffold(1, scaffold_option="gradient")
    two = scaffold(2, scaffold_option="gradient", weight_decay=0.5)
    assert one.vector("control/x", 2) == pytest.approx([-1.0, 2.0])
    x = two.models[0]
    expected = [x - 1 + 0.5 * x, 2 * (x + 1) + 0.5 * x]
    assert two.vector("control/x", 2) == pytest.approx(expected)


def test_own_number_of_steps_and_the_decayed_rate() -> None:
    """One epoch of batches of one: 1 and 3 steps; the rate of round 2 is 0.05.

    After 3 steps of 0.1 from 0 the second client is at -1 + 0.8^3 = -0.488.
    """
    work = {"local_steps": 0, "batch_size": 1, "counts": (1, 3)}
    one = scaffold(1, learning_rate_decay=0.5, **work)
    assert one.vector("control/x", 2) == pytest.approx([-1.0, 0.488 / 0.3])
    two = scaffold(2, learning_rate_decay=0.5, **work)
    # One corrected step: c_0+ = c_0 - c + (g - c_0 + c) = g, the plain gradient.
    assert two.kept(0)["control/x"] == pytest.approx(one.models[0] - 1.0)


def test_mean_is_plain_whatever_the_sizes() -> None:
    assert scaffold(2, counts=(1, 9)).models == pytest.approx([-0.085, -0.1535])


def test_means_by_rows_are_flambys_corrections() -> None:
    """FLamby sums up (w - w_k) / (K eta) instead of keeping c and c_k: the same models."""
    counts, steps, rate = (1, 3, 2, 4), 2, 0.1
    found = scaffold(4, 4, counts=counts, scaffold_mean="rows")
    w, models = 0.0, []
    corrections, reached = [0.0] * 4, [0.0] * 4
    for _ in range(4):
        for k, (a, c) in enumerate(M4):
            corrections[k] += (w - reached[k]) / (steps * rate) if models else 0.0
            y = w
            for _ in range(steps):
                y -= rate * (2 * a * (y - c) - corrections[k])
            reached[k] = y
        w = sum(n * y for n, y in zip(counts, reached, strict=True)) / sum(counts)
        models.append(w)
    assert found.models == pytest.approx(models)
    assert found.models[1:] != pytest.approx(scaffold(4, 4, counts=counts).models[1:])
    own = found.vector("control/x", 4)
    assert server_control(found) == pytest.approx(np.average(own, weights=counts))


def test_by_rows_clients_of_unknown_size_count_with_the_mean() -> None:
    """Of sizes 1, 3 and two of 2: c is (-0.95 + 3 * 1.8) / 8."""
    drawn = {"clients_per_round": 2, "seed": seed_that_draws([0, 1])}
    found = scaffold(1, 4, counts=(1, 3, 9, 9), scaffold_mean="rows", **drawn)
    assert server_control(found) == pytest.approx(4.45 / 8)
    assert found.models == pytest.approx([(0.19 - 3 * 0.36) / 4])


def test_server_rate_scales_the_step() -> None:
    found = scaffold(2, server_learning_rate=0.5)
    assert found.models[0] == pytest.approx(-0.0425)
    assert server_control(found) == pytest.approx(np.mean(found.vector("control/x", 2)))


class PinnedClient(ScaffoldClient):
    """Never moves its control variate."""

    def new_control(self, request: Any, own: Any, *others: Any) -> Any:
        return own


def test_pinned_at_zero_it_is_fedavg_with_equal_weights_bit_for_bit() -> None:
    pinned = run_curves(Scaffold(**options(4)), PinnedClient, 3, curves=M4)
    plain = run_curves(FedAvg(**options(4)), FedAvgClient, 3, curves=M4)
    assert pinned.models == plain.models
    assert scaffold(1, 4).models == plain.models[:1]
    assert scaffold(2, 4).models[1] != plain.models[1]


@settings(max_examples=15, deadline=None)
@given(
    curves=CURVES,
    per_round=st.integers(1, 4),
    seed=st.integers(0, 50),
    option=st.sampled_from(["steps", "gradient"]),
)
def test_c_stays_the_mean_of_the_clients_own(
    curves: list[tuple[float, float]], per_round: int, seed: int, option: Any
) -> None:
    strategy = Scaffold(
        **options(4, clients_per_round=per_round, seed=seed), scaffold_option=option
    )
    found = run_curves(strategy, ScaffoldClient, 3, curves=curves)
    assert_control_is_the_mean(found, 4)


def test_at_a_common_point_where_gradients_cancel_nothing_moves() -> None:
    """-1/3 minimises the sum. FedAvg drifts off it; with all c_k known SCAFFOLD stays."""
    still = -1.0 / 3.0
    drifted = run_curves(FedAvg(**options()), FedAvgClient, 1, x=still)
    assert abs(drifted.models[0] - still) > 1e-3
    settled = scaffold(60)
    assert settled.models[-1] == pytest.approx(still, abs=1e-3)


def nan_change(content: RecordDict, prefix: str) -> None:
    content[prefix + CONTROL_CHANGE] = to_record({"x": np.array([np.nan])})


def other_shape(content: RecordDict, prefix: str) -> None:
    content[prefix + CONTROL_CHANGE] = to_record({"x": np.zeros(2)})


def no_change(content: RecordDict, prefix: str) -> None:
    del content[prefix + CONTROL_CHANGE]


@pytest.mark.parametrize("change", [nan_change, other_shape, no_change])
@pytest.mark.parametrize("tampered", [1, 2])
def test_a_rejected_reply_moves_c_on_neither_side(change: Change, tampered: int) -> None:
    found = scaffold(
        tampered, tamper=for_client(1, "hosted", change), tampered_rounds=[tampered]
    )
    assert len(found.trace.reports[-1].train.rejections) == 1
    assert_control_is_the_mean(found, 2)
    before = scaffold(tampered - 1).vector("control/x", 2)[1] if tampered > 1 else 0.0
    assert found.vector("control/x", 2)[1] == before
    later = scaffold(
        tampered + 2, tamper=for_client(1, "hosted", change), tampered_rounds=[tampered]
    )
    assert_control_is_the_mean(later, 2)


def no_replies_of(*clients: int) -> Callable[[list[Message]], list[Message]]:
    def tamper(replies: list[Message]) -> list[Message]:
        return [reply for k, reply in enumerate(replies) if k not in clients]

    return tamper


@pytest.mark.parametrize("tampered", [1, 2])
def test_a_round_below_the_quorum_moves_nothing(tampered: int) -> None:
    """Client 0 answered, and stored; the round did not count, so it starts over."""
    missed = {"tamper": no_replies_of(1), "tampered_rounds": [tampered], "quorum": 2}
    found = scaffold(tampered, **missed)
    expected = scaffold(tampered - 1) if tampered > 1 else None
    whole = expected.vector("control/x", 2) if expected else [0.0, 0.0]
    assert found.vector("control/x", 2) == whole
    assert server_control(found) == pytest.approx(np.mean(whole))
    # The rounds that follow are those of a run in which it never happened.
    assert scaffold(tampered + 2, **missed).models[-1] == scaffold(tampered + 1).models[-1]


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_new_model_with_infinity_moves_nothing() -> None:
    def huge(content: RecordDict, prefix: str) -> None:
        content[f"{prefix}arrays"] = to_record({"x": np.array([1.5e308])})

    def both(replies: list[Message]) -> list[Message]:
        return list(
            for_client(0, "hosted", huge)(list(for_client(1, "hosted", huge)(replies)))
        )

    found = scaffold(1, tamper=both)
    assert found.models == [0.0]
    assert found.vector("control/x", 2) == [0.0, 0.0]
    assert server_control(found) == 0.0


def test_a_client_without_examples_takes_no_part() -> None:
    nothing = for_client(1, "hosted", set_metrics(num_examples=0))
    found = scaffold(1, tamper=nothing)
    assert found.models == pytest.approx([0.19])
    assert server_control(found) == pytest.approx(-0.95 / 2)
    empty = scaffold(2, counts=(1, 0))
    assert empty.kept(1).get("control/x", 0.0) == 0.0
    assert_control_is_the_mean(empty, 2)


def test_hosted_on_one_node_it_gives_the_same_bits() -> None:
    single, hosted = scaffold(3, 4), scaffold(3, 4, num_nodes=1)
    assert single.models == hosted.models
    assert [single.kept(k) for k in range(4)] == [hosted.kept(k) for k in range(4)]


def test_members_that_come_later_join_with_zero_and_leavers_keep_their_share() -> None:
    """By node: 2 clients, then 4, then 3; c is the mean over all four that ever were."""
    # The newcomers' first updates are far longer than those of the two before.
    strategy = Scaffold(fraction_evaluate=0.0, seed=0, max_update_norm="off")

    found = run_curves(
        strategy,
        ScaffoldClient,
        4,
        curves=M4,
        present={1: [0, 1], 2: [0, 1], 3: [0, 1, 2, 3], 4: [0, 1, 2]},
    )
    assert strategy.num_known_clients == 4
    own = [found.kept(k).get("control/x", 0.0) for k in range(4)]
    assert server_control(found) == pytest.approx(np.mean(own))
    assert server_control(found) != 0.0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_server_rate(rate: float) -> None:
    with pytest.raises(ValueError, match=r"server_learning_rate = .*: expected"):
        Scaffold(server_learning_rate=rate)


def test_a_client_without_c_says_so() -> None:
    found = run_curves(FedAvg(**options(), max_failed_rounds=2), ScaffoldClient, 1)
    reasons = {r.reason for r in found.trace.reports[0].train.rejections}
    [reason] = {r.split(": ", 2)[-1] for r in reasons}
    assert reason.startswith("the message has no record control: use the strategy")
