"""Sets networks with two survival losses beside the linear Cox model, together and alone.

    python simulations/tcga_brca/networks.py run    # makes the runs that the CSV lacks
    python simulations/tcga_brca/networks.py table  # prints README's tables

The variable FEDSUITE_DATA names the folder above `tcga_brca`. `protocol.md` says what is
fixed. `run` keeps each run when it ends.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean

from fedsuite.core.files import atomic_write
from fedsuite.core.keys import Value
from fedsuite.engines.local import run_local
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.paired import paired
from fedsuite.results.tables import csv_table

HERE = Path(__file__).parent
RUNS = HERE / "results" / "networks_by_seed.csv"
SHARED: Mapping[str, Value] = {
    "scaling": "federated",
    "fresh-test-split": True,
    "client-validation-fraction": 0.2,
    "workers": 1,
    "report": False,
}
DISCRETE: Mapping[str, Value] = {
    "loss": "discrete-time",
    "interval-ends": "365, 730, 1460, 2920",
}
MODELS: Mapping[str, Mapping[str, Value]] = {
    "linear, Cox": {},
    "MLP, Cox": {"model": "mlp"},
    "MLP, discrete-time": {"model": "mlp", **DISCRETE},
}
METHODS = ("fedavg", "standalone")
RATES = (0.01, 0.1)
CHOICE_SEEDS = (101, 102)
SEEDS = (1, 2, 3, 4, 5)
BASELINE = "linear, Cox"
SCORES = ("validation_concordance", "whole_test_concordance", "concordance")
COLUMNS = ("model", "method", "rate", "seed", *SCORES)

Key = tuple[str, str, float, int]
Runs = dict[Key, list[float]]
"""Means over clients of SCORES by model, method, rate and seed."""


def scores(model: str, method: str, rate: float, seed: int) -> list[float]:
    """Run a contender; return the means of SCORES over the clients that have them."""
    own = {**MODELS[model], "method": method, "learning-rate": rate, "seed": seed}
    experiment = Experiment.load(HERE / "brca.toml", {**SHARED, **own})
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run_local(experiment, Path(folder) / "run")
        lines = (Path(folder) / "run" / "clients.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "evaluate"]
    last = [row for row in rows if row["round"] == experiment["num-rounds"]]
    return [
        fmean(row[name] for row in last if row.get(name) is not None) for name in SCORES
    ]


def there() -> Runs:
    """Return the runs of the CSV."""
    if not RUNS.exists():
        return {}
    with RUNS.open() as lines:
        return {
            (row["model"], row["method"], float(row["rate"]), int(row["seed"])): [
                float(row[name]) for name in SCORES
            ]
            for row in csv.DictReader(lines)
        }


def chosen_rate(runs: Runs, model: str, method: str) -> float:
    """Return the rate with the best validation concordance; the lower of equal ones."""

    def validation(rate: float) -> float:
        return fmean(runs[model, method, rate, seed][0] for seed in CHOICE_SEEDS)

    return max(RATES, key=validation)


def planned(runs: Runs) -> Iterator[Key]:
    """Yield all runs: those that choose rates, then those of the chosen ones."""
    contenders = [(model, method) for model in MODELS for method in METHODS]
    for contender in contenders:
        for rate in RATES:
            yield from ((*contender, rate, seed) for seed in CHOICE_SEEDS)
    for seed in SEEDS:
        for contender in contenders:
            yield (*contender, chosen_rate(runs, *contender), seed)


def run() -> None:
    """Make the runs that the CSV lacks, and keep each when it ends."""
    runs = there()
    for key in planned(runs):
        if key not in runs:
            runs[key] = scores(*key)
            lines = [[*k, *(f"{n:.4f}" for n in own)] for k, own in runs.items()]
            atomic_write(RUNS, csv_table([COLUMNS, *lines]).encode())


def test_share() -> float:
    """Return the test rows per training row."""
    data = federated_data(Experiment.load(HERE / "brca.toml", {**SHARED, "seed": SEEDS[0]}))
    clients = [data.client(k) for k in range(data.num_clients)]
    return sum(len(c.test) for c in clients) / sum(len(c.train) for c in clients)


def table() -> str:
    """Return the tables of README: means, and differences from the linear Cox model."""
    runs, share = there(), test_share()
    finals = {
        (model, method): [
            runs[model, method, chosen_rate(runs, model, method), seed] for seed in SEEDS
        ]
        for model in MODELS
        for method in METHODS
    }
    lines = [
        "| model, loss | training | rate | all test rows | own region's |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for (model, method), own in finals.items():
        whole, regions = (fmean(each[k] for each in own) for k in (1, 2))
        rate = chosen_rate(runs, model, method)
        lines.append(f"| {model} | {method} | {rate:g} | {whole:.3f} | {regions:.3f} |")
    lines += [
        "",
        "| difference, all test rows | mean | 95 % interval |",
        "| --- | ---: | ---: |",
    ]
    pairs = [((m, "fedavg"), (BASELINE, "fedavg")) for m in MODELS if m != BASELINE]
    pairs += [((m, "fedavg"), (m, "standalone")) for m in MODELS]
    for one, other in pairs:
        numbers = [a[1] - b[1] for a, b in zip(finals[one], finals[other], strict=True)]
        difference = paired(numbers, share)
        half = difference.half or 0.0
        low, high = difference.mean - half, difference.mean + half
        name = f"{', '.join(one)} minus {', '.join(other)}"
        lines.append(f"| {name} | {difference.mean:+.3f} | [{low:+.3f}, {high:+.3f}] |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    else:
        print(table())
