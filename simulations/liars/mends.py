"""Which aggregator mends what: the worst lie of a method again, under each robust rule."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from fedsuite.core.keys import Value
from fedsuite.rounds.round_settings import Aggregator
from simulations.liars.lies import Lie
from simulations.liars.runs import SETTINGS, RefusedError, absent, play
from simulations.liars.tables import MOST_POINTS, by_method, read, worst_loss

COLUMNS = ("method", "setting", "lie", "aggregator", "lost")


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Run the worst lie of each method whose others lose too much, under each rule.

    Parameters
    ----------
    path
        CSV of the search.
    """
    for method, own in by_method(read(path)).items():
        worst = worst_loss(own)
        if float(worst["lost"]) <= MOST_POINTS:
            continue
        row = {"method": method, "setting": worst["setting"], "lie": worst["lie"]}
        yield {**row, "aggregator": "mean", "lost": worst["lost"]}
        [setting] = [s for s in SETTINGS if s.name == worst["setting"]]
        without = absent(method, setting)
        for aggregator in get_args(Aggregator):
            if aggregator == "mean":
                continue
            keys: dict[str, Value] = {"aggregator": aggregator}
            if aggregator != "median":
                most = (setting.clients - 3) // 2 if aggregator == "multi-krum" else 2
                keys["liars"] = float(min(setting.liars, most))
            lie = Lie.parse(worst["lie"])
            try:
                outcome = play(method, setting, lie, seed=int(worst["seed"]), changes=keys)
            except RefusedError:
                # The method has a rule of its own.
                continue
            lost = without.accuracy - outcome.accuracy
            yield {**row, "aggregator": aggregator, "lost": f"{lost:.1f}"}


def run(search: Path, path: Path) -> None:
    """Write the CSV of what the rules make of a search's worst lies."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows(search):
            writer.writerow(row)
            file.flush()
            print(" | ".join(row[name] for name in COLUMNS), flush=True)
