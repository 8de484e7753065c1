"""Runs of each task: which methods take part, what their files say, what ranks them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsuite.callbacks.early_stop import higher_is_better
from fedsuite.clients import load_client
from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.metrics import fairness_report
from fedsuite.core.registry import METHODS
from fedsuite.core.tasks import OF_CLASSES, SCORES, TASKS, Score
from fedsuite.data.schema import TableSchema
from fedsuite.engines.api import run as run_experiment
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.rules import chosen_metric
from fedsuite.results import paired
from fedsuite.results.compare import compare
from fedsuite.results.reader import Scores, load_run
from fedsuite.results.summary import remarks_on
from fedsuite.rounds.events import (
    of_confusion,
    one_class,
    pooled,
    reported_as,
    score_metrics,
)
from fedsuite.rounds.report import Row
from fedsuite.strategies import load_strategy
from fedsuite.sweeps.trials import objective_of
from tests.helpers import play
from tests.tiny_tasks import times

DATA = {
    "regression": "numbers",
    "multi-label": "labels",
    "binary": "two_classes",
    "survival": "times",
}
SMALL = {"num-clients": 4, "num-rounds": 1, "model": "linear", "report": False}


def values_of(task: str, **more: object) -> dict[str, object]:
    return {**SMALL, "dataset": f"tests.tiny_tasks:{DATA[task]}", "task": task, **more}


def public_of(method: str) -> dict[str, object]:
    strategy = load_strategy(METHODS[method])
    needs = strategy.takes("public") or "public-size" in strategy.DEFAULTS
    return {"public-size": 8} if needs else {}


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_need_classes_refuse_other_tasks(method: str) -> None:
    strategy = load_strategy(METHODS[method])
    on_classes = strategy.takes("validation") or strategy.takes("num_classes")
    for task in ("regression", "multi-label"):
        values = values_of(task, method=method, **public_of(method))
        if task in load_client(METHODS[method]).TASKS and not on_classes:
            Experiment.from_values(values)
            continue
        with pytest.raises(ConfigError, match=f"method {method} .*needs classes") as caught:
            Experiment.from_values(values)
        assert "\n" not in str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize("task", DATA)
@pytest.mark.parametrize("method", METHODS)
def test_each_method_trains_for_its_tasks(method: str, task: str) -> None:
    # Some methods are for small networks, and say so by their default.
    model = load_strategy(METHODS[method]).DEFAULTS.get("model", "mlp")
    values = {**values_of(task), **public_of(method), "model": model, "batch-size": 16}
    snake = {name.replace("-", "_"): value for name, value in values.items()}
    if task not in OF_CLASSES:
        try:
            Experiment.from_values({**values, "method": method})
        except ConfigError:
            return
    report = play(method=method, **snake).reports[-1]  # type: ignore[arg-type]
    assert report.metrics["replies_rejected"] == 0
    assert report.metrics[f"{TASKS[task].main.column}_mean"] >= 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "focal"}, "losses are squared"),
        ({"scores": "auroc"}, "no score of task regression"),
        ({"scores": "coverage-error"}, "coverage"),
        ({"class-weights": "balanced"}, "no class"),
        ({"partitioner": "dirichlet"}, "by classes"),
        ({"logit-calibration": 0.5}, "no class"),
        ({"dataset": "digits"}, "10 classes"),
    ],
)
def test_keys_that_need_classes_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Experiment.from_values({**values_of("regression"), **changes})


def test_choices_follow_the_main_score_of_the_task() -> None:
    values = values_of("regression", **{"best-model-metric": "auto"})
    experiment = Experiment.from_values(values)
    assert chosen_metric(experiment.values, "best-model-metric") == "mae_mean"
    only_r2 = Experiment.from_values({**values, "scores": "r2"})
    assert chosen_metric(only_r2.values, "best-model-metric") == "r2_mean"
    kept = Experiment.from_values({**SMALL, "best-model-metric": "auto"})
    assert chosen_metric(kept.values, "best-model-metric") == "accuracy_mean"


@pytest.mark.parametrize("score", SCORES.values(), ids=str)
def test_a_score_ranks_the_right_way_everywhere(score: Score) -> None:
    column = score.column
    assert higher_is_better(f"{column}_mean") == score.higher
    assert higher_is_better(f"validation_{column}_worst10") == score.higher
    assert higher_is_better(f"evaluate_{column}") == score.higher
    assert not higher_is_better(f"{column}_variance")
    assert reported_as(f"validation_{column}_worst10") == f"evaluate_validation_{column}"
    numbers = [0.1, 0.5, 0.9]
    told = score_metrics(numbers, 3, score)
    assert told[f"{column}_worst10"] == pytest.approx(0.1 if score.higher else 0.9)
    report = fairness_report(np.array(numbers) * score.factor, score)
    best = score.factor * (0.9 if score.higher else 0.1)
    assert report.best_10 == report.maximum == pytest.approx(best)
    assert objective_of(f"{score.name}-worst-10")


def test_clients_without_a_score_are_counted() -> None:
    assert score_metrics([0.5] * 5, 8, SCORES["auroc"])["auroc_clients"] == 5
    assert score_metrics([0.5] * 5, 8, SCORES["auroc"])["auroc_clients_asked"] == 8
    scores = Scores(1, {0: 0.5}, 2, SCORES["brier"])
    assert scores.short == "1 of 2 clients"


def test_what_is_pooled_is_a_function_of_what_clients_told() -> None:
    cells = {(0, 0): 3.0, (0, 1): 1.0, (1, 0): 2.0, (1, 1): 4.0}
    rows = [
        {f"confusion_{c}_{p}": n / 2 for (c, p), n in cells.items()},
        {f"confusion_{c}_{p}": n / 2 for (c, p), n in cells.items()},
    ]
    values = pooled(rows)  # type: ignore[arg-type]
    assert values["pooled_confusion_0_1"] == 1.0
    assert values["pooled_specificity"] == pytest.approx(3 / 4)
    assert values["pooled_sensitivity"] == pytest.approx(4 / 6)
    assert of_confusion(cells)["accuracy"] == pytest.approx(7 / 10)
    # 1 of 1 row and 3 of each of 3: not the mean of the two.
    errors = [{"rmse": 1.0, "num_examples": 1}, {"rmse": 3.0, "num_examples": 3}]
    assert pooled(errors)["pooled_rmse"] == pytest.approx((28 / 4) ** 0.5)  # type: ignore[arg-type]


def test_one_class_is_remarked_where_no_client_contradicts_it() -> None:
    says: Row = {"num_examples": 9, "accuracy": 0.7, "one_class": 0.0}
    right: Row = {"num_examples": 9, "accuracy": 1.0}
    other: Row = {"num_examples": 9, "accuracy": 0.7}
    nobody: Row = {"num_examples": 0, "accuracy": 0.0}
    assert one_class([says, says, right, nobody]) == {"evaluate_one_class": 0.0}
    assert one_class([says, says, other]) == {}
    assert one_class([says, {**says, "one_class": 1.0}]) == {}
    assert one_class([right, right, says]) == {}


def finished(folder: Path, **changes: object) -> Path:
    values = {**values_of(**changes), "output-dir": str(folder)}  # type: ignore[arg-type]
    return Path(run_experiment(values).path)  # type: ignore[arg-type]


def test_regression_has_what_accuracy_has(tmp_path: Path) -> None:
    paths = [
        finished(tmp_path, task="regression", **{"learning-rate": rate, "run-name": name})
        for rate, name in ((0.01, "slow"), (0.1, "fast"))
    ]
    run = load_run(paths[0])
    mae = run.client_values("evaluate", "mae")
    assert len(mae) == 4
    last = run.rounds[-1]
    assert last["mae_worst10"] == pytest.approx(max(mae.values()))
    assert last["mae_mean"] == pytest.approx(np.mean(list(mae.values())))
    assert "accuracy_mean" not in last
    summary = run.summary or {}
    assert summary["scores"]["mae"]["worst_10"] == pytest.approx(max(mae.values()))
    comparison = compare(paths, score="mae")
    assert "less is better" in comparison.legend
    assert comparison.rows[0].metrics["worst_10"].mean == pytest.approx(max(mae.values()))  # type: ignore[union-attr]
    (difference,) = paired.paired_differences(comparison)
    assert difference.metrics["mean"].mean < 0  # type: ignore[union-attr]
    assert paired.legend(comparison).startswith("Below 0 is better")


@pytest.mark.parametrize("task", DATA)
def test_features_are_decorrelated_in_each_task(task: str) -> None:
    # Refused for sequences of classes alone, by tests/training/test_extra_losses.py.
    values = values_of(task, model="mlp")
    snake = {name.replace("-", "_"): value for name, value in values.items()}
    traces = [play(decorrelation_weight=weight, **snake) for weight in (0.0, 1.0)]  # type: ignore[arg-type]
    weights = [np.concatenate([a.ravel() for a in t.arrays[-1].values()]) for t in traces]
    assert not np.array_equal(*weights)
    assert all(trace.reports[-1].metrics["replies_rejected"] == 0 for trace in traces)


@pytest.mark.parametrize("ends", ["", "0.5, 1.0, 2.0"])
@pytest.mark.parametrize("source", ["function", "columns", "sites"])
def test_survival_on_rows_of_ones_own(source: str, ends: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    rows = times(None, 0.5)
    lines = [
        f"{x[0]},{x[1]},{time},{event:.0f},{k % 3}"
        for part in (rows.train, rows.test)
        for k, (x, (time, event)) in enumerate(zip(part.features, part.labels, strict=True))
    ]
    values: dict[str, Value] = {
        "task": "survival",
        "loss": "discrete-time" if ends else "cox",
        "interval-ends": ends,
        "scores": "concordance, integrated-brier",
        "model": "mlp",
        "num-rounds": 1,
        "report": False,
    }
    table = ["age,dose,days,died,ward", *lines]
    if source == "function":
        values |= {"dataset": "tests.tiny_tasks:times", "num-clients": 3}
    elif source == "columns":
        folder.mkdir()
        (folder / "rows.csv").write_text("\n".join(table))
        values |= {"dataset": "own-table", "data-dir": str(folder), "columns": "age, dose"}
        values |= {"target": "days, died", "client-column": "ward", "num-clients": 3}
        values |= {"partitioner": "natural-id"}
    else:
        schema = TableSchema(("age", "dose"), "days, died", num_classes=0)
        for site in ("a", "b"):
            (folder / site).mkdir(parents=True)
            (folder / site / "rows.csv").write_text("\n".join(table))
        values |= {"dataset": "own-table", "schema": schema.to_json(), "sites": "a, b"}
        values |= {"site-dirs": str(folder)}
    folder = Path(run_experiment({**values, "output-dir": str(tmp_path / "runs")}).path)
    last = load_run(folder).rounds[-1]
    assert last["replies_rejected"] == 0
    assert 0 <= last["concordance_mean"] <= 1 and 0 <= last["integrated_brier_mean"] <= 1


def test_the_page_names_all_losses_and_scores() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/tasks_and_scores.md").read_text()
    rows = {row.split("`")[1]: row for row in page.splitlines() if row.startswith("| `")}
    for task in TASKS.values():
        losses, scores = rows[task.name].split("|")[3:5]
        assert losses.replace("`", "").strip() == ", ".join(task.losses)
        assert scores.replace("`", "").strip() == ", ".join((*task.scores, *task.lists))


def test_a_run_of_one_class_says_so(tmp_path: Path) -> None:
    scores = "auroc, confusion-matrix"
    keys = {"learning-rate": 1e6, "num-rounds": 2, "scores": scores}
    path = finished(tmp_path, task="binary", **keys)
    run = load_run(path)
    assert "pooled_confusion_0_0" in run.rounds[-1]
    remarks = remarks_on(run)
    assert any("exploded" in line for line in remarks)
    assert (run.summary or {})["remarks"] == remarks
    last = {"round": 1, "evaluate_loss": 0.6, "evaluate_one_class": 0.0}
    (line,) = remarks_on(replace(run, rounds=(last,)))
    assert "say class 0 of every test row" in line
