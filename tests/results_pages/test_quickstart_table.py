"""The four methods on the quickstart: docs/how-to/choosing.md has what the CSV gives."""

import csv
from statistics import fmean

from tests.results_pages.recomputed import SIMULATIONS, absent, interval, row

PAGE = (SIMULATIONS.parent / "docs" / "how-to" / "choosing.md").read_text()
CSV = SIMULATIONS / "leaderboard" / "results" / "quickstart_by_seed.csv"
BASELINES = {
    "FedEBA": "FedAvg",
    "FedEBA+": "FedAvg",
    "Prac-FedEBA+": "FedAvg",
    "FedAvg with filter decomposition, cnn-shallow": "FedAvg, cnn-shallow",
    "FedAL": "Standalone, Adam",
    "FedAKD": "Standalone, Adam",
    "FedAvg + fine-tuning": "Standalone, Adam",
}


def rows():
    found = {}
    with CSV.open(newline="") as file:
        for line in csv.DictReader(file):
            runs = found.setdefault(line["label"], {})
            runs[int(line["seed"])] = line
    for name, baseline in BASELINES.items():
        cells = []
        for column in ("mean", "worst_10"):
            ours = {s: float(line[column]) for s, line in found[name].items()}
            theirs = {s: float(line[column]) for s, line in found[baseline].items()}
            assert len(ours) == len(theirs) == 10
            minus = [ours[s] - theirs[s] for s in sorted(ours)]
            low, high = interval(minus)
            cells.append(f"{fmean(ours.values()):.2f}")
            cells.append(f"{fmean(minus):+.2f} [{low:+.2f}, {high:+.2f}]")
        yield row(name, baseline, *cells)


def test_the_table_is_what_the_csv_gives():
    assert not absent(PAGE, rows())
