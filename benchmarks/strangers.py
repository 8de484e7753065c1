"""Unchanged apps by ``flwr run`` and ``fedsuite simulate``: results, and seconds.

    python benchmarks/strangers.py
    python benchmarks/strangers.py --apps custom-mods,legacy-numpy --output some.csv

The apps are those of ``tests/strangers``. A run of Flower is timed from ``flwr run`` to the
last line of its log, on a SuperLink that is up already; a run of fedsuite from the start of
Python to its end. With ``--record``, norms of what Flower's runs left behind go into
``tests/strangers/by_flower.json``, with which fast tests compare.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring.arms import BENCHMARKS
from measuring.record import where
from measuring.tables import markdown

sys.path.insert(0, str(BENCHMARKS.parent))

from fedsuite.engines.processes import World
from tests.strangers.apps import (
    FOLDER,
    SIMULATED,
    TOLERANCES,
    Flowers,
    StrangerApp,
    difference,
    left_in,
    summary,
    write_changed,
)

COLUMNS = (
    "app",
    "nodes",
    "lines changed",
    "flwr run, s",
    "fedsuite simulate, s",
    "largest difference",
)
NOT_COMPARED = "draws without a seed"


def by_fedsuite(app: Path, nodes: int) -> tuple[dict[str, Any], float]:
    """Run an app's folder in a fresh process; return what it left, and the seconds."""
    command = [sys.executable, "-m", "fedsuite", "simulate", str(app)]
    with tempfile.TemporaryDirectory(prefix="strangers-") as name:
        began = time.perf_counter()
        subprocess.run(
            [*command, "--num-supernodes", str(nodes)],
            cwd=name,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - began
        return left_in(Path(name)), seconds


def compared(app: StrangerApp, flowers: Flowers) -> tuple[dict[str, Any], list[Any]]:
    """Run an app both ways; return what Flower's run left, and the row of the table."""
    with tempfile.TemporaryDirectory(prefix="strangers-") as name:
        copy = Path(name) / app.name
        lines = write_changed(app, copy)
        theirs = flowers.left_by(app)
        ours, own_seconds = by_fedsuite(copy, app.nodes)
    largest = difference(theirs, ours) if app.seeds else NOT_COMPARED
    if app.seeds and largest > TOLERANCES.get(app.name, 0):
        print(f"{app.name} differs by {largest:g}", file=sys.stderr)
    row = [
        app.name,
        app.nodes,
        lines,
        round(flowers.seconds, 1),
        round(own_seconds, 1),
        largest,
    ]
    return theirs, row


def main() -> None:
    """Run the apps, write the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--apps", help="comma-separated; default: all")
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/strangers.csv")
    parser.add_argument("--record", action="store_true", help="of what Flower's runs left")
    arguments = parser.parse_args()
    wanted = arguments.apps.split(",") if arguments.apps else [a.name for a in SIMULATED]
    record, rows = FOLDER / "by_flower.json", []
    by_flower = json.loads(record.read_text()) if record.exists() else {}
    with World("") as world:
        flowers = Flowers(world)
        for app in (app for app in SIMULATED if app.name in wanted):
            left, row = compared(app, flowers)
            rows.append(row)
            if app.seeds:
                by_flower[app.name] = summary(left)
            print(*row, sep=", ", file=sys.stderr)
    with arguments.output.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    if arguments.record:
        record.write_text(json.dumps(by_flower, indent=1) + "\n")
    print(markdown(COLUMNS, [[str(cell) for cell in row] for row in rows]))
    print(json.dumps(where()))


if __name__ == "__main__":
    main()
