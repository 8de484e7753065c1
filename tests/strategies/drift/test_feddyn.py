"""FedDyn: golden rounds, FedProx where lambda is 0, and H = mean(lambda_k)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.drift.feddyn import FedDynClient
from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.messages.records import NUM_EXAMPLES, Reply, Request
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.feddyn import FedDyn
from fedsuite.strategies.drift.fedprox import FedProx
from tests.helpers import for_client, set_arrays
from tests.strategies.drift.corrected import (
    CURVES,
    M4,
    Federation,
    curves_options,
    drift_reference,
    options,
    run_curves,
    seed_that_draws,
)

ALPHA = 0.1


class Unscored(FedDynClient):
    """Answers an evaluation without one: the loss of a curve is no cross-entropy."""

    def on_evaluate(self, request: Request) -> Reply:
        return Reply(metrics={NUM_EXAMPLES: 1})


def feddyn(
    num_rounds: int,
    num_clients: int = 2,
    client_class: type[FedDynClient] = FedDynClient,
    **changes: Any,
) -> Federation:
    run = curves_options(num_clients, changes)
    strategy = FedDyn(
        feddyn_alpha=ALPHA, **options(num_clients, max_failed_rounds=9, **changes)
    )
    return run_curves(strategy, client_class, num_rounds, **run)


def h_of(federation: Federation, alpha: float = ALPHA) -> float:
    """H = -alpha mean(h_k), from what the server keeps."""
    strategy = federation.strategy
    assert isinstance(strategy, FedDyn)
    return -alpha * float(strategy.mean_vector("drift", {"x": np.zeros(1)})["x"][0])


def test_golden_rounds() -> None:
    """Round 1 by hand: 0.1, then 0.1 + 0.1 (0.9 - 0.01); the step is doubled."""
    one, two = feddyn(1), feddyn(2)
    assert one.vector("lambda/x", 2) == pytest.approx([-0.0189, 0.0358])
    assert h_of(one) == pytest.approx(0.00845)
    assert two.vector("lambda/x", 2) == pytest.approx([-0.040637, 0.064909], abs=1e-6)
    assert h_of(two) == pytest.approx(0.012136, abs=1e-6)
    assert two.models == pytest.approx([-0.169, -0.327221], abs=1e-6)


def test_h_is_a_mean_over_all_clients_also_those_not_asked() -> None:
    found = feddyn(1, 4, clients_per_round=2, seed=seed_that_draws([0, 1]))
    assert h_of(found) == pytest.approx(0.004225)
    assert found.models == pytest.approx([-0.12675])


def test_it_reaches_the_optimum_of_the_sum() -> None:
    """FedAvg ends at -17/55 with these steps."""
    plain = run_curves(FedAvg(**options()), FedAvgClient, 200)
    assert plain.models[-1] == pytest.approx(-17 / 55, abs=1e-3)
    assert feddyn(200).models[-1] == pytest.approx(-1 / 3, abs=1e-3)


def test_first_round_is_a_doubled_step_of_fedprox() -> None:
    prox = run_curves(
        FedProx(proximal_mu=ALPHA, **options(4)), FedProxClient, 1, curves=M4, x=0.5
    )
    strategy = FedDyn(feddyn_alpha=ALPHA, **options(4))
    dynamic = run_curves(strategy, FedDynClient, 1, curves=M4, x=0.5)
    assert dynamic.models[0] == pytest.approx(2 * prox.models[0] - 0.5)


class PinnedClient(FedDynClient):
    """Keeps no lambda."""

    def save_state(self, request: Any, arrays: Any) -> dict[str, Any]:
        return {}


class PinnedFedDyn(FedDyn):
    """Keeps no H."""

    def new_mean_vector(self, kind: str, arrays: Any) -> Any:
        return {}


def test_pinned_at_zero_it_is_fedprox_bit_for_bit() -> None:
    pinned = PinnedFedDyn(feddyn_alpha=ALPHA, **options(4))
    found = run_curves(pinned, PinnedClient, 3, curves=M4)
    prox = FedProx(proximal_mu=ALPHA, **options(4))
    assert found.models == run_curves(prox, FedProxClient, 3, curves=M4).models


@settings(max_examples=20, deadline=None)
@given(
    curves=CURVES,
    per_round=st.integers(1, 4),
    seed=st.integers(0, 50),
    alpha=st.sampled_from([0.02, 0.1, 0.5]),
)
def test_follows_the_equations_with_any_participation(
    curves: Any, per_round: int, seed: int, alpha: float
) -> None:
    keywords = options(4, clients_per_round=per_round, seed=seed)
    found = run_curves(
        FedDyn(feddyn_alpha=alpha, **keywords), FedDynClient, 4, curves=curves
    )
    expected = drift_reference(found, curves, alpha, gradient_terms=False)
    assert found.models == pytest.approx(expected, rel=1e-9, abs=1e-9)
    mean = np.mean(found.vector("lambda/x", 4))
    assert h_of(found, alpha) == pytest.approx(mean, rel=1e-9, abs=1e-9)


def test_sizes_count_only_where_they_are_asked_to() -> None:
    """Sizes 1 and 3: alpha is 0.2 and 0.1 / 1.5. Round 1 by hand: 0.188, -0.358667."""
    assert feddyn(2, counts=(1, 3)).models == pytest.approx(feddyn(2).models)
    scaled = feddyn(3, counts=(1, 3), size_scaled=True)
    assert scaled.models[0] == pytest.approx(0.188 - 0.2 - 0.1 * (1.6 - 0.02 / 1.5))
    expected = drift_reference(
        scaled, M4[:2], ALPHA, gradient_terms=False, factors=(0.5, 1.5)
    )
    assert scaled.models == pytest.approx(expected)
    assert feddyn(1, size_scaled=True).models == pytest.approx([-0.169])


def test_sizes_are_asked_for_once_and_of_all() -> None:
    found = feddyn(3, 4, size_scaled=True, clients_per_round=2)
    kinds = [message.metadata.message_type for message in found.grid.sent]
    assert kinds.count("query.count_examples") == 4
    sent = [
        m.content["config"]["mean-examples"]
        for m in found.grid.sent
        if "train" in m.metadata.message_type
    ]
    assert set(sent) == {1.0}


@pytest.mark.parametrize("lost", [1, 2])
def test_a_round_below_the_quorum_moves_nothing(lost: int) -> None:
    def one_only(replies: list[Any]) -> list[Any]:
        return replies[:1]

    strategy = FedDyn(feddyn_alpha=ALPHA, **options(quorum=2))
    found = run_curves(strategy, FedDynClient, 3, tamper=one_only, tampered_rounds=[lost])
    assert [*found.models[: lost - 1], *found.models[lost:]] == feddyn(2).models
    assert found.vector("lambda/x", 2) == feddyn(2).vector("lambda/x", 2)


def test_a_rejected_reply_moves_h_on_neither_side() -> None:
    bad = for_client(1, "hosted", set_arrays(x=np.array([np.inf])))
    found = feddyn(3, tamper=bad)
    assert h_of(found) == pytest.approx(np.mean(found.vector("lambda/x", 2)))
    assert feddyn(1, tamper=bad).vector("lambda/x", 2) == pytest.approx([-0.0189, 0.0])


def test_hosted_on_one_node_it_gives_the_same_bits() -> None:
    for scaled in (False, True):
        single = feddyn(3, 4, size_scaled=scaled, counts=(1, 2, 3, 1))
        hosted = feddyn(3, 4, size_scaled=scaled, counts=(1, 2, 3, 1), num_nodes=1)
        assert single.models == hosted.models
        assert [single.kept(k) for k in range(4)] == [hosted.kept(k) for k in range(4)]


def test_the_plain_mean_is_scored_where_it_is_asked_for() -> None:
    for wanted in (False, True):
        found = feddyn(
            2, client_class=Unscored, fraction_evaluate=1.0, evaluate_plain_mean=wanted
        )
        messages = [m for m in found.grid.sent if m.metadata.message_type == "evaluate"]
        records = [m.content.array_records for m in messages]
        assert all(("plain-mean" in r) == wanted for r in records)
        if wanted:
            plain = [float(r["plain-mean"]["x"].numpy()[0]) for r in records]
            models = [float(r["arrays"]["x"].numpy()[0]) for r in records]
            assert plain[::2] == pytest.approx([-0.0845, -0.205861], abs=1e-6)
            assert models[::2] == pytest.approx([-0.169, -0.327221], abs=1e-6)


def test_fedvarp_is_refused() -> None:
    with pytest.raises(ValueError, match="fedvarp = True cannot go with FedDyn"):
        FedDyn(fedvarp=True)


@pytest.mark.parametrize("alpha", [0.0, -0.1, float("nan")])
def test_bad_alpha(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"feddyn_alpha = .*: expected"):
        FedDyn(feddyn_alpha=alpha)


def test_a_client_without_alpha_says_so() -> None:
    found = run_curves(FedAvg(**options()), FedDynClient, 1)
    assert found.trace.reports[0].train is not None
    reason = found.trace.reports[0].train.rejections[0].reason
    assert "the message has no number feddyn-alpha: use the strategy" in reason
