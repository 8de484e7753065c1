"""What methods cost in three worlds of devices, by the hour and the gigabyte.

    python simulations/hours/hours.py tune    # adds the missing trials to tuning.csv
    python simulations/hours/hours.py run     # adds the missing runs to by_seed.csv

The rules are those of protocol.md. Each command goes on where it was stopped.
"""

import csv
import math
import platform
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import fedsuite
from fedsuite.core.keys import Value
from fedsuite.core.text import read_text

HERE = Path(__file__).parent
TUNING = HERE / "results" / "tuning.csv"
RUNS = HERE / "results" / "by_seed.csv"
MADE_ON = HERE / "results" / "made_on.csv"
TUNING_COLUMNS = ("arm", "learning_rate", "validation_accuracy")
COLUMNS = (
    *("world", "arm", "seed", "round"),
    *("virtual_seconds", "mb_up", "mb_down", "accuracy"),
)

SEEDS = range(1, 6)
TUNING_SEED = 101
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
BELOW = 3.0
"""Points of the target below FedAvg's best validation accuracy."""

BASE: Mapping[str, Value] = {
    "dataset": "digits",
    "fresh-test-split": True,
    "partitioner": "dirichlet",
    "dirichlet-alpha": 0.5,
    "model": "mlp",
    "hidden-width": 256,
    "hidden-layers": 2,
    "num-clients": 20,
    "clients-per-round": 10,
    "client-validation-fraction": 0.2,
    "num-rounds": 30,
    "evaluate-every": 2,
    "local-epochs": 2,
    "batch-size": 16,
    "optimizer": "sgd",
    "checkpoint-every": 0,
    "report": False,
    "workers": 1,
}

WORLDS = ("data-centre", "phones-at-night", "hospitals")

FEDAVG = "fedavg"
ARMS: Mapping[str, Mapping[str, Value]] = {
    FEDAVG: {"method": "fedavg"},
    "fedavg-ft": {"method": "fedavg-ft"},
    "fedavgm": {"method": "fedavg", "server-momentum": 0.9},
    "feddyn": {"method": "feddyn"},
    "fedpac": {"method": "fedpac"},
    "fedrod": {"method": "fedrod"},
    "fedbuff": {"method": "fedbuff", "num-rounds": 60, "evaluate-every": 4},
    "over-select": {"method": "fedavg", "over-select": 1.3},
    "compressed": {
        "method": "fedavg",
        "compress-up": "qsgd",
        "compress-down": "qsgd",
        "compress-bits": 4,
    },
    "placebo": {"method": "fedavg", "momentum": 0.001},
    "standalone": {"method": "standalone", "clients-per-round": 0},
}
RATE_OF = {"over-select": FEDAVG, "compressed": FEDAVG, "placebo": FEDAVG}
"""Arms that are FedAvg with an option, and take its learning rate."""

SAY = {
    FEDAVG: "FedAvg",
    "fedavg-ft": "FedAvg, then fine-tuned",
    "fedavgm": "FedAvg with server momentum 0.9",
    "feddyn": "FedDyn",
    "fedpac": "FedPAC",
    "fedrod": "FedRoD",
    "fedbuff": "FedBuff, half of the replies",
    "over-select": "FedAvg, 13 asked for 10",
    "compressed": "FedAvg, 4 bits both ways",
    "placebo": "placebo (momentum 0.001)",
    "standalone": "training alone",
}


class Evaluation(NamedTuple):
    """What a run had spent, and its accuracy then."""

    server_round: int
    seconds: float
    mb_up: float
    mb_down: float
    accuracy: float


Curves = Mapping[tuple[str, str, int], Sequence[Evaluation]]


# ----------------------------------------------------------------------------- the runs


