"""Tables of two hospitals, from files to predictions, with data of scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.metrics import r2_score, roc_auc_score

import fedsuite
from fedsuite.core.errors import DataError
from fedsuite.engines.trained.run import Run

COMMON = {
    "dataset": "own-table",
    "client-column": "hospital",
    "scaling": "federated",
    "model": "linear",
    "num-rounds": 20,
    "learning-rate": 0.1,
    "batch-size": 32,
    "report": False,
    "seed": 3,
}


def train(folder: Path, table: pd.DataFrame, **keys: Any) -> Run:
    """Divide a table between two hospitals, write it as CSV, and train on it."""
    hospitals = np.where(np.arange(len(table)) % 3 == 0, "north", "south")
    (folder / "tables").mkdir()
    table.assign(hospital=hospitals).to_csv(folder / "tables" / "all.csv", index=False)
    inputs = [str(name) for name in table.columns if name != "outcome"]
    where = {"data-dir": str(folder / "tables"), "output-dir": str(folder)}
    columns = {"columns": ", ".join(inputs), "target": "outcome"}
    return fedsuite.run({**COMMON, **where, **columns, **keys})


@pytest.fixture
def cancer() -> pd.DataFrame:
    read = load_breast_cancer(as_frame=True)
    # Names as the files of hospitals have them, without commas.
    return read.frame.rename(columns={"target": "outcome"})


def test_breast_cancer_by_auroc_and_auprc(tmp_path: Path, cancer: pd.DataFrame) -> None:
    run = train(tmp_path, cancer, task="binary")
    last = run.rounds[-1]
    assert last["auroc_mean"] > 0.97
    assert last["auprc_mean"] > 0.97
    assert last["auroc_worst10"] <= last["auroc_mean"]
    told = run.predict(cancer.sample(frac=1, axis="columns", random_state=0))
    auroc = roc_auc_score(cancer["outcome"], told["probability 1"])
    assert auroc > 0.98
    # In any order of the columns, by their names.
    again = run.predict(cancer)
    assert again["probability 1"].tolist() == told["probability 1"].tolist()
    with pytest.raises(DataError, match="mean area"):
        run.predict(cancer.drop(columns="mean area"))


def test_diabetes_by_absolute_error(tmp_path: Path) -> None:
    table = load_diabetes(as_frame=True, scaled=False).frame
    table = table.rename(columns={"target": "outcome"})
    run = train(tmp_path, table, task="regression", **{"learning-rate": 0.01})
    last = run.rounds[-1]
    constant = float((table["outcome"] - table["outcome"].median()).abs().mean())
    assert last["mae_mean"] < 0.8 * constant
    # The worst tenth has the largest error.
    assert last["mae_worst10"] >= last["mae_mean"]
    told = run.predict(table)
    assert r2_score(table["outcome"], told["prediction"]) > 0.4
