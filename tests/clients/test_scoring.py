"""Scores beside the usual one: which model, on which data, under which name."""

from typing import Any

import pytest
import torch
from torch import nn

from fedsuite.client_app import experiment_model, federated_data
from fedsuite.clients import scoring
from fedsuite.clients.evaluation import evaluate_model
from fedsuite.clients.scoring import Scoring, WholeTest
from fedsuite.data import Split
from fedsuite.keys import Value
from fedsuite.models.arrays import load_arrays
from tests.helpers import Trace, bits, digits_experiment, run_digits

BOTH = {"score_whole_test": True, "score_trained": True}


def play(method: str, **changes: Value) -> Trace:
    return run_digits(digits_experiment(method=method, **changes))


def rows(trace: Trace, phase: str, server_round: int = 2) -> list[dict[str, float]]:
    report = getattr(trace.reports[server_round - 1], phase)
    return [{k: float(v) for k, v in row.items()} for row in report.rows]


def test_nothing_is_added_unless_asked_for() -> None:
    trace = play("fedavg")
    assert set(rows(trace, "evaluate")[0]) == {"client", "num_examples", "loss", "accuracy"}
    assert "trained_accuracy" not in rows(trace, "train")[0]


def test_scoring_changes_no_bit_of_the_model() -> None:
    for method in ("fedavg", "fedakd"):
        plain, scored = play(method), play(method, **BOTH)
        assert bits(plain.arrays[-1]) == bits(scored.arrays[-1])


def test_received_model_on_own_and_on_all_test_rows() -> None:
    """By hand: the global model after each round, on the rows of each client and on all."""
    trace = play("fedavg", **BOTH)
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
    trace = play("fedavg", **BOTH)
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
        for row in rows(play(method, **BOTH), "evaluate"):
            four = ("loss", "global_loss", "whole_test_loss", "global_whole_test_loss")
            assert len({row[name] for name in four}) == 4
    column = [
        row["global_whole_test_loss"] for row in rows(play("fedakd", **BOTH), "evaluate")
    ]
    assert len(set(column)) == 1


def test_standalone_is_scored_on_the_whole_test_part_too() -> None:
    found = rows(play("standalone", score_whole_test=True), "evaluate")
    assert len({row["whole_test_loss"] for row in found}) == 4


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3]), (2, [2, 3]), (9, [3])])
def test_trained_models_are_scored_in_the_rounds_that_are_evaluated(
    every: int, expected: list[int]
) -> None:
    trace = play("fedavg", score_trained=True, evaluate_every=every)
    found = [
        report.server_round
        for report in trace.reports
        if report.train and "trained_accuracy" in report.train.rows[0]
    ]
    evaluated = [r.server_round for r in trace.reports if r.evaluate and r.evaluate.rows]
    assert found == expected == evaluated


def test_never_is_never() -> None:
    assert not Scoring(num_rounds=3).scores_trained(3)


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
    monkeypatch.setattr(scoring, "evaluate_model", lambda *a: calls.append(a) or (0.0, 0.0))
    # Two zeros are scores as well, and remembered.
    other = WholeTest(Split(torch.eye(3), torch.arange(3)))
    assert other.scores(model) == other.scores(model)
    assert len(calls) == 1