def rounds_of(values: Mapping[str, Value]) -> list[Mapping[str, Any]]:
    """Run an experiment; return the rows of its rounds."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run = fedsuite.run({**values, "output-dir": folder, "run-name": "run"})
        return list(run.rounds)


def add(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows to a table, all of a run at once."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if not path.exists():
        lines.writerow(columns)
    lines.writerows(rows)
    with path.open("a", newline="") as file:
        file.write(text.getvalue())


def tune() -> None:
    """Run each arm with each learning rate."""
    for arm in ARMS:
        for rate in RATES:
            if arm in RATE_OF or (arm, rate) in scores():
                continue
            rounds = rounds_of(
                {**BASE, **ARMS[arm], "learning-rate": rate, "seed": TUNING_SEED}
            )
            rows = [r for r in rounds if "validation_accuracy_mean" in r][-3:]
            score = fmean(float(r["validation_accuracy_mean"]) for r in rows)
            add(TUNING, TUNING_COLUMNS, [(arm, rate, f"{score:.6f}")])


def run() -> None:
    """Run each arm in each world with each seed, seed by seed."""
    if not MADE_ON.exists():
        facts = machine()
        add(MADE_ON, tuple(facts), [tuple(facts.values())])
    for seed in SEEDS:
        for world in WORLDS:
            for arm in ARMS:
                if (world, arm, seed) not in curves():
                    add(RUNS, COLUMNS, measured(world, arm, seed))


def measured(world: str, arm: str, seed: int) -> list[tuple[object, ...]]:
    """Run an arm; return a row for each evaluation."""
    rate = best_rates()[RATE_OF.get(arm, arm)]
    rounds = rounds_of(
        {**BASE, **ARMS[arm], "learning-rate": rate, "devices": world, "seed": seed}
    )
    rows: list[tuple[object, ...]] = []
    up = down = 0.0
    for row in rounds:
        up += float(row.get("bytes_up") or 0) / 1e6
        down += float(row.get("bytes_down_train") or 0) / 1e6
        if "accuracy_mean" in row:
            costs = f"{row['virtual_seconds']:.3f}", f"{up:.4f}", f"{down:.4f}"
            accuracy = f"{row['accuracy_mean']:.5f}"
            rows.append((world, arm, seed, row["round"], *costs, accuracy))
    return rows


def machine() -> dict[str, str]:
    """Return what made the runs."""
    lines = read_text(Path("/proc/cpuinfo")).splitlines()
    model = next((x.split(":")[1].strip() for x in lines if "model name" in x), "unknown")
    return {
        "command": "python simulations/hours/hours.py tune; run",
        "seeds": " ".join(map(str, SEEDS)),
        "machine": f"{model}, one thread, beside other work",
        "python": platform.python_version(),
        "flwr": version("flwr"),
        "torch": version("torch"),
    }


# ---------------------------------------------------------------------------- the tables


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table that may not be there yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def scores() -> dict[tuple[str, float], float]:
    """Return the validation accuracy, a fraction, of each arm with each rate."""
    return {
        (row["arm"], float(row["learning_rate"])): float(row["validation_accuracy"])
        for row in read(TUNING)
    }


def best_rates() -> dict[str, float]:
    """Return the rate with the best score of each arm, the smaller one of equals."""
    known = scores()
    arms = [arm for arm in ARMS if arm not in RATE_OF]
    return {arm: max(RATES, key=lambda rate: (known[arm, rate], -rate)) for arm in arms}


def target() -> float:
    """Return the accuracy, a fraction, that a run has to reach."""
    best = max(scores()[FEDAVG, rate] for rate in RATES)
    return math.floor(100 * best - BELOW) / 100


def curves() -> Curves:
    """Return the evaluations of each run."""
    known: dict[tuple[str, str, int], list[Evaluation]] = defaultdict(list)
    for row in read(RUNS):
        numbers = (float(row[name]) for name in COLUMNS[4:])
        evaluation = Evaluation(int(row["round"]), *numbers)
        known[row["world"], row["arm"], int(row["seed"])].append(evaluation)
    return known


if __name__ == "__main__":
    commands = {"tune": tune, "run": run}
    commands[sys.argv[1]]()
