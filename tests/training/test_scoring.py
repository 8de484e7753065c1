"""Scores beside the usual one: which model, on which data, under which name."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.data import Split
from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS, EVALUATE, Arrays, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from fedsuite.training import scoring
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.losses import cross_entropy
from fedsuite.training.scoring import Scoring, WholeTest
from tests.helpers import Trace, bits, digits_experiment, play

BOTH = {"score_whole_test": True, "score_trained": True}
ALL = {**BOTH, "score_training_data": True}
RECEIVED = "received_training_loss"


def rows(trace: Trace, phase: str, server_round: int = 2) -> list[dict[str, float]]:
    report = getattr(trace.reports[server_round - 1], phase)
    return [{k: float(v) for k, v in row.items()} for row in report.rows]


def test_nothing_is_added_unless_asked_for() -> None:
    trace = play(method="fedavg")
    assert set(rows(trace, "evaluate")[0]) == {"client", "num_examples", "loss", "accuracy"}
    assert "trained_accuracy" not in rows(trace, "train")[0]


def test_scoring_changes_no_bit_of_the_model() -> None:
    for method in ("fedavg", "fedakd"):
        plain, scored = play(method=method), play(method=method, **ALL)
        assert bits(plain.arrays[-1]) == bits(scored.arrays[-1])


def test_received_model_on_own_and_on_all_test_rows() -> None:
    """By hand: the global model after each round, on the rows of each client and on all."""
    trace = play(method="fedavg", **BOTH)
    experiment = digits_experiment()
    data = federated_data(experiment)
    model = experiment_model(experiment, data)
    load_arrays(model, trace.arrays[1])
    whole = evaluate_model(model, data.test_set())
    for row in rows(trace, "evaluate"):
        own = evaluate_model(model, data.client(int(row["client"])).test)
        assert (row["loss"], row["accuracy"]) == own
        assert (row["whole_test_loss"], row["whole_test_accuracy"]) == whole


def test_trained_models_differ_by_client_and_are_scored_before_the_average() -> None:
    trace = play(method="fedavg", **BOTH)
    found = rows(trace, "train")
    names = {"trained_loss", "trained_accuracy", "trained_whole_test_accuracy"}
    assert all(names <= set(row) for row in found)
    assert len({row["trained_whole_test_loss"] for row in found}) == 4
    # What is averaged is neither of them.
    shared = {row["whole_test_loss"] for row in rows(trace, "evaluate")}
    assert len(shared) == 1
    assert not shared & {row["trained_whole_test_loss"] for row in found}


def test_four_scores_of_a_method_with_a_private_model() -> None:
    for method in ("fedakd", "ditto"):
        for row in rows(play(method=method, **BOTH), "evaluate"):
            four = ("loss", "global_loss", "whole_test_loss", "global_whole_test_loss")
            assert len({row[name] for name in four}) == 4
    column = [
        row["global_whole_test_loss"]
        for row in rows(play(method="fedakd", **BOTH), "evaluate")
    ]
    assert len(set(column)) == 1


def pooled_loss(experiment: Experiment, arrays: Arrays, gamma: float = 0.0) -> float:
    """Return a model's focal loss over the training rows of all clients, as one set."""
    data = federated_data(experiment)
    model = experiment_model(experiment, data).eval()
    load_arrays(model, arrays)
    parts = [data.client(k).train for k in range(4)]
    features = torch.cat([part.features for part in parts])
    labels = torch.cat([part.labels for part in parts])
    with torch.no_grad():
        right = model(features).softmax(1)[torch.arange(len(labels)), labels]
    return float(-((1 - right) ** gamma * right.log()).mean())


@pytest.mark.parametrize("method", ["fedavg", "fedakd", "ditto"])
def test_loss_of_the_global_model_over_pooled_training_data(method: str) -> None:
    """By hand, after each round; clients are unequal: their plain mean is another."""
    trace = play(method=method, partitioner="power-law", score_training_data=True)
    experiment = digits_experiment(method=method, partitioner="power-law")
    assert len(trace.reports) == 3
    for report, arrays in zip(trace.reports, trace.arrays, strict=True):
        found = report.metrics["evaluate_received_training_loss"]
        assert found == pytest.approx(pooled_loss(experiment, arrays), rel=1e-5)
        assert report.evaluate is not None
        plain = report.evaluate.column(RECEIVED)
        assert found != pytest.approx(sum(plain) / len(plain), rel=1e-4)


def test_training_losses_are_pooled_by_training_rows_not_by_test_rows() -> None:
    report = PhaseReport("evaluate")
    for client, (tests, rows, loss) in enumerate(((9, 300, 0.5), (1, 100, 0.1))):
        metrics = {"loss": loss, "received-training-loss": loss, "training-examples": rows}
        report.add(ClientReply(client, {}, metrics, tests, stored_state=False))
    means = report.means()
    assert means["loss"] == pytest.approx(0.46)
    assert means["received_training_loss"] == pytest.approx(0.4)


