"""Adapters against the whole encoder and against training alone: accuracy and bytes.

    cd simulations/text && export PYTHONPATH=$PWD
    python compare.py --output results/docstrings.csv

Twenty clients of a Dirichlet division of 0.5: clients have few topics each. Every arm takes
the same number of local steps in all.
"""

import argparse
import csv
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import fedsuite
from fedsuite.core.keys import Value

BASE: Mapping[str, Value] = {
    "model": "docstrings:Encoder",
    "dataset": "docstrings:read",
    "partitioner": "dirichlet",
    "dirichlet-alpha": 0.5,
    "dirichlet-min-size": 10,
    "num-clients": 20,
    "optimizer": "adam",
    "batch-size": 16,
    "checkpoint-every": 0,
    "report": False,
    "seed": 0,
}
LORA: Mapping[str, Value] = {"lora-rank": 4, "lora-alpha": 8.0, "learning-rate": 0.003}
ARMS: Mapping[str, Mapping[str, Value]] = {
    "adapters": {**LORA, "method": "fedavg", "travels": "trainable"},
    "adapters, A frozen": {**LORA, "method": "fedavg", "travels": "*.lora_b, head.*"},
    "adapters in 4 bits": {
        **LORA,
        "method": "fedavg",
        "travels": "trainable",
        "compress-up": "qsgd",
        "compress-down": "qsgd",
        "compress-bits": 4,
    },
    "whole encoder": {"learning-rate": 0.0001, "method": "fedavg"},
    "adapters, each alone": {**LORA, "method": "standalone"},
}


def main() -> None:
    """Run the arms, and write a row for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--arms", default=", ".join(letters()))
    arguments = parser.parse_args()
    with arguments.output.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("arm", "accuracy", "mb_up", "mb_down", "seconds"))
        for arm in letters():
            if arm[0] not in arguments.arms:
                continue
            rounds, steps = arguments.rounds, arguments.steps
            if ARMS[named(arm)]["method"] == "standalone":
                # Nobody is waited for: all steps at once.
                rounds, steps = 1, rounds * steps
            values = {**BASE, **ARMS[named(arm)]}
            values |= {"num-rounds": rounds, "local-steps": steps, "evaluate-every": rounds}
            row = (named(arm), *measured(values))
            rows.writerow(row)
            file.flush()
            print(row, flush=True)


def letters() -> list[str]:
    """Return the arms as they are chosen on the command line: by letters."""
    return [chr(ord("a") + place) for place in range(len(ARMS))]


def named(arm: str) -> str:
    """Return an arm's name."""
    return list(ARMS)[ord(arm) - ord("a")]


def measured(values: Mapping[str, Value]) -> tuple[float, float, float, float]:
    """Return accuracy, megabytes up and down of training, and seconds of a run."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run = fedsuite.run({**values, "output-dir": folder, "run-name": "run"})
        rounds = list(run.rounds)
    up = sum(float(r["bytes_up"]) for r in rounds) / 1e6
    down = sum(float(r["bytes_down_train"]) for r in rounds) / 1e6
    seconds = time.monotonic() - began
    return float(rounds[-1]["accuracy_mean"]), round(up, 3), round(down, 3), round(seconds)


if __name__ == "__main__":
    main()
