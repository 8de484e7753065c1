"""FLamby's Fed-Heart-Disease: the pipeline by hand, the page's table, and the real rows."""

import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from fedsuite.core.keys import Value, toml_text
from fedsuite.data import load_federated_data
from fedsuite.experiment.experiment import Experiment
from tests.helpers import run_digits

FOLDER = Path(__file__).parents[2] / "simulations" / "flamby"
REAL = Path(os.environ.get("FEDSUITE_DATA") or "none") / "heart_disease"
SIZES = {"cleveland": 33, "hungarian": 27, "switzerland": 12, "va": 21}
ORDER = (0, 1, 3, 2)
"""FLamby's centres by size, as ``natural-ids = "largest"`` numbers clients."""


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, ModuleType]]:
    """The page's two programs."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import fed_heart_disease
    import table

    yield {"data": fed_heart_disease, "table": table}
    for name in ("fed_heart_disease", "table"):
        del sys.modules[name]


def write_hospitals(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Write made rows, some with empty cells; return FLamby's columns of the whole ones."""
    draws, made = np.random.default_rng(5), []
    (folder / "heart_disease").mkdir()
    for hospital, size in SIZES.items():
        names = "age sex trestbps chol fbs thalach exang oldpeak cp restecg slope ca thal"
        numbers = draws.integers(0, 90, (size, 8))
        codes = np.stack([draws.integers(1, 5, size), draws.integers(0, 3, size)], 1)
        # Switzerland has next to no healthy patient: its split is not stratified.
        labels = draws.random(size) < (0.97 if hospital == "switzerland" else 0.5)
        with (folder / "heart_disease" / f"{hospital}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow([*names.split(), "num"])
            for row, (left, right, ill) in enumerate(
                zip(numbers, codes, labels, strict=True)
            ):
                cells = [*map(float, left), *right, "", "", 3, int(ill)]
                out.writerow(
                    ["" if row == 2 and n == 4 else c for n, c in enumerate(cells)]
                )
        dummies = [codes[:, 0] == v for v in (2, 3, 4)] + [codes[:, 1] == v for v in (1, 2)]
        rows = np.concatenate([numbers, np.stack(dummies, 1)], 1).astype(float)
        made.append((np.delete(rows, 2, 0), np.delete(labels, 2).astype(float)))
    return made


def flambys_parts(rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """FLamby's training rows and labels of a centre, by its published procedure."""
    stratify = labels if min(labels.sum(), (1 - labels).sum()) > 2 else None
    kept, _ = train_test_split(
        np.arange(len(labels)),
        test_size=1.0 - 0.66,
        train_size=0.66,
        random_state=43,
        shuffle=True,
        stratify=stratify,
    )
    own = rows[kept]
    return (own - own.mean(0)) / (own.std(0, ddof=1) + 1e-9), labels[kept]


STEPS, ROUNDS = 4, 3

Centres = list[tuple[np.ndarray, np.ndarray]]


def trained(
    w: np.ndarray, part: tuple[np.ndarray, np.ndarray], rate: float, extra: object
) -> np.ndarray:
    """Steps on the binary cross-entropy of all rows; ``extra(w)`` adds to the gradient."""
    x, y = part
    x1 = np.concatenate([x, np.ones((len(x), 1))], 1)
    for _ in range(STEPS):
        w = w - rate * (x1.T @ (1 / (1 + np.exp(-x1 @ w)) - y) / len(y) + extra(w))
    return w


def averaging(w: np.ndarray, centres: Centres, rate: float, mu: float = 0.0) -> np.ndarray:
    sizes = [len(y) for _, y in centres]
    for _ in range(ROUNDS):
        ends = [trained(w, c, rate, lambda v, w=w: mu * (v - w)) for c in centres]
        w = np.average(ends, axis=0, weights=sizes)
    return w


def adaptive(w: np.ndarray, centres: Centres, rate: float, rule: str, eta: float):
    sizes, m, v = [len(y) for _, y in centres], 0.0, 0.0
    for _ in range(ROUNDS):
        ends = [trained(w, c, rate, lambda v: 0.0) for c in centres]
        step = np.average(ends, axis=0, weights=sizes) - w
        m, square = 0.9 * m + 0.1 * step, step * step
        if rule == "adam":
            v = 0.999 * v + 0.001 * square
        elif rule == "yogi":
            v = v - 0.001 * square * np.sign(v - square)
        else:
            v = v + square
        w = w + eta * m / (np.sqrt(v) + 1e-8)
    return w


def corrected(w: np.ndarray, centres: Centres, rate: float) -> np.ndarray:
    sizes = [len(y) for _, y in centres]
    corrections, ends = [0.0] * len(centres), [w] * len(centres)
    for _ in range(ROUNDS):
        corrections = [
            c + (w - e) / (rate * STEPS) for c, e in zip(corrections, ends, strict=True)
        ]
        ends = [
            trained(w, p, rate, lambda v, c=c: -c)
            for p, c in zip(centres, corrections, strict=True)
        ]
        w = np.average(ends, axis=0, weights=sizes)
    return w


REFERENCES = {
    "FedAvg": lambda w, c: averaging(w, c, 0.001),
    "FedProx": lambda w, c: averaging(w, c, 0.001, mu=0.01),
    "Scaffold": lambda w, c: corrected(w, c, 0.001),
    "FedAdam": lambda w, c: adaptive(w, c, 0.01, "adam", 0.01),
    "FedYogi": lambda w, c: adaptive(w, c, 0.003162, "yogi", 0.01),
    "FedAdagrad": lambda w, c: adaptive(w, c, 0.003162, "adagrad", 0.316228),
}
"""FLamby's algorithms of a final w, of the first one and its centres."""


def experiment(code: Mapping[str, ModuleType], method: str, **changes: Value) -> Experiment:
    values = {**code["table"].METHODS[method], "report": False, **changes}
    return Experiment.load(FOLDER / "heart.toml", values)


@pytest.mark.parametrize("method", REFERENCES)
def test_keys_alone_are_flambys_algorithm(
    method: str, code: Mapping[str, ModuleType], tmp_path: Path
) -> None:
    """Full batches, which leave no order of rows to differ by."""
    made = write_hospitals(tmp_path)
    changes = {"num-rounds": ROUNDS, "local-steps": STEPS, "batch-size": 0}
    asked = experiment(code, method, **changes, **{"data-dir": str(tmp_path)})
    torch.manual_seed(42)
    first = torch.nn.Linear(13, 1)
    w = np.append(first.weight.detach().numpy()[0], first.bias.item()).astype(float)
    wanted = REFERENCES[method](w, [flambys_parts(*made[k]) for k in ORDER])
    arrays = run_digits(asked).arrays[-1]
    found = np.append(arrays["linear.weight"][0], arrays["linear.bias"])
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-6)
    assert not np.allclose(found, w, atol=2e-5)


def test_each_centre_is_a_client_with_rows_scaled_by_its_own(
    code: Mapping[str, ModuleType], tmp_path: Path
) -> None:
    made = write_hospitals(tmp_path)
    values = experiment(code, "FedAvg", **{"data-dir": str(tmp_path)}).values
    data = load_federated_data(values, 42)
    for client, centre in enumerate(ORDER):
        rows, labels = made[centre]
        own, _ = flambys_parts(rows, labels)
        train, test = data.client(client).train, data.client(client).test
        assert (len(train), len(test)) == (len(own), len(labels) - len(own))
        assert sorted(train.features.sum(1).tolist()) == pytest.approx(
            sorted(own.sum(1)), abs=1e-4
        )


def test_the_page_has_the_table_of_its_files(code: Mapping[str, ModuleType]) -> None:
    page = (FOLDER / "README.md").read_text()
    assert code["table"].table() in page
    of_page = [line for line in page.splitlines() if line.startswith("| FedAvg | fedsuite")]
    assert of_page == ["| FedAvg | fedsuite | 73.08 | 72.58 | 64.89 | 65.00 |"]
    keys_of_page = page.partition("keys beside those")[2].splitlines()
    for method, keys in code["table"].METHODS.items():
        row = next(line for line in keys_of_page if line.startswith(f"| {method} |"))
        assert set(re.findall(r"`(.*?)`", row)) == {
            f"{name} = {toml_text(value)}" for name, value in keys.items()
        }


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="FEDSUITE_DATA names no heart_disease")
def test_the_real_rows_give_the_pages_numbers(code: Mapping[str, ModuleType]) -> None:
    with (FOLDER / "results" / "heart_by_seed.csv").open() as file:
        rows = list(csv.DictReader(file))
    for method in ("Local", "FedAvg", "Scaffold", "FedAdagrad"):
        known = [row for row in rows if (row["method"], row["seed"]) == (method, "42")]
        wanted = [float(row["accuracy"]) for row in known]
        assert code["table"].accuracies(method, 42) == pytest.approx(wanted, abs=1e-3)
