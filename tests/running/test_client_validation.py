"""Runs whose clients keep validation rows: choices see these, and no test row."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.data import ClientData, FederatedData, Split
from fedsuite.data.site_federation import SiteFederation
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.rules import CHOICES, chosen_metric
from fedsuite.results.compare import compare
from fedsuite.results.layout import read_manifest
from fedsuite.results.reader import load_run
from fedsuite.strategies import load_strategy
from tests.data.site_files import NAMES, digits_columns, write
from tests.helpers import digits_experiment, play

CHOOSING: Mapping[str, Value] = {
    "dataset": "digits",
    "model": "linear",
    "num-clients": 6,
    "partitioner": "dirichlet",
    "clients-per-round": 2,
    "num-rounds": 12,
    "client-validation-fraction": 0.2,
    "early-stop-metric": "validation_accuracy_worst10",
    "early-stop-patience": 3,
    "report": False,
}
SCORES = ("score-whole-test", "score-trained", "score-training-data")
FACTORED: Mapping[str, Value] = {
    "model": "cnn-shallow",
    "decomposition": True,
    "personal-atoms": True,
    "num-clients": 3,
    "num-rounds": 2,
}
EACH_KIND: Mapping[str, Mapping[str, Value]] = {
    "fedavg": {},
    "ditto": {},
    "fedavg-ft": {},
    "standalone": {"clients-per-round": 0},
    "feddyn": {},
    "fedakd": {},
    "fedproto": {"model": "mlp"},
    "fedal": {"model": "mlp", "num-rounds": 3, "public-size": 50},
    "cffl": {},
    "personal-atoms": {**FACTORED, "method": "fedavg"},
}


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what is in all test rows, and their labels."""
    client, test_set = FederatedData.client, FederatedData.test_set

    def poisoned(split: Split) -> Split:
        return replace(split, features=-3 * split.features, labels=9 - split.labels)

    def poisoned_client(self: FederatedData, client_id: int) -> ClientData:
        found = client(self, client_id)
        return replace(found, test=poisoned(found.test))

    monkeypatch.setattr(FederatedData, "client", poisoned_client)
    monkeypatch.setattr(FederatedData, "test_set", lambda self: poisoned(test_set(self)))


def outcome(folder: Path, name: str, keys: Mapping[str, Value]) -> dict[str, Any]:
    """Run an experiment; return what was chosen, and the rounds' numbers."""
    run = fedsuite.run({**keys, "output-dir": str(folder), "run-name": name})
    best, last = run.path / "best-model.safetensors", run.path / "model.safetensors"
    checkpoint = sorted((run.path / "checkpoints").iterdir())[-1]
    return {
        "best": best.read_bytes() if best.exists() else None,
        "last": last.read_bytes() if last.exists() else None,
        "rounds": run.rounds,
        "checkpoint": checkpoint.name,
    }


