"""Adapters against a whole layer, the head alone, and training alone: accuracy and bytes.

    cd simulations/text && export PYTHONPATH=$PWD
    python compare.py tune    # adds the missing trials to results/tuning.csv
    python compare.py run     # adds the missing runs to results/by_seed.csv
    python compare.py table   # prints the table of README.md

The rules are those of protocol.md. Each command goes on where it was stopped.
"""

import csv
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.results.paired import paired
from fedsuite.results.tables import markdown_table

RESULTS = Path(__file__).parent / "results"
TUNING = RESULTS / "tuning.csv"
RUNS = RESULTS / "by_seed.csv"
MADE_ON = RESULTS / "made_on.csv"
TUNING_COLUMNS = ("arm", "learning_rate", "validation_accuracy")
COLUMNS = ("arm", "seed", "accuracy", "mb_up", "mb_down", "processor_seconds")

SEEDS = range(1, 6)
TUNING_SEED = 101
ROUNDS, STEPS = 6, 4
TEST_FRACTION = 0.25

BASE: Mapping[str, Value] = {
    "method": "fedavg",
    "model": "docstrings:LastLayer",
    "dataset": "docstrings:read",
    "test-fraction": TEST_FRACTION,
    "fresh-test-split": True,
    "partitioner": "dirichlet",
    "dirichlet-alpha": 0.5,
    "dirichlet-min-size": 10,
    "num-clients": 20,
    "num-rounds": ROUNDS,
    "evaluate-every": ROUNDS,
    "local-steps": STEPS,
    "optimizer": "adam",
    "batch-size": 8,
    "checkpoint-every": 0,
    "report": False,
}
LORA: Mapping[str, Value] = {"lora-rank": 4, "lora-alpha": 8.0}
RANKS = "; ".join(f"{k}: lora-rank={2 ** (k % 4)}" for k in range(20) if k % 4 < 3)

WHOLE, ADAPTERS, HEAD, ALONE = "whole layer", "adapters", "head alone", "each alone"
ENCODER = "all six layers"
ARMS: Mapping[str, Mapping[str, Value]] = {
    WHOLE: {},
    ADAPTERS: {**LORA, "travels": "trainable"},
    "ranks of 1, 2, 4 and 8": {
        "lora-rank": 8,
        "lora-alpha": 16.0,
        "lora-average": "products",
        "client-settings": RANKS,
        "travels": "trainable",
    },
    "A frozen": {**LORA, "travels": "*.lora_b, head.*"},
    HEAD: {"travels": "head.*"},
    ENCODER: {"model": "docstrings:AllLayers", "dataset": "docstrings:read_embedded"},
    # Nobody is waited for: twice the others' steps, at once.
    ALONE: {
        **LORA,
        "method": "standalone",
        "num-rounds": 1,
        "evaluate-every": 1,
        "local-steps": 2 * ROUNDS * STEPS,
    },
}
RATES: Mapping[str, Sequence[float]] = {
    WHOLE: (0.0001, 0.0003, 0.001),
    ADAPTERS: (0.001, 0.003, 0.01),
    HEAD: (0.003, 0.01, 0.03),
    ALONE: (0.001, 0.003),
    ENCODER: (0.0001, 0.0003, 0.001),
}
"""Learning rates that are tried. Arms that are not named take the adapters'."""


