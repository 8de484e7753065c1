"""FedALA: the golden weight, when learning ends, and where it is FedAvg."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsuite.clients.personal.fedala import MOST_PASSES, FedALAClient, steady
from fedsuite.messages.records import Reply, Request
from fedsuite.models.arrays import model_arrays
from tests.helpers import Trace, bits, final_bits, play
from tests.strategies.personal.by_hand import Answered, train_once

TOLD = {"ala-layers": 2, "ala-rate": 1.0, "ala-rows": 0.8}
KEYS: dict[str, Any] = {"model": "mlp", "hidden_width": 16, "partitioner": "dirichlet"}
OWN = {"model/x": 0.0}


def taken(kept: dict[str, float] | None = None, **changes: Any) -> Answered:
    """Return one training of a client that keeps 0, receives 1, and is best at 0.2."""
    told = {**TOLD, "ala-rate": changes.pop("rate", 1.0)}
    options = {"received": 1.0, "centre": 0.2, "batch_size": 0, **changes}
    return train_once(FedALAClient, told, kept, **options)


def test_golden_weight() -> None:
    """By hand: the gradient at 1 is 0.8 and the gap 1, so W = 0.2 and the mixture 0.2."""
    found = taken(OWN)
    assert found.kept == pytest.approx({"model/x": 0.2, "weights/x": 0.2})
    assert found.sent == pytest.approx(0.2)


def test_later_one_pass_from_the_weights_that_were_kept() -> None:
    """By hand: the mixture is 0.5, W = 0.5 - 0.5 x 0.3, and a step of 0.1 follows."""
    found = taken({**OWN, "weights/x": 0.5}, rate=0.5, learning_rate=0.1)
    assert found.kept["weights/x"] == pytest.approx(0.35)
    assert found.sent == pytest.approx(0.35 - 0.1 * 0.15)
    # Of two mini-batches the second starts from the mixture that the first one left.
    two = taken({**OWN, "weights/x": 0.5}, rate=0.5, batch_size=1)
    assert two.kept["weights/x"] == pytest.approx(0.35 - 0.5 * 0.15)


def test_weights_are_clipped_and_what_is_equal_has_none() -> None:
    assert taken(OWN, centre=-3.0).kept["weights/x"] == 0.0
    assert taken(OWN, centre=3.0).kept["weights/x"] == 1.0
    assert "weights/x" not in taken({"model/x": 1.0}).kept


def test_the_optimiser_moves_nothing_while_weights_learn() -> None:
    options = {"momentum": 0.9, "weight_decay": 0.5, "learning_rate": 0.1}
    kept = taken({**OWN, "weights/x": 0.5}, rate=0.5, **options).kept
    assert kept["weights/x"] == pytest.approx(0.35)
    assert kept["model/x"] == pytest.approx(0.35 - 0.1 * (0.15 + 0.5 * 0.35))


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ([0.0] * 10, False),
        ([9.0] + [0.0] * 10, True),
        ([0.0] * 10 + [1.0], False),
        ([0.0, 1.0] * 20, False),
        ([0.0, 1.0] * (MOST_PASSES // 2), True),
    ],
)
def test_the_first_learning_ends(losses: Sequence[float], ends: bool) -> None:
    assert steady(losses) is ends


@settings(max_examples=25, deadline=None)
@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 1), st.floats(0.01, 5))
def test_weights_stay_between_0_and_1(
    own: float, centre: float, weight: float, rate: float
) -> None:
    kept = {"model/x": own, "weights/x": weight}
    found = taken(kept, centre=centre, rate=rate, learning_rate=1e-9).kept
    assert 0.0 <= found["weights/x"] <= 1.0
    # The mixture lies between both models.
    low, high = sorted((own, 1.0))
    assert low - 1e-6 <= found["model/x"] <= high + 1e-6


def losses(trace: Trace) -> list[list[float]]:
    rounds = [report.evaluate for report in trace.reports]
    return [[row["global_loss"] for row in found.rows] for found in rounds if found]


def test_without_a_rate_it_is_fedavg_bit_for_bit() -> None:
    plain = final_bits(method="fedavg", **KEYS)
    assert final_bits(method="fedala", ala_rate=0.0, **KEYS) == plain
    assert final_bits(method="fedala", **KEYS) != plain


def test_the_first_round_is_fedavgs_bit_for_bit() -> None:
    first, *later = play(method="fedala", **KEYS).arrays
    plain, *plain_later = play(method="fedavg", **KEYS).arrays
    assert bits(first) == bits(plain)
    assert bits(later[0]) != bits(plain_later[0])


@pytest.mark.parametrize(("layers", "count"), [(1, 1), (2, 2), (3, 3), (0, 6), (99, 6)])
def test_so_many_arrays_from_the_top_are_mixed(
    layers: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[bool]] = []
    train = FedALAClient.train_locally

    def watched(client: FedALAClient, request: Request, *args: Any, **options: Any) -> Any:
        if not args and request.server_round == 2:
            sent = request.arrays["arrays"]
            now = model_arrays(client.model)
            started.append([bool((now[name] == sent[name]).all()) for name in now])
        return train(client, request, *args, **options)

    monkeypatch.setattr(FedALAClient, "train_locally", watched)
    play(method="fedala", ala_layers=layers, num_rounds=2, **KEYS)
    assert started == [[True] * (6 - count) + [False] * count] * 4


def test_clients_are_scored_with_the_model_of_their_last_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: dict[int, dict[str, bytes]] = {}
    scored: dict[int, list[dict[str, bytes]]] = {}
    train, evaluation = FedALAClient.on_train, FedALAClient.evaluation

    def trained(client: FedALAClient, request: Request) -> Reply:
        reply = train(client, request)
        sent[client.client_id] = bits(reply.arrays["arrays"])
        return reply

    def watched(client: FedALAClient, model: nn.Module | None = None) -> Reply:
        found = bits(model_arrays(model or client.model))
        scored.setdefault(client.client_id, []).append(found)
        return evaluation(client, model)

    monkeypatch.setattr(FedALAClient, "on_train", trained)
    monkeypatch.setattr(FedALAClient, "evaluation", watched)
    trace = play(method="fedala", num_rounds=2, evaluate_every=2, **KEYS)
    last = bits(trace.arrays[-1])
    assert scored == {client: [last, sent[client]] for client in range(4)}
