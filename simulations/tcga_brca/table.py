"""Runs FLamby's strategies on Fed-TCGA-BRCA, and prints README's table.

    python simulations/tcga_brca/table.py run    # makes the runs that the CSV lacks
    python simulations/tcga_brca/table.py table  # prints the table

All runs take an hour of one core. `run` keeps each run when it ends: stop it at any time,
and start it again. The variable FEDSUITE_DATA names the folder above `tcga_brca`.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t

from fedsuite.core.files import atomic_write
from fedsuite.core.keys import Value
from fedsuite.core.reading import read_arrays
from fedsuite.engines.local import run_local
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.tables import csv_table
from fedsuite.training.survival_scores import concordance

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

POOLED: Mapping[str, Value] = {
    "num-clients": 1,
    "natural-ids": "group",
    "optimizer": "adam",
    "num-rounds": 1,
    "local-steps": 0,
    "local-epochs": 30,
    "evaluate-every": 1,
}
"""FLamby's pooled training: all rows at one client, whose risk sets mix regions."""

NAMES = tuple(dict.fromkeys(("Local", "Pooled Training", *METHODS)))
"""Rows of the table, in this order."""

SCALINGS = ("standard", "federated")
"""The table's numbers as they are, and each column brought to mean 0 and deviation 1."""

COLUMNS = ("method", "scaling", "seed", "region", "concordance")

Runs = dict[tuple[str, str, int], list[float]]
"""Concordance in each region by method, scaling and seed."""


def concordances(method: str, scaling: str, seed: int) -> list[float]:
    """Run a method; return the last concordance in each region."""
    settings = POOLED if method == "Pooled Training" else METHODS[method]
    values = {**settings, "scaling": scaling, "seed": seed, "workers": 1, "report": False}
    experiment = Experiment.load(HERE / "brca.toml", values)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run_local(experiment, Path(folder) / "run")
        if settings is POOLED:
            return _of_regions(Path(folder) / "run", scaling)
        lines = (Path(folder) / "run" / "clients.jsonl").read_text().splitlines()
    rows = map(json.loads, lines[-len(REGIONS) :])
    return [row["concordance"] for row in sorted(rows, key=lambda row: row["client"])]


def _of_regions(folder: Path, scaling: str) -> list[float]:
    """Return the concordance of a run's one linear model on each region's test rows."""
    arrays, _ = read_arrays(folder / "model.safetensors")
    data = federated_data(Experiment.load(HERE / "brca.toml", {"scaling": scaling}))
    scores = []
    for k in range(data.num_clients):
        test = data.client(k).test
        risks = test.features.double().numpy() @ arrays["1.weight"][0].astype(float)
        times, events = test.labels.double().numpy().T
        scores.append(concordance(times, events, risks))
    return scores


def planned() -> Iterator[tuple[str, str, int]]:
    """Yield all runs, FLamby's seeds before the others."""
    for scaling in SCALINGS:
        for seeds in (FLAMBYS_SEEDS, SEEDS[len(FLAMBYS_SEEDS) :]):
            for method in NAMES:
                for seed in seeds:
                    yield method, scaling, seed


def there() -> Runs:
    """Return the runs of the CSV, without one that lacks a region."""
    runs: Runs = {}
    with RUNS.open() as lines:
        for row in csv.DictReader(lines):
            key = row["method"], row["scaling"], int(row["seed"])
            runs.setdefault(key, []).append(float(row["concordance"]))
    return {key: scores for key, scores in runs.items() if len(scores) == len(REGIONS)}


def run() -> None:
    """Make the runs that the CSV lacks, and keep each when it ends."""
    runs = there()
    for key in planned():
        if key in runs:
            continue
        runs[key] = concordances(*key)
        lines = [
            [*key, region, f"{score:.4f}"]
            for key in planned()
            for region, score in zip(REGIONS, runs.get(key, ()), strict=False)
        ]
        atomic_write(RUNS, csv_table([COLUMNS, *lines]).encode())


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
    for method in NAMES:
        name = method
        for source, scores in sources:
            if (method, REGIONS[0]) in scores:
                cells = [f"{scores[method, region]:.3f}" for region in REGIONS]
                lines.append(f"| {name} | {source} | {' | '.join(cells)} |")
                name = ""
    return "\n".join(lines)


def outside() -> str:
    """Return which published figures lie outside what five seeds of ours would give.

    The 95 % interval of the mean of five further seeds, from the runs of all seeds.
    """
    runs, k = there(), len(FLAMBYS_SEEDS)
    published = means(FLAMBY, "", "published")
    lines = []
    for (method, region), figure in published.items():
        place = REGIONS.index(region)
        own = [runs[method, "standard", seed][place] for seed in SEEDS]
        factor = float(t.ppf(0.975, len(own) - 1)) * (1 / k + 1 / len(own)) ** 0.5
        if abs(figure - fmean(own)) > factor * stdev(own):
            lines.append(f"{method}, {region}: {fmean(own):.3f}, published {figure:.3f}")
    return "\n".join([f"outside: {len(lines)} of {len(published)} figures", *lines])


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    else:
        print(table())
        print(outside())
