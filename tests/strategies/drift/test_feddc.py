"""FedDC: golden rounds, FedDyn without its g terms, and what its server keeps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.drift.feddc import FedDCClient
from fedsuite.clients.drift.feddyn import FedDynClient
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    CONTROL,
    CONTROL_CHANGE,
    DRIFT,
)
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.feddc import FedDC
from fedsuite.strategies.drift.feddyn import FedDyn
from tests.helpers import for_client
from tests.strategies.drift.corrected import (
    CURVES,
    M4,
    Federation,
    curves_options,
    drift_reference,
    options,
    run_curves,
    seed_that_draws,
    sent,
)

ALPHA = 0.1


def feddc(num_rounds: int, num_clients: int = 2, **changes: Any) -> Federation:
    run = curves_options(num_clients, changes)
    keywords = {"feddc_alpha": ALPHA, **options(num_clients, **changes)}
    return run_curves(FedDC(**keywords), FedDCClient, num_rounds, **run)


def mean_of(federation: Federation, kind: str) -> float:
    strategy = federation.strategy
    assert isinstance(strategy, FedDC)
    return float(strategy.mean_vector(kind, {"x": np.zeros(1)})["x"][0])


def test_golden_rounds() -> None:
    """Round 1 by hand, as FedDyn's; g_k = -w_k / 0.2."""
    one, two = feddc(1), feddc(2)
    assert one.vector("drift/x", 2) == pytest.approx([0.189, -0.358])
    assert one.vector("control/x", 2) == pytest.approx([-0.945, 1.79])
    assert mean_of(one, CONTROL) == pytest.approx(0.4225)
    assert two.vector("drift/x", 2) == pytest.approx([0.147911, -0.404307], abs=1e-6)
    assert two.vector("control/x", 2) == pytest.approx([-1.162057, 1.599037], abs=1e-6)
    assert mean_of(two, CONTROL) == pytest.approx(0.218490, abs=1e-6)
    assert two.models == pytest.approx([-0.169, -0.340896], abs=1e-6)
    assert sent(two, CONTROL) == pytest.approx([0.0, 0.4225])


def test_means_are_over_all_clients_also_those_not_asked() -> None:
    found = feddc(1, 4, clients_per_round=2, seed=seed_that_draws([0, 1]))
    assert mean_of(found, CONTROL) == pytest.approx(0.21125)
    assert found.models == pytest.approx([-0.12675])


@settings(max_examples=20, deadline=None)
@given(
    curves=CURVES,
    per_round=st.integers(1, 4),
    seed=st.integers(0, 50),
    terms=st.booleans(),
    alpha=st.sampled_from([0.0, 0.02, 0.5]),
)
@example(
    curves=[(2.0, 0.0), (0.5, 2.0), (1.0, 2.0), (2.0, -1.5)],
    per_round=2,
    seed=46,
    terms=True,
    alpha=0.0,
)
@example(
    curves=[(1.0, 0.0), (1.0, 0.0), (2.0, 3.0), (1.0, 1.0)],
    per_round=3,
    seed=0,
    terms=False,
    alpha=0.0,
)
def test_follows_the_equations_with_any_participation(
    curves: Any, per_round: int, seed: int, terms: bool, alpha: float
) -> None:
    keywords = options(4, clients_per_round=per_round, seed=seed)
    strategy = FedDC(feddc_alpha=alpha, feddc_gradient_terms=terms, **keywords)
    found = run_curves(strategy, FedDCClient, 4, curves=curves)
    expected = drift_reference(found, curves, alpha, gradient_terms=terms)
    assert found.models == pytest.approx(expected, rel=1e-8, abs=1e-8)
    for kind in (CONTROL, DRIFT):
        mean = np.mean(found.vector(f"{kind}/x", 4))
        assert mean_of(found, kind) == pytest.approx(mean, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("per_round", [0, 2])
def test_without_gradient_terms_it_is_feddyn(per_round: int) -> None:
    dc = feddc(5, 4, clients_per_round=per_round, feddc_gradient_terms=False)
    strategy = FedDyn(feddyn_alpha=ALPHA, **options(4, clients_per_round=per_round))
    dyn = run_curves(strategy, FedDynClient, 5, curves=M4)
    assert dc.models == pytest.approx(dyn.models, rel=1e-12)
    lambdas = [-ALPHA * h for h in dc.vector("drift/x", 4)]
    assert lambdas == pytest.approx(dyn.vector("lambda/x", 4))
    assert not any("control" in m.content for m in dc.grid.sent)
    assert feddc(5, 4).models[1] != pytest.approx(dc.models[1], rel=1e-3)


class PinnedClient(FedDCClient):
    """Keeps nothing."""

    def save_state(self, request: Any, arrays: Any) -> dict[str, Any]:
        return {}


class PinnedFedDC(FedDC):
    """Keeps neither drift nor g."""

    def add_to_sum(self, kind: str, vector: Any) -> None:
        pass


def test_pinned_at_zero_with_alpha_0_it_is_fedavg_with_equal_weights() -> None:
    pinned = PinnedFedDC(feddc_alpha=0.0, **options(4))
    found = run_curves(pinned, PinnedClient, 3, curves=M4)
    plain = run_curves(FedAvg(**options(4)), FedAvgClient, 3, curves=M4)
    assert found.models == plain.models


def test_sizes_count_only_where_they_are_asked_to() -> None:
    assert feddc(3, counts=(1, 3)).models == pytest.approx(feddc(3).models)
    scaled = feddc(3, counts=(1, 3), size_scaled=True)
    expected = drift_reference(
        scaled, M4[:2], ALPHA, gradient_terms=True, factors=(0.5, 1.5)
    )
    assert scaled.models == pytest.approx(expected)
    assert scaled.models[1] != pytest.approx(feddc(3).models[1], rel=1e-2)


def nan_change(content: Any, prefix: str) -> None:
    content[prefix + CONTROL_CHANGE] = to_record({"x": np.array([np.nan])})


@pytest.mark.parametrize("tampered", [1, 2])
def test_a_rejected_reply_moves_neither_side(tampered: int) -> None:
    bad = {"tamper": for_client(1, "hosted", nan_change), "tampered_rounds": [tampered]}
    for num_rounds in (tampered, tampered + 2):
        found = feddc(num_rounds, **bad)
        for kind in (CONTROL, DRIFT):
            mean = np.mean(found.vector(f"{kind}/x", 2))
            assert mean_of(found, kind) == pytest.approx(mean)


def test_a_round_below_the_quorum_moves_nothing() -> None:
    found = feddc(3, quorum=2, tamper=lambda replies: replies[:1], tampered_rounds=[2])
    usual = feddc(2)
    assert [found.models[0], found.models[2]] == usual.models
    for name in ("drift/x", "control/x"):
        assert found.vector(name, 2) == usual.vector(name, 2)
    assert found.strategy.sums == usual.strategy.sums


def test_hosted_on_one_node_it_gives_the_same_bits() -> None:
    single, hosted = feddc(3, 4), feddc(3, 4, num_nodes=1)
    assert single.models == hosted.models
    assert [single.kept(k) for k in range(4)] == [hosted.kept(k) for k in range(4)]


@pytest.mark.parametrize("alpha", [-0.1, float("nan")])
def test_bad_alpha(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"feddc_alpha = .*: expected"):
        FedDC(feddc_alpha=alpha)
