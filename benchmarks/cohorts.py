"""Processor time of a client's step, alone and in cohorts, in the cases of ``speed.py``.

    python benchmarks/cohorts.py f1 f3 f4 f5 --data-dir FOLDER

A case is one process. The sizes take turns, and each has its least time: what the key
``cohort = "auto"`` compares, without what it adds for a client's message. Other work on the
machine moves the figures little.
"""

import argparse
from pathlib import Path

from measuring.arms import BENCHMARKS, EXPERIMENTS
from measuring.record import keep
from measuring.tables import markdown

from fedsuite.core.progress import Work
from fedsuite.experiment.experiment import Experiment
from fedsuite.running.worker import Worker
from fedsuite.training.cohort_calibration import SIZES
from fedsuite.training.store import MemoryStore


def measured(case: str, data: str) -> tuple[str, ...]:
    """Return a case's row of the table; in brackets how many times as fast as alone."""
    changes = {"cohort": "auto", **({"data-dir": data} if data else {})}
    experiment = Experiment.load(EXPERIMENTS / f"{case}.toml", changes)
    with Work(f"timing {case}"):
        seconds = Worker(experiment, MemoryStore()).step_seconds(100, message_seconds=0.0)
    cells = [
        f"{1e6 * seconds[size]:.0f} ({seconds[1] / seconds[size]:.2f})"
        if size in seconds
        else "-"
        for size in SIZES
    ]
    return (case.upper(), str(experiment["model"]), f"{1e6 * seconds[1]:.0f}", *cells)


def main() -> None:
    """Measure the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", help="f1 to f5")
    parser.add_argument("--data-dir", default="", help="data sets; else FEDSUITE_DATA")
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/cohorts.json")
    arguments = parser.parse_args()
    data = str(Path(arguments.data_dir).resolve()) if arguments.data_dir else ""
    header = ("case", "model", "alone, µs", *(f"cohort = {size}, µs" for size in SIZES))
    rows = [measured(case, data) for case in arguments.cases]
    keep(arguments.output, {"rows": rows}, markdown(header, rows))


if __name__ == "__main__":
    main()
