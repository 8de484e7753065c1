"""pFedCK: clusters, losses and a round by hand, FedAvg beside Standalone, false replies."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays
from torch import nn

from fedsuite.clients.personal.pfedck import PFedCKClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.personal.pfedck import (
    PFedCK,
    average_linkage,
    cosine_distances,
)
from tests.helpers import aggregated, bits, for_client, play, run_digits, set_arrays
from tests.helpers import digits_experiment as digits

CHANGES = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.2]])
KEYS: dict[str, Any] = {"model": "mlp", "hidden_width": 16, "partitioner": "dirichlet"}
ALONE = {"pfedck_logit_weight": 0.0, "pfedck_feature_weight": 0.0}


def test_golden_cosines_and_clusters() -> None:
    found = 1 - cosine_distances(CHANGES)
    expected = [0.993884, -0.980581, -0.952926]
    assert found[[0, 0, 1], [1, 2, 2]] == pytest.approx(expected, abs=1e-6)
    distances = cosine_distances(CHANGES)
    assert average_linkage(distances, 2) == [[0, 1], [2]]
    assert average_linkage(distances, 3) == [[0], [1], [2]]
    assert average_linkage(distances, 1) == [[0, 1, 2]]


def test_clusters_merge_by_mean_distance_and_ties_by_the_lowest_pair() -> None:
    """By hand: {0, 1} is at 5 from 2 on average, and 3 at 4.5 from 2."""
    distances = np.array([[0, 1, 4, 9], [1, 0, 6, 9], [4, 6, 0, 4.5], [9, 9, 4.5, 0.0]])
    assert average_linkage(distances, 2) == [[0, 1], [2, 3]]
    assert average_linkage(1 - np.eye(4), 2) == [[0, 1, 2], [3]]
    # {0, 1, 2} is at (3 + 3 + 12) / 3 = 6 from 3, and 4 is at 7.
    rows = [[0, 1, 2, 3, 20], [1, 0, 2, 3, 20], [2, 2, 0, 12, 20], [3, 3, 12, 0, 7]]
    uneven = np.array([*rows, [20.0, 20, 20, 7, 0]])
    assert average_linkage(uneven, 2) == [[0, 1, 2, 3], [4]]


def test_a_client_that_did_not_move_is_like_nobody() -> None:
    distances = cosine_distances(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1e-3]]))
    assert distances[0].tolist() == [1.0, 1.0, 1.0]


@given(numpy_arrays(np.float64, (6, 3), elements=st.floats(-5, 5)), st.integers(1, 6))
def test_clusters_divide_the_clients(changes: np.ndarray, count: int) -> None:
    found = average_linkage(cosine_distances(changes), count)
    assert len(found) == count
    assert sorted(row for rows in found for row in rows) == list(range(6))


def strategy_after(replies: list[tuple[int, list[float], float]]) -> tuple[PFedCK, Arrays]:
    """Return the strategy and its mean after replies of clients that were sent 0."""
    strategy = PFedCK(pfedck_clusters=2)
    strategy.reports["train"] = PhaseReport("train", {})
    mean = aggregated(
        strategy,
        {"w": np.zeros(2)},
        iter(ClientReply(k, {ARRAYS: {"w": np.array(w)}}, {}, n) for k, w, n in replies),
    )
    assert mean is not None
    return strategy, mean


def test_golden_round() -> None:
    rows = [row.tolist() for row in CHANGES]
    strategy, mean = strategy_after([(k, row, 1.0) for k, row in enumerate(rows)])
    sent = {k: model["w"].tolist() for k, model in strategy.models.items()}
    assert sent[0] == sent[1] == pytest.approx([0.95, 0.05])
    assert sent[2] == pytest.approx([-1.0, 0.2])
    assert mean["w"] == pytest.approx([0.3, 0.1])
    own = strategy.train_exchange(mean, [1, 2, 7]).own
    assert [own[k][ARRAYS]["w"].tolist() for k in (1, 2)] == [sent[1], sent[2]]
    assert own[7][ARRAYS] is mean
    # Changes count from what each was sent: 0 and 2 move to the right, 1 to the left.
    strategy.combine(
        mean,
        [
            ClientReply(0, {ARRAYS: {"w": np.array([1.95, 0.05])}}, {}, 3.0),
            ClientReply(1, {ARRAYS: {"w": np.array([-0.05, 0.05])}}, {}, 1.0),
            ClientReply(2, {ARRAYS: {"w": np.array([0.0, 0.2])}}, {}, 1.0),
        ],
    )
    expected = (3 * 1.95 + 0.0) / 4
    assert strategy.models[2]["w"][0] == strategy.models[0]["w"][0] == expected


def test_weights_are_by_examples_and_state_comes_back() -> None:
    strategy, mean = strategy_after([(4, [1.0, 0.0], 3.0), (9, [2.0, 0.0], 1.0)])
    assert mean["w"].tolist() == [1.25, 0.0]
    arrays, scalars = strategy.state()
    other = PFedCK()
    other.restore(arrays, scalars)
    assert {k: m["w"].tolist() for k, m in other.models.items()} == {
        4: [1.0, 0.0],
        9: [2.0, 0.0],
    }
    assert bits(other.state()[0]) == bits(arrays) and other.state()[1] == scalars


def test_golden_losses() -> None:
    """Logits (2, 0) and (1, 0), features that differ by 1, 0 and 1, label 0."""
    data = Split(torch.zeros(1, 3), torch.zeros(1).long())
    client = PFedCKClient(nn.Linear(3, 2), data, data)
    client.heard = {
        "pfedck-logit-weight": 1.0,
        "pfedck-feature-weight": 1.0,
        "pfedck-temperature": 1.0,
    }
    theta = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[2.0, 0.0]])
    w = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    found = [float(client._taught(*pair, data.labels)) for pair in ((theta, w), (w, theta))]
    assert found == pytest.approx([0.876202, 1.047059], abs=1e-6)


def losses(**changes: Any) -> list[float]:
    report = play(**changes, **KEYS).reports[-1].evaluate
    assert report is not None
    return [float(row["loss"]) for row in report.rows]


def test_one_cluster_without_distillation_is_fedavg_beside_standalone() -> None:
    one = {"method": "pfedck", "pfedck_clusters": 1}
    plain = play(method="fedavg", **KEYS).arrays[-1]
    assert bits(play(**one, **ALONE, **KEYS).arrays[-1]) == bits(plain)
    assert losses(**one, **ALONE) == losses(method="standalone")
    for name in ALONE:
        changed = {**one, **ALONE, name: 1.0}
        assert bits(play(**changed, **KEYS).arrays[-1]) != bits(plain)
        assert losses(**changed) != losses(method="standalone")


def test_as_many_clusters_as_clients_exchange_nothing() -> None:
    """Without distillation the interactive model is then Standalone's too."""
    report = play(method="pfedck", pfedck_clusters=9, **ALONE, **KEYS).reports[-1].evaluate
    assert report is not None
    assert [row["global_loss"] for row in report.rows] == losses(method="standalone")