def test_training_data_are_scored_by_the_loss_that_is_trained_on() -> None:
    changes: dict[str, Value] = {"loss": "focal", "focal_gamma": 1.5}
    trace = play(method="fedavg", score_training_data=True, **changes)
    found = trace.reports[-1].metrics["evaluate_received_training_loss"]
    by_hand = pooled_loss(digits_experiment(**changes), trace.arrays[-1], gamma=1.5)
    assert found == pytest.approx(by_hand, rel=1e-5)


def test_scoring_training_data_leaves_no_trace() -> None:
    layers = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
    model = nn.Sequential(*layers).train()
    layers[1].eval()
    arrays = model_arrays(model)
    request = Request(EVALUATE, 0, {ARRAYS: arrays}, {})
    before = torch.get_rng_state()
    data = Split(torch.eye(3), torch.arange(3))
    told = Scoring(score_training_data=True).received(model, request, data, cross_entropy)
    assert told["training-examples"] == 3
    by_hand = evaluate_model(model, data)[0]
    assert told["received-training-loss"] == pytest.approx(by_hand)
    assert bits(model_arrays(model)) == bits(arrays)
    assert [layer.training for layer in layers] == [True, False, True]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("method", ["standalone", "fedper"])
def test_who_receives_no_whole_model_has_no_training_loss_to_tell(method: str) -> None:
    with pytest.raises(ConfigError, match="score-training-data = True has no"):
        digits_experiment(method=method, score_training_data=True)


def test_training_data_are_scored_in_the_rounds_that_are_evaluated() -> None:
    trace = play(method="fedavg", score_training_data=True, evaluate_every=2)
    key = "evaluate_received_training_loss"
    assert [r.server_round for r in trace.reports if key in r.metrics] == [2, 3]
    assert not any(
        RECEIVED in row for r in trace.reports if r.train for row in r.train.rows
    )


def test_standalone_is_scored_on_the_whole_test_part_too() -> None:
    found = rows(play(method="standalone", score_whole_test=True), "evaluate")
    assert len({row["whole_test_loss"] for row in found}) == 4


def test_networks_with_the_same_bytes_have_scores_of_their_own() -> None:
    """Eight ones: as one layer all classes are equal, as two the scores are others."""
    networks = (
        nn.Linear(4, 2, bias=False),
        nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False)),
        nn.Linear(2, 4, bias=False),
    )
    whole = WholeTest(Split(torch.ones(3, 4), torch.zeros(3, dtype=torch.int64)))
    for network in networks[:2]:
        for parameter in network.parameters():
            nn.init.ones_(parameter)
    found = [whole.scores(network)["whole-test-loss"] for network in networks[:2]]
    assert found == pytest.approx([math.log(2), math.log(4)])
    # Names and bytes alike, shapes not.
    nn.init.ones_(networks[2].weight)
    whole.data = Split(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64))
    again = whole.scores(networks[2])["whole-test-loss"]
    assert again == pytest.approx(math.log(4))


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3]), (2, [2, 3]), (9, [3])])
def test_trained_models_are_scored_in_the_rounds_that_are_evaluated(
    every: int, expected: list[int]
) -> None:
    trace = play(method="fedavg", score_trained=True, evaluate_every=every)
    found = [
        report.server_round
        for report in trace.reports
        if report.train and "trained_accuracy" in report.train.rows[0]
    ]
    evaluated = [r.server_round for r in trace.reports if r.evaluate and r.evaluate.rows]
    assert found == expected == evaluated


class Counting(nn.Linear):
    calls = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return super().forward(features)


def test_one_model_is_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "calls", 0)
    whole = WholeTest(Split(torch.eye(3), torch.arange(3)))
    shared, own = Counting(3, 3), Counting(3, 3)
    first = whole.scores(shared)
    for step in range(4):
        with torch.no_grad():
            own.weight.fill_(step)
        whole.scores(own)
        assert whole.scores(shared) == first
    assert Counting.calls == 5


def test_a_changed_model_is_scored_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = WholeTest(Split(torch.eye(3), torch.arange(3)))
    model = nn.BatchNorm1d(3)
    before = whole.scores(model)
    model.running_mean[0] = 5.0  # type: ignore[index]
    assert whole.scores(model) != before
    calls: list[Any] = []
    monkeypatch.setattr(scoring, "model_scores", lambda *a: calls.append(a) or {})
    # No score at all is remembered too.
    other = WholeTest(Split(torch.eye(3), torch.arange(3)))
    assert other.scores(model) == other.scores(model)
    assert len(calls) == 1


@pytest.mark.parametrize("model", ["", "global-", "trained-"])
def test_scores_on_the_whole_test_part_weigh_clients_alike(model: str) -> None:
    report = PhaseReport("evaluate")
    for client, (tests, accuracy) in enumerate(((9, 0.5), (1, 0.1))):
        scores = {f"{model}whole-test-accuracy": accuracy, "accuracy": accuracy}
        metrics = {**scores, f"{model}whole-test-examples": 50}
        report.add(ClientReply(client, {}, metrics, tests, stored_state=False))
    means = report.means()
    assert means["accuracy"] == pytest.approx(0.46)
    assert means[f"{model}whole_test_accuracy".replace("-", "_")] == pytest.approx(0.3)
