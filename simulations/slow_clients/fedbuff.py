"""Runs FedBuff and FedAvg for equal planned time: the table of docs/how-to/slow_clients.md.

    python simulations/slow_clients/fedbuff.py run      # adds the missing rows to the CSV
    python simulations/slow_clients/fedbuff.py table    # prints the table of the CSV

The quickstart's ten clients, trainings of planned length with spread 1, seeds 0 to 4. A
seed's time is half of what FedAvg takes for the quickstart's 20 rounds. An arm's score is
its mean test accuracy over clients after the last round that ends within it.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy import stats

from fedsuite.core.keys import Value
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment

QUICKSTART = Path(__file__).parents[1] / "quickstart.toml"
ROWS = Path(__file__).parent / "results" / "fedbuff_by_seed.csv"
COLUMNS = ("arm", "seed", "time", "rounds", "accuracy")
SEEDS = range(5)
FEDAVG = "FedAvg (`fedbuff-share=1`)"
ARMS: dict[str, dict[str, Value]] = {
    FEDAVG: {"fedbuff-share": 1.0},
    "share 0.5, no discount": {"fedbuff-share": 0.5, "fedbuff-discount": 0.0},
    "share 0.5": {"fedbuff-share": 0.5},
    "share 0.25": {"fedbuff-share": 0.25},
}
ENOUGH_ROUNDS = (100, 200, 400, 800)
"""Rounds that are tried, until a run lasts beyond the time."""


def rounds_of(arm: str, seed: int, num_rounds: int) -> list[dict[str, Any]]:
    """Run an arm; return the rows of its rounds."""
    values: dict[str, Value] = {
        "method": "fedbuff",
        "seed": seed,
        "num-rounds": num_rounds,
        "evaluate-every": 1,
        "checkpoint-every": 0,
        "report": False,
        "workers": 1,
        **ARMS[arm],
    }
    experiment = Experiment.load(QUICKSTART, values)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        run_local(experiment, Path(folder) / "run")
        lines = (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def row_of(arm: str, seed: int, time: float | None) -> tuple[float, int, float]:
    """Run an arm; return its time, its rounds within it, and its accuracy after them.

    Without a time, half of the run's own is taken.
    """
    for num_rounds in ENOUGH_ROUNDS if time is not None else (20,):
        rounds = rounds_of(arm, seed, num_rounds)
        end = rounds[-1]["clock"]
        time = end / 2 if time is None else time
        if end > time:
            last = [row for row in rounds if row["clock"] <= time][-1]
            return time, last["round"], last["accuracy_mean"]
    raise RuntimeError(f"{arm}, seed {seed}: {num_rounds} rounds end before the time")


def read() -> dict[tuple[str, int], dict[str, float]]:
    """Return the rows of the CSV."""
    if not ROWS.exists():
        return {}
    with ROWS.open(newline="") as file:
        return {
            (row["arm"], int(row["seed"])): {n: float(row[n]) for n in COLUMNS[2:]}
            for row in csv.DictReader(file)
        }


def run() -> None:
    """Run what is missing, FedAvg first, which sets the time."""
    known = read()
    if not known:
        ROWS.parent.mkdir(exist_ok=True)
        ROWS.write_text(",".join(COLUMNS) + "\n")
    for arm in ARMS:
        for seed in SEEDS:
            if (arm, seed) not in known:
                time = None if arm == FEDAVG else read()[FEDAVG, seed]["time"]
                time, rounds, accuracy = row_of(arm, seed, time)
                with ROWS.open("a", newline="") as file:
                    cells = arm, seed, f"{time:.6f}", rounds, f"{accuracy:.6f}"
                    csv.writer(file, lineterminator="\n").writerow(cells)


def lines() -> Iterator[str]:
    """Yield the table: rounds and per cent by seed, and the paired difference."""
    known = read()
    by_seed = "rounds by then, by seed | accuracy, by seed"
    yield f"| arm | {by_seed} | minus FedAvg, 95 % t interval |"
    yield "| --- | --- | --- | --- |"
    for arm in ARMS:
        rows = [known[arm, seed] for seed in SEEDS]
        gains = [
            100 * (row["accuracy"] - known[FEDAVG, seed]["accuracy"])
            for seed, row in zip(SEEDS, rows, strict=True)
        ]
        rounds = ", ".join(f"{row['rounds']:.0f}" for row in rows)
        accuracies = ", ".join(f"{100 * row['accuracy']:.1f}" for row in rows)
        mean, half = fmean(gains), stats.t.ppf(0.975, 4) * stdev(gains) / 5**0.5
        gain = f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}] |"
        yield f"| {arm} | {rounds} | {accuracies} | {'|' if arm == FEDAVG else gain}"


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    else:
        print("\n".join(lines()))
