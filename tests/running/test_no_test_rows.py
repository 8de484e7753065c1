"""Clients without test rows train, and are in no score."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.messages.records import EVALUATE, NEW
from fedsuite.results.compare import compare
from fedsuite.results.reader import Run
from tests.running.test_site_tables import KEYS, NAMES, SITES, patients


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSUITE_STATE", str(tmp_path / "state"))


def sites(tmp_path: Path, without: tuple[str, ...]) -> Path:
    """Return a folder of sites, some of which have files of training rows alone."""
    for seed, name in enumerate(NAMES):
        (tmp_path / "sites" / name).mkdir(parents=True)
        file = "train-1.csv" if name in without else "rows.csv"
        patients(seed).to_csv(tmp_path / "sites" / name / file, index=False)
    return tmp_path / "sites"


def run(tmp_path: Path, without: tuple[str, ...], name: str = "run", **keys: Value) -> Run:
    dashed = {key.replace("_", "-"): value for key, value in keys.items()}
    where = {"output-dir": str(tmp_path), "run-name": name}
    folder = tmp_path / "sites"
    folder = folder if folder.exists() else sites(tmp_path, without)
    return fedsuite.run({**KEYS, **SITES, **where, "site-dirs": str(folder), **dashed})


def numbers_of(done: Run) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((done.path / "summary.json").read_text())
    return summary


@pytest.mark.parametrize(
    "method", ["fedavg", "fedeba", "afl", "ditto", "fedper", "fedavg-ft"]
)
def test_one_of_three_trains_and_is_in_no_score(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {} if method == "ditto" else {"best_model_metric": "accuracy_mean"}
    done = run(
        tmp_path,
        ("east",),
        method=method,
        model="mlp",
        early_stop_metric="evaluate_loss",
        early_stop_patience=5,
        report=True,
        **chosen,
    )
    rows = [row for row in done.clients() if row["round"] == 2]
    of = {row["client"]: row for row in rows if row["phase"] == EVALUATE}
    assert of["east"]["num_examples"] == 0
    assert {row["client"] for row in rows if row["phase"] == "train"} == set(NAMES)
    last = done.rounds[-1]
    scored = [of[name] for name in ("north", "south")]
    assert last["accuracy_mean"] == pytest.approx(sum(r["accuracy"] for r in scored) / 2)
    total = sum(r["num_examples"] for r in scored)
    loss = sum(r["loss"] * r["num_examples"] for r in scored) / total
    assert last["evaluate_loss"] == pytest.approx(loss)
    assert "evaluate_loss_clients" not in last
    summary = numbers_of(done)
    assert summary["clients_without_test_rows"] == 1
    assert summary["accuracy_in_per_cent"]["num_clients"] == 2
    assert "clients without test rows: 1 of 3" in " ".join(capsys.readouterr().out.split())
    assert done.client_values(EVALUATE, "loss").keys() == {"north", "south"}
    assert (done.path / "report.html").exists()


def test_a_median_of_losses_is_of_those_with_rows(tmp_path: Path) -> None:
    done = run(tmp_path, ("east", "south"))
    last = done.rounds[-1]
    assert last["evaluate_loss_median"] == done.client_values(EVALUATE, "loss")["north"]
    assert last["evaluate_loss"] == pytest.approx(last["evaluate_loss_median"])


def test_a_federation_without_test_rows_trains_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: dict[str, Value] = {"best_model_metric": "accuracy_mean", "num_rounds": 3}
    done = run(tmp_path, NAMES, early_stop_metric="evaluate_loss", **keys, report=True)
    assert done.last_round == 3
    assert done.manifest["status"] == "finished"
    told = " ".join(capsys.readouterr().out.split())
    assert "no client has test rows: the run trains, and has no scores" in told
    last = done.rounds[-1]
    assert not {"evaluate_loss", "evaluate_accuracy", "accuracy_mean"} & set(last)
    assert last["train_loss"] > 0
    (row,) = compare([done.path]).rows
    assert row.metrics["mean"] is None
    assert numbers_of(done)["clients_without_test_rows"] == 3


def test_hospitals_of_a_table_that_lack_a_part(tmp_path: Path) -> None:
    """One hospital is in the test file alone, one in the training file alone."""
    (tmp_path / "one").mkdir()
    parts = {"train": ("north", "east"), "test": ("north", "south")}
    for part, names in parts.items():
        frames = [patients(NAMES.index(name)).assign(hospital=name) for name in names]
        pd.concat(frames).to_csv(tmp_path / "one" / f"{part}-1.csv", index=False)
    keys = KEYS | {"data-dir": str(tmp_path / "one"), "client-column": "hospital"}
    keys |= {"client-validation-fraction": 0.2}
    done = fedsuite.run({**keys, "output-dir": str(tmp_path), "run-name": "run"})
    rows = done.clients()
    by_phase = {p: {r["client"] for r in rows if r["phase"] == p} for p in ("train", NEW)}
    assert by_phase == {"train": {"north", "east"}, NEW: {"south"}}
    assert list(done.scores()[-1].of) == ["north"]
    assert numbers_of(done)["clients_without_test_rows"] == 1