def rounds_of(values: Mapping[str, Value]) -> list[Mapping[str, Any]]:
    """Run an experiment; return the rows of its rounds."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run = fedsuite.run({**values, "output-dir": folder, "run-name": "run"})
        return list(run.rounds)


def add(path: Path, columns: Sequence[str], row: Sequence[object]) -> None:
    """Add a row to a table, with its header where it is the first."""
    rows = [row] if path.exists() else [columns, row]
    path.parent.mkdir(exist_ok=True)
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table that may not be there yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def tune() -> None:
    """Run each arm of the grid with each of its learning rates."""
    for arm, rates in RATES.items():
        for rate in rates:
            if (arm, rate) in scores():
                continue
            own = {"learning-rate": rate, "client-validation-fraction": 0.2}
            values = {**BASE, **ARMS[arm], **own, "seed": TUNING_SEED}
            score = rounds_of(values)[-1]["validation_accuracy_mean"]
            add(TUNING, TUNING_COLUMNS, (arm, rate, f"{score:.5f}"))


def scores() -> dict[tuple[str, float], float]:
    """Return the validation accuracy, a fraction, of each arm with each rate."""
    return {
        (row["arm"], float(row["learning_rate"])): float(row["validation_accuracy"])
        for row in read(TUNING)
    }


def best_rate(arm: str) -> float:
    """Return the rate with the best score of an arm, the smaller one of equals."""
    tuned, known = arm if arm in RATES else ADAPTERS, scores()
    return max(RATES[tuned], key=lambda rate: (known[tuned, rate], -rate))


def run() -> None:
    """Run each arm with each seed, seed by seed."""
    if not MADE_ON.exists():
        facts = machine()
        add(MADE_ON, tuple(facts), tuple(facts.values()))
    for seed in SEEDS:
        for arm in ARMS:
            if (arm, seed) not in accuracies():
                add(RUNS, COLUMNS, measured(arm, seed))


def measured(arm: str, seed: int) -> Sequence[object]:
    """Run an arm; return its row."""
    values = {**BASE, **ARMS[arm], "learning-rate": best_rate(arm), "seed": seed}
    began = time.process_time()
    rounds = rounds_of(values)
    seconds = time.process_time() - began
    up = sum(float(row["bytes_up"]) for row in rounds) / 1e6
    down = sum(float(row["bytes_down_train"]) for row in rounds) / 1e6
    accuracy = f"{rounds[-1]['accuracy_mean']:.5f}"
    return arm, seed, accuracy, f"{up:.4f}", f"{down:.4f}", f"{seconds:.1f}"


def machine() -> dict[str, str]:
    """Return what made the runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.split(":")[1].strip() for x in lines if "model name" in x), "unknown")
    return {
        "command": "python compare.py tune; python compare.py run",
        "tuning_seed": str(TUNING_SEED),
        "machine": f"{model}, one thread, beside other work",
        "python": platform.python_version(),
        **{name: version(name) for name in ("scipy", "torch", "transformers", "flwr")},
    }


def accuracies() -> dict[tuple[str, int], float]:
    """Return the accuracy, in per cent, of each arm with each seed."""
    return {
        (row["arm"], int(row["seed"])): 100 * float(row["accuracy"]) for row in read(RUNS)
    }


def table() -> str:
    """Return the table, over the seeds of which all arms have run."""
    known, rows = accuracies(), read(RUNS)
    seeds = [seed for seed in SEEDS if all((arm, seed) in known for arm in ARMS)]
    ratio = TEST_FRACTION / (1 - TEST_FRACTION)
    cells = []
    for arm in ARMS:
        own = [known[arm, seed] for seed in seeds]
        over = {
            base: paired([known[arm, s] - known[base, s] for s in seeds], ratio).intervals
            for base in (WHOLE, HEAD)
            if base != arm
        }
        sent = [r for r in rows if r["arm"] == arm and int(r["seed"]) in seeds]
        up, down = (fmean(float(r[name]) for r in sent) for name in ("mb_up", "mb_down"))
        cells.append(
            (
                arm,
                f"{best_rate(arm):g}",
                f"{up:,.1f}",
                f"{down:,.1f}",
                f"{fmean(own):.1f}",
                *(over.get(base, "") for base in (WHOLE, HEAD)),
            )
        )
    header = ("trained and sent", "rate", "MB up", "MB down", "accuracy, %")
    against = (f"over {WHOLE}, points", f"over {HEAD}, points")
    return markdown_table([(*header, *against), *cells])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tune"]:
            tune()
        case ["run"]:
            run()
        case ["table"]:
            print(table())
        case _:
            raise SystemExit("give tune, run or table")
