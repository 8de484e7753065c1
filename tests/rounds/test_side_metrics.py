"""A metric that is no number costs that metric, unless something is steered by it."""

import logging
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord

from fedsuite.callbacks.early_stop import EarlyStop
from fedsuite.core.metrics import range_of
from fedsuite.rounds.events import reported_as
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies import TERM, FedAvg, FedNova, PracFedEBAPlus
from tests.helpers import LAYOUTS, MEAN_OF_ALL, Trace, for_client, run_tampered
from tests.rounds.plain_app import final, plain_app, run_plain

NAN, INF = math.nan, math.inf
ZERO = {"w": np.zeros(1, np.float32)}


def adding(**of_last: Any) -> Any:
    """Return a training that adds the client's number plus 1; the last one reports more."""

    def train(number: int, arrays: Any) -> Any:
        metrics = {"num-examples": 10, "auc": 0.8, "loss-before": 1.0, "num-steps": 2}
        return {"w": arrays["w"] + np.float32(1 + number)}, metrics | (
            {name.replace("_", "-"): v for name, v in of_last.items()}
            if number == 2
            else {}
        )

    return train


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if words in r.getMessage()]


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_the_model_and_the_other_metrics_count(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    def score(number: int, arrays: Any) -> Any:
        last = number == 2
        return {
            "num-examples": 10,
            "acc": 0.3 if last else 0.9,
            "auc": NAN if last else 0.8,
        }

    with caplog.at_level(logging.WARNING):
        app = plain_app(adding(auc=value), score)
        result = run_plain(FedAvg(), app, ZERO, num_rounds=3)
    assert final(result)["w"][0] == 6.0
    assert result.evaluate_metrics_clientapp[1]["acc"] == 0.7
    # Of two of three clients, which is said.
    assert result.evaluate_metrics_clientapp[1]["auc"] == pytest.approx(0.8)
    assert result.evaluate_metrics_clientapp[1]["auc_clients"] == 2
    [line] = lines(caplog, "metric auc")
    assert "it is left out" in line


def test_where_all_lack_it_all_train() -> None:
    app = plain_app(lambda number, arrays: ({"w": arrays["w"] + 1}, nan_auc()))
    assert final(run_plain(FedAvg(), app, ZERO))["w"][0] == 1.0


def nan_auc() -> dict[str, float]:
    return {"num-examples": 10, "auc": NAN}


@pytest.mark.parametrize(
    ("strategy", "metric"),
    [
        (lambda: FedAvg(), {"num_examples": NAN}),
        (lambda: TERM(), {"loss_before": NAN}),
        (lambda: TERM(loss_before_key="auc"), {"auc": INF}),
        (lambda: FedNova(), {"num_steps": INF}),
        # Not asked for where the number is known, but steered by all the same.
        (lambda: FedNova(local_steps=2), {"num_steps": NAN}),
        (lambda: PracFedEBAPlus(loss_key="auc"), {"loss_before": NAN}),
    ],
)
def test_what_steers_the_method_must_be_a_number(strategy: Any, metric: Any) -> None:
    made = strategy()
    run_plain(made, plain_app(adding(**metric)), ZERO)
    [rejection] = made.reports["train"].rejections
    assert next(iter(metric)).replace("_", "-") in rejection.reason
    assert len(made.reports["train"].rows) == 2


def test_a_metric_that_a_run_is_chosen_by_is_left_out_of_one_reply() -> None:
    """The others' mean is followed, and no reply is lost: the method is not steered."""

    def train(number: int, arrays: Any) -> Any:
        return {"w": arrays["w"] + 1}, {"num-examples": 10, "my-auc": of(number)}

    def score(number: int, arrays: Any) -> Any:
        return {"num-examples": 10, "acc": 0.5, "my-auc": of(number)}

    def of(number: int) -> float:
        return NAN if number == 2 else 0.8

    for metric in ("evaluate_my_auc", "train_my_auc"):
        made, trace = FedAvg(), Trace()
        stop = EarlyStop(metric, 1)
        app = plain_app(train, score)
        result = run_plain(made, app, ZERO, num_rounds=5, callbacks=[stop, trace])
        assert [len(one.rows) for one in trace.reports[0].phases] == [3, 3]
        # It stops after the second round, which is no better than the first.
        assert final(result)["w"][0] == len(trace.reports) == 2
        assert trace.reports[0].metrics[metric] == pytest.approx(0.8)
        assert trace.reports[0].metrics[f"{metric}_clients"] == 2


def test_what_a_metric_of_a_round_is_made_of() -> None:
    assert reported_as("accuracy_mean") == reported_as("accuracy_worst10")
    assert reported_as("accuracy_mean") == "evaluate_accuracy"
    assert reported_as("validation_accuracy_variance") == "evaluate_validation_accuracy"
    assert reported_as("train_loss") == "train_loss"
    assert reported_as("evaluate_loss_median") == "evaluate_loss"
    assert reported_as("accuracy_median") == "evaluate_accuracy"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_each_layout_and_in_a_second_record(layout: str) -> None:
    def change(content: Any, prefix: str) -> None:
        content[f"{prefix}metrics"]["speed"] = NAN
        content[f"{prefix}more"] = MetricRecord({"heat": INF, "many": [1.0, NAN]})

    trace = run_tampered(layout, for_client(1, layout, change))
    assert not trace.reports[0].train.rejections
    assert trace.weights == [MEAN_OF_ALL, MEAN_OF_ALL]
    assert len(trace.reports[0].train.rows) == 3
    assert all("speed" not in row for row in trace.reports[0].train.rows)


def test_of_a_list_the_entry_alone_has_no_mean() -> None:
    def train(number: int, arrays: Any) -> Any:
        return arrays, {"num-examples": 1, "each": [1.0, NAN if number == 1 else 2.0]}

    result = run_plain(FedAvg(), plain_app(train), ZERO)
    first, second = result.train_metrics_clientapp[1]["each"]
    assert first == pytest.approx(1.0)
    assert math.isnan(second)


@pytest.mark.parametrize("name", ["error", "hello", "facts", "config", "packed.more"])
def test_records_of_the_apps_own_may_have_any_name(name: str) -> None:
    record = ConfigRecord({"reason": "mean errors", "mse": 0.3, "place": "x"})
    app = plain_app(adding(), more={name: record})
    made = FedAvg()
    assert final(run_plain(made, app, ZERO))["w"][0] == 2.0
    assert not made.reports["train"].rejections


@pytest.mark.parametrize(
    "name", ["weight", "update_norm", "clipped", "client", "norm-ratio"]
)
def test_metrics_named_as_the_servers_columns_have_their_mean(name: str) -> None:
    """Such a column compares clients: an app's own number of that name is none."""

    def train(number: int, arrays: Any) -> Any:
        return {"w": arrays["w"] + 1}, {"num-examples": 10, name: 10.0 * number}

    made = FedAvg()
    result = run_plain(made, plain_app(train), ZERO)
    assert result.train_metrics_clientapp[1][name] == pytest.approx(10.0)
    assert made.reports["train"].weights() == pytest.approx(
        dict.fromkeys(made.reports["train"].weights(), 1 / 3)
    )


def scoring(**of_last: float) -> Any:
    """Return an evaluation of an accuracy and a loss; the last client's is another."""

    def score(number: int, arrays: Any) -> Any:
        metrics = {"num-examples": 10, "accuracy": 0.5, "loss": 1.0}
        return metrics | (of_last if number == 2 else {})

    return score


def test_an_app_that_reports_per_cent_keeps_flowers_mean() -> None:
    """All say so, so it is another unit; in a report accuracies are fractions."""
    trace = Trace()
    app = plain_app(adding(), lambda number, arrays: {"num-examples": 1, "accuracy": 90.0})
    result = run_plain(FedAvg(), app, ZERO, callbacks=[trace])
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(90.0)
    assert "accuracy_mean" not in trace.reports[0].metrics
    assert trace.reports[0].metrics["accuracy_clients"] == 0


def test_what_one_client_says_out_of_range_is_in_no_mean() -> None:
    trace = Trace()
    app = plain_app(adding(), scoring(accuracy=95.0, loss=-2.0))
    result = run_plain(FedAvg(), app, ZERO, callbacks=[trace])
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
    # The loss of another app may be below 0.
    assert trace.reports[0].metrics["evaluate_loss"] == pytest.approx(0.0)
    assert trace.reports[0].metrics["evaluate_loss_median"] == 1.0
    evaluated = trace.reports[0].evaluate
    assert evaluated is not None
    [numbers] = evaluated.left_out.values()
    assert list(numbers.values()) == [95.0]


def test_few_clients_add_no_metric_and_take_none_away() -> None:
    def rows(*metrics: dict[str, float]) -> dict[str, float]:
        report = PhaseReport("evaluate")
        for client, of_client in enumerate(metrics):
            report.add(ClientReply(client, {}, of_client, 1 + client))
        return report.means()

    usual, odd = {"loss": 1.0}, {"else": 5.0}
    assert rows(usual, usual, odd) == {"loss": 1.0, "num_examples": 6, "loss_clients": 2}
    assert rows(usual, odd) == {
        **{"loss": 1.0, "else": 5.0, "num_examples": 3},
        **{"loss_clients": 1, "else_clients": 1},
    }
    # Weighted by the examples of those that have it.
    means = rows({"loss": 1.0}, {}, {"loss": 5.0})
    assert (means["loss"], means["loss_clients"]) == (4.0, 2)


@pytest.mark.parametrize(
    ("name", "phase", "own", "least", "largest"),
    [
        ("accuracy", "evaluate", False, 0, 1),
        ("trained-whole-test-accuracy", "train", True, 0, 1),
        ("loss", "evaluate", True, 0, INF),
        ("validation_loss", "train", True, 0, INF),
        ("whole-test-examples", "evaluate", True, 0, INF),
        # It may hold terms below 0, as another app's may.
        ("loss", "train", True, -INF, INF),
        ("loss", "evaluate", False, -INF, INF),
        ("auc", "evaluate", True, -INF, INF),
    ],
)
def test_ranges(name: str, phase: str, own: bool, least: float, largest: float) -> None:
    assert range_of(name, phase, own=own) == (least, largest)
