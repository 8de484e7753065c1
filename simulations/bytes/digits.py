"""Accuracy and bytes of each way to compress what travels, on digits.

    python simulations/bytes/digits.py --output simulations/bytes/results/digits.csv

Ten clients of a Dirichlet division, 30 rounds of FedAvg with all of them, a network of
64-64-10, five seeds. Bytes are the run's own count, of messages to train.
"""

import argparse
import csv
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import fedsuite
from fedsuite.core.keys import Value

BASE: Mapping[str, Value] = {
    "method": "fedavg",
    "dataset": "digits",
    "partitioner": "dirichlet",
    "model": "mlp",
    "hidden-width": 64,
    "hidden-layers": 1,
    "num-clients": 10,
    "num-rounds": 30,
    "local-epochs": 1,
    "batch-size": 16,
    "learning-rate": 0.1,
    "optimizer": "sgd",
    "evaluate-every": 30,
    "checkpoint-every": 0,
    "report": False,
}

SETTINGS: tuple[Mapping[str, Value], ...] = (
    {},
    {"compress-up": "float16"},
    {"compress-up": "bfloat16"},
    {"compress-up": "qsgd", "compress-bits": 8},
    {"compress-up": "qsgd", "compress-bits": 4},
    {"compress-up": "qsgd", "compress-bits": 2},
    {"compress-up": "signs"},
    {"compress-up": "low-rank", "compress-rank": 2},
    {"compress-up": "top-k", "compress-share": 0.05},
    {"compress-up": "top-k", "compress-share": 0.01},
    {"compress-up": "random-k", "compress-share": 0.05},
    {"compress-up": "float16", "compress-down": "float16"},
    {"compress-up": "qsgd", "compress-down": "qsgd", "compress-bits": 8},
    {"compress-up": "qsgd", "compress-down": "qsgd", "compress-bits": 4},
    {"compress-up": "signs", "compress-down": "signs"},
    {"compress-up": "top-k", "compress-down": "top-k", "compress-share": 0.05},
)

COLUMNS = ("setting", "seed", "accuracy", "bytes_up", "bytes_down")


def main() -> None:
    """Run all settings, and write a row for each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    more: dict[str, Value] = {}
    for pair in arguments.set:
        key, _, value = pair.partition("=")
        more[key] = int(value) if value.isdigit() else value
    with arguments.output.open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for setting in SETTINGS:
            made = [
                measured({**BASE, **more, **setting}, s) for s in range(arguments.seeds)
            ]
            name = " ".join(f"{k}={v}" for k, v in setting.items()) or "none"
            for seed, row in enumerate(made):
                rows.writerow({"setting": name, "seed": seed, **row})
            file.flush()
            accuracies = [100 * row["accuracy"] for row in made]
            means = (statistics.mean(row[n] for row in made) / 1e6 for n in COLUMNS[3:])
            up, down = (f"{mean:.3f}" for mean in means)
            spread = statistics.stdev(accuracies) if len(made) > 1 else 0.0
            print(
                f"| `{name}` | {up} | {down} | {statistics.mean(accuracies):.1f} "
                f"+- {spread:.1f} |",
                flush=True,
            )


def measured(values: Mapping[str, Value], seed: int) -> dict[str, float]:
    """Return accuracy and bytes of a run."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        places = {"output-dir": folder, "run-name": "run", "seed": seed}
        run = fedsuite.run({**values, **places})
        rounds = list(run.rounds)
    return {
        "accuracy": float(rounds[-1]["accuracy_mean"]),
        "bytes_up": sum(float(r["bytes_up"]) for r in rounds),
        "bytes_down": sum(float(r["bytes_down_train"]) for r in rounds),
    }


if __name__ == "__main__":
    main()