@pytest.mark.parametrize("method", EACH_KIND)
def test_no_test_row_reaches_a_choice(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test rows that say the contrary change nothing but columns not to choose by."""
    keys = {**CHOOSING, "method": method, **EACH_KIND[method]}
    strategy = load_strategy(METHODS[str(keys["method"])])
    scores = {key for key in SCORES if key not in strategy.WITHOUT_EFFECT}
    keys |= dict.fromkeys(scores, True)
    keeps_model = method not in ("standalone", "fedproto", "fedal")
    if keeps_model:
        keys["best-model-metric"] = "auto"
    clean = outcome(tmp_path, "clean", keys)
    poison(monkeypatch)
    poisoned = outcome(tmp_path, "poisoned", keys)
    assert (clean["best"] is not None) == keeps_model
    for name in ("best", "last", "checkpoint"):
        assert clean[name] == poisoned[name]
    assert len(clean["rounds"]) == len(poisoned["rounds"])
    changed = {
        column
        for one, other in zip(clean["rounds"], poisoned["rounds"], strict=True)
        for column in one
        if one[column] != other.get(column) and "seconds" not in column
    }
    assert {"accuracy_mean", "evaluate_loss", "evaluate_whole_test_loss"} <= changed
    assert "score-trained" not in scores or "train_trained_accuracy" in changed
    for column in changed:
        for key in {*CHOICES} - ({"best-model-metric"} if not keeps_model else set()):
            with pytest.raises(ConfigError, match="looks at test rows") as caught:
                Experiment.from_values({**keys, key: column})
            assert key in str(caught.value)
            assert "set 'validation_accuracy" in str(caught.value) or (
                "set 'evaluate_validation" in str(caught.value)
            )
    usable = {column for column in clean["rounds"][-1] if "validation" in column}
    assert usable >= {
        "evaluate_validation_loss",
        "evaluate_validation_accuracy",
        "validation_accuracy_mean",
        "validation_accuracy_worst10",
        "validation_accuracy_variance",
    }
    for column in usable:
        Experiment.from_values({**keys, "early-stop-metric": column})


def test_choices_follow_validation_rows(tmp_path: Path) -> None:
    keys = {**CHOOSING, "num-rounds": 20, "best-model-metric": "auto"}
    rounds = outcome(tmp_path, "run", keys)["rounds"]
    worst = [row["validation_accuracy_worst10"] for row in rounds]
    best = max(range(len(worst)), key=lambda k: (worst[k], -k))
    assert len(rounds) == min(best + 1 + 3, 20) < 20


def test_auto_is_the_mean_accuracy() -> None:
    for key in CHOICES:
        assert chosen_metric({key: "auto", "client-validation-fraction": 0.0}, key) == (
            "accuracy_mean"
        )
        assert chosen_metric({key: "auto", "client-validation-fraction": 0.1}, key) == (
            "validation_accuracy_mean"
        )
        assert chosen_metric({key: "", "client-validation-fraction": 0.1}, key) == ""


@pytest.mark.parametrize(
    ("key", "metric", "instead"),
    [
        ("best-model-metric", "accuracy_worst10", "validation_accuracy_worst10"),
        ("early-stop-metric", "evaluate_loss", "evaluate_validation_loss"),
        ("early-stop-metric", "evaluate_global_accuracy", "validation_accuracy_mean"),
    ],
)
def test_a_choice_by_test_rows_is_refused(key: str, metric: str, instead: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values({key: metric, "client-validation-fraction": 0.1})
    assert str(caught.value) == (
        f"key {key} = {metric!r} cannot go with client-validation-fraction = 0.1: it looks "
        f"at test rows, and clients have validation rows to choose by; set {instead!r}"
    )


def test_a_choice_by_rows_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="set client-validation-fraction above 0"):
        Experiment.from_values({"early-stop-metric": "validation_accuracy_mean"})


@pytest.mark.parametrize(
    "column", ["train_loss", "clients_trained", "evaluate_received_training_loss"]
)
def test_training_rows_may_choose(column: str) -> None:
    given = {"client-validation-fraction": 0.1, "early-stop-metric": column}
    assert Experiment.from_values(given)["early-stop-metric"] == column


def test_weights_and_training_know_nothing_of_validation_rows() -> None:
    """A client reports and trains on its other rows; all methods have the same rows."""
    given = {"client_validation_fraction": 0.25, "partitioner": "dirichlet"}
    data = federated_data(digits_experiment(**given))
    sizes = [len(rows) for rows in data.partition.train]
    for method in ("fedavg", "standalone", "scaffold"):
        trace = play(**given, method=method, num_rounds=1)
        report = trace.reports[0]
        assert report.train is not None
        assert report.evaluate is not None
        assert report.train.column("num_examples") == sizes
        assert report.evaluate.column("validation_examples") == [
            len(rows) for rows in data.partition.validation
        ]


def test_scores_of_validation_rows_are_means_over_these_rows(tmp_path: Path) -> None:
    keys = {**CHOOSING, "num-rounds": 2, "early-stop-metric": ""}
    keys.pop("early-stop-patience")
    run = fedsuite.run({**keys, "output-dir": str(tmp_path), "run-name": "run"})
    rows = [
        row for row in run.clients() if row["phase"] == "evaluate" and row["round"] == 2
    ]
    last = run.rounds[-1]
    total = sum(row["validation_examples"] for row in rows)
    for score in ("loss", "accuracy"):
        mean = (
            sum(r[f"validation_{score}"] * r["validation_examples"] for r in rows) / total
        )
        assert last[f"evaluate_validation_{score}"] == pytest.approx(mean)
    accuracies = [row["validation_accuracy"] for row in rows]
    assert last["validation_accuracy_mean"] == pytest.approx(sum(accuracies) / len(rows))
    assert last["validation_accuracy_worst10"] == pytest.approx(min(accuracies))
    held = json.loads((run.path / "partition.json").read_text())["validation"]
    assert sum(map(sum, held)) == total
    assert read_manifest(run.path)["data"]["client-validation-rows"] == total
    table = compare([run.path], score="validation_accuracy")
    (found,) = table.rows[0].by_seed.values()
    assert found["mean"] == pytest.approx(100 * last["validation_accuracy_mean"])


def test_a_client_with_one_row_has_no_accuracy_to_choose_by(tmp_path: Path) -> None:
    for name, labels in (("a", [0, 1] * 20), ("b", [1])):
        for part in ("train", "test"):
            columns = {"x": [float(k) for k in labels], "label": labels}
            write(tmp_path / name / f"{part}-0.parquet", columns)
    table: dict[str, Value] = {"dataset": "own-table", "table-classes": 2}
    keys: dict[str, Value] = {"sites": "a, b", "site-dirs": str(tmp_path)}
    keys |= {"table-columns": 1, "model": "linear", "num-rounds": 1, "report": False}
    keys |= {"client-validation-fraction": 0.5, "output-dir": str(tmp_path / "runs")}
    run = fedsuite.run(table | keys)
    rows = {row["client"]: row for row in run.clients() if row["phase"] == "evaluate"}
    assert rows["b"]["validation_examples"] == 0
    assert run.rounds[-1]["validation_accuracy_mean"] == pytest.approx(
        rows["a"]["validation_accuracy"]
    )
    assert set(load_run(run.path).client_values("evaluate", "validation_accuracy")) == {"a"}


# Sites


def test_a_site_keeps_validation_rows_of_its_own(tmp_path: Path) -> None:
    """Patients stay whole; a node draws the same rows as the rehearsal."""
    for client_id, name in enumerate(NAMES):
        columns = digits_columns(client_id, "train")
        columns["patient"] = [k // 3 for k in range(len(columns["label"]))]
        write(tmp_path / name / "rows.parquet", columns)
        (tmp_path / name / "site.toml").write_text('id-column = "patient"\n')
    given = {
        "dataset": "digits",
        "sites": ", ".join(NAMES),
        "site-dirs": str(tmp_path),
        "client-validation-fraction": 0.2,
        "early-stop-metric": "auto",
    }
    data = federated_data(Experiment.from_values(given))
    plain = federated_data(
        Experiment.from_values(
            {**given, "client-validation-fraction": 0.0, "early-stop-metric": ""}
        )
    )
    assert isinstance(data, SiteFederation)
    for client_id in range(3):
        now, before = data.client(client_id), plain.client(client_id)
        assert now.validation is not None
        assert before.validation is None
        assert torch.equal(now.test.features, before.test.features)
        parts = [now.train.features, now.validation.features]
        rows = [{row.numpy().tobytes() for row in part} for part in parts]
        old = {row.numpy().tobytes() for row in before.train.features}
        assert rows[0] | rows[1] == old
        assert sum(map(len, parts)) == len(before.train)
        assert len(now.validation) == pytest.approx(0.2 * len(before.train), abs=6)
        assert len(now.validation) % 3 == 0 or client_id
    alone = SiteFederation(
        data.spec, NAMES, {0: data._sites[1]}, data._settings, data._seed
    ).client(0)
    assert alone.validation is not None
    assert torch.equal(alone.validation.features, data.client(1).validation.features)
