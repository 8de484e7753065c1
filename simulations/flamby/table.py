"""Runs FLamby's strategies on its Fed-Heart-Disease, and prints README's table.

    PYTHONPATH=simulations/flamby python simulations/flamby/table.py run    # writes the CSV
    PYTHONPATH=simulations/flamby python simulations/flamby/table.py table  # prints it

The variable FEDSUITE_DATA names the folder above `heart_disease`. The first command takes
about a minute of one core.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean

from fedsuite.core.keys import Value
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment

HERE = Path(__file__).parent
RUNS = HERE / "results" / "heart_by_seed.csv"
FLAMBY = HERE / "results" / "flamby.csv"
SEEDS = range(42, 47)
CENTRES = ("Cleveland", "Hungarian", "V.A.", "Switzerland")
"""Clients 0 to 3: the largest hospital is the first."""

_ADAPTIVE: Mapping[str, Value] = {
    "server-beta1": 0.9,
    "server-beta2": 0.999,
    "server-tau": 1e-8,
}
METHODS: Mapping[str, Mapping[str, Value]] = {
    "Local": {
        "method": "standalone",
        "optimizer": "adam",
        "num-rounds": 1,
        "local-steps": 0,
        "local-epochs": 50,
    },
    "FedAvg": {},
    "FedProx": {"method": "fedprox", "proximal-mu": 0.01},
    "Scaffold": {"method": "scaffold", "scaffold-mean": "rows"},
    "FedAdam": {
        "server-optimizer": "adam",
        "server-adaptive-rate": 0.01,
        "learning-rate": 0.01,
        **_ADAPTIVE,
    },
    "FedYogi": {
        "server-optimizer": "yogi",
        "server-adaptive-rate": 0.01,
        "learning-rate": 0.003162,
        **_ADAPTIVE,
    },
    "FedAdagrad": {
        "server-optimizer": "adagrad",
        "server-adaptive-rate": 0.316228,
        "learning-rate": 0.003162,
        "server-beta1": 0.9,
        "server-tau": 1e-8,
    },
    "Cyclic": {"method": "cyclic", "learning-rate": 0.01},
}
"""FLamby's strategies and its hyperparameters, as keys beside those of heart.toml."""


def accuracies(method: str, seed: int) -> list[float]:
    """Run a method; return the last accuracy in percent at each centre."""
    values = {**METHODS[method], "seed": seed, "workers": 1, "report": False}
    experiment = Experiment.load(HERE / "heart.toml", values)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run_local(experiment, Path(folder) / "run")
        lines = (Path(folder) / "run" / "clients.jsonl").read_text().splitlines()
    rows = map(json.loads, lines[-len(CENTRES) :])
    return [100 * row["accuracy"] for row in sorted(rows, key=lambda row: row["client"])]


def run() -> None:
    """Run all methods with all seeds."""
    with RUNS.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("method", "seed", "centre", "accuracy"))
        for method in METHODS:
            for seed in SEEDS:
                for centre, score in zip(CENTRES, accuracies(method, seed), strict=True):
                    out.writerow((method, seed, centre, f"{score:.4f}"))
            file.flush()


def means(file: Path, column: str) -> dict[tuple[str, str], float]:
    """Return the mean of a column for each method and centre, over the seeds there are."""
    scores: dict[tuple[str, str], list[float]] = {}
    with file.open() as lines:
        for row in csv.DictReader(lines):
            key = row["method"], row["centre"]
            scores.setdefault(key, []).append(float(row[column]))
    return {key: fmean(values) for key, values in scores.items()}


def table() -> str:
    """Return the table of README: ours, FLamby's code, FLamby's published figures."""
    sources = (
        ("fedsuite", means(RUNS, "accuracy")),
        ("FLamby's code", means(FLAMBY, "code")),
        ("published", means(FLAMBY, "published")),
    )
    lines = [
        f"| method | figures | {' | '.join(CENTRES)} |",
        "| --- | --- |" + " ---: |" * len(CENTRES),
    ]
    for method in METHODS:
        for source, scores in sources:
            cells = [f"{scores[method, centre]:.2f}" for centre in CENTRES]
            name = method if source == "fedsuite" else ""
            lines.append(f"| {name} | {source} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    else:
        print(table())
