"""Runs FLamby's strategies on Fed-TCGA-BRCA, and prints README's table.

    python simulations/tcga_brca/table.py run    # writes the CSV, in half an hour
    python simulations/tcga_brca/table.py table  # prints the table

The variable FEDSUITE_DATA names the folder above `tcga_brca`.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean

from fedsuite.core.keys import Value
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment

HERE = Path(__file__).parent
RUNS = HERE / "results" / "brca_by_seed.csv"
FLAMBY = HERE / "results" / "flamby.csv"
FLAMBYS_SEEDS = range(42, 47)
SEEDS = range(42, 62)
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")

_ADAPTIVE: Mapping[str, Value] = {
    "learning-rate": 0.01,
    "server-beta1": 0.9,
    "server-tau": 1e-8,
}
_ALONE: Mapping[str, Value] = {
    "optimizer": "adam",
    "num-rounds": 1,
    "local-steps": 0,
    "local-epochs": 30,
}
METHODS: Mapping[str, Mapping[str, Value]] = {
    "Local": {"method": "standalone", **_ALONE},
    "FedAvg": {},
    "FedProx": {"method": "fedprox", "proximal-mu": 0.1},
    "Scaffold": {"method": "scaffold", "scaffold-mean": "rows", "learning-rate": 0.01},
    "FedAdam": {
        "server-optimizer": "adam",
        "server-adaptive-rate": 0.1,
        "server-beta2": 0.999,
        **_ADAPTIVE,
    },
    "FedYogi": {
        "server-optimizer": "yogi",
        "server-adaptive-rate": 0.1,
        "server-beta2": 0.999,
        **_ADAPTIVE,
    },
    "FedAdagrad": {
        "server-optimizer": "adagrad",
        "server-adaptive-rate": 1.0,
        **_ADAPTIVE,
    },
    "Cyclic": {"method": "cyclic", "learning-rate": 0.01},
    "Newton": {
        "method": "newton",
        "num-rounds": 12,
        "local-steps": 0,
        "evaluate-every": 12,
        "weight-decay": 1e-5,
    },
}
"""FLamby's strategies and its hyperparameters, as keys beside those of brca.toml.

Newton is not FLamby's: the Cox model stratified by region, fitted to all regions' rows.
"""

SCALINGS = ("standard", "federated")
"""The table's numbers as they are, and each column brought to mean 0 and deviation 1."""


def concordances(method: str, scaling: str, seed: int) -> list[float]:
    """Run a method; return the last concordance in each region."""
    values = {**METHODS[method], "scaling": scaling, "seed": seed, "workers": 1}
    experiment = Experiment.load(HERE / "brca.toml", {**values, "report": False})
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run_local(experiment, Path(folder) / "run")
        lines = (Path(folder) / "run" / "clients.jsonl").read_text().splitlines()
    rows = map(json.loads, lines[-len(REGIONS) :])
    return [row["concordance"] for row in sorted(rows, key=lambda row: row["client"])]


def run() -> None:
    """Run all methods on both scalings with all seeds."""
    with RUNS.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(("method", "scaling", "seed", "region", "concordance"))
        for scaling in SCALINGS:
            for method in METHODS:
                for seed in SEEDS:
                    scores = concordances(method, scaling, seed)
                    for region, score in zip(REGIONS, scores, strict=True):
                        out.writerow((method, scaling, seed, region, f"{score:.4f}"))
                file.flush()


def means(
    file: Path, scaling: str, column: str, seeds: Sequence[int] = SEEDS
) -> dict[tuple[str, str], float]:
    """Return the mean of a column for each method and region, over seeds."""
    scores: dict[tuple[str, str], list[float]] = {}
    with file.open() as lines:
        for row in csv.DictReader(lines):
            one_of = int(row.get("seed", seeds[0])) in seeds
            if one_of and row.get("scaling", scaling) == scaling:
                key = row["method"], row["region"]
                scores.setdefault(key, []).append(float(row[column]))
    return {key: fmean(values) for key, values in scores.items()}


def table() -> str:
    """Return the table of README: ours on both scalings, and FLamby's figures."""
    sources = (
        ("seeds 42 to 46", means(RUNS, "standard", "concordance", FLAMBYS_SEEDS)),
        ("seeds 42 to 61", means(RUNS, "standard", "concordance")),
        ("scaled, 42 to 61", means(RUNS, "federated", "concordance")),
        ("published", means(FLAMBY, "", "published")),
    )
    lines = [
        f"| method | figures | {' | '.join(REGIONS)} |",
        "| --- | --- |" + " ---: |" * len(REGIONS),
    ]
    for method in METHODS:
        name = method
        for source, scores in sources:
            if (method, REGIONS[0]) in scores:
                cells = [f"{scores[method, region]:.3f}" for region in REGIONS]
                lines.append(f"| {name} | {source} | {' | '.join(cells)} |")
                name = ""
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    else:
        print(table())