def test_both_models_stay_alike_in_their_first_training() -> None:
    taught = play(method="pfedck", num_rounds=1, pfedck_clusters=9, **KEYS)
    assert taught.reports[0].evaluate is not None
    for row in taught.reports[0].evaluate.rows:
        assert row["loss"] == row["global_loss"]


@settings(max_examples=10, deadline=None)
@given(st.floats(-3, 3), st.floats(-3, 3))
def test_a_teacher_gets_no_gradient(logit: float, feature: float) -> None:
    data = Split(torch.zeros(1, 3), torch.zeros(1).long())
    client = PFedCKClient(nn.Linear(3, 2), data, data)
    client.heard = {
        "pfedck-logit-weight": 1.0,
        "pfedck-feature-weight": 1.0,
        "pfedck-temperature": 2.0,
    }
    teacher = [torch.full((1, 2), x, requires_grad=True) for x in (feature, logit)]
    student = [torch.zeros(1, 2, requires_grad=True) for _ in range(2)]
    client._taught(
        (student[0], student[1]), (teacher[0], teacher[1]), data.labels
    ).backward()
    assert student[1].grad is not None
    assert all(part.grad is None for part in teacher)


def test_a_reply_of_another_shape_is_not_used() -> None:
    tamper = for_client(0, "hosted", set_arrays(weight=np.zeros(3, np.float32)))
    trace = run_digits(digits(method="pfedck", num_rounds=1, **KEYS), tamper=tamper)
    (rejection,) = [r for p in trace.reports[0].phases for r in p.rejections]
    assert rejection.client_id == 0
