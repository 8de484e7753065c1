"""Audits runs whose noise is as the accountant was told, and runs with half of it.

    python simulations/privacy_audit/halved_noise.py run      # adds the missing rows
    python simulations/privacy_audit/halved_noise.py table    # prints the table

README.md beside this file says what is asked, and was written before the first run.
"""

import csv
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path

from fedsuite.engines.canaries import audit_noise
from fedsuite.experiment.experiment import Experiment
from fedsuite.rounds import central_privacy

HERE = Path(__file__).parent
ROWS = HERE / "results" / "by_seed.csv"
COLUMNS = (
    *("width", "noise", "seed", "release", "mu", "epsilon", "low", "high", "accounted"),
    *("unused_mean", "unused_deviation", "dimension"),
)
SEEDS = {16: range(20), 200: range(20), 24: range(20, 40)}
NOISES, CANARIES = (1.0, 0.5), 100


@contextmanager
def noise_times(factor: float) -> Iterator[None]:
    """Multiply the noise, of which the accountant hears nothing, inside the block."""
    names = vars(central_privacy)
    honest = names["system_gaussian"]
    names["system_gaussian"] = lambda shape: factor * honest(shape)
    try:
        yield
    finally:
        names["system_gaussian"] = honest


def rows_of(width: int, noise: float, seed: int) -> Iterator[tuple[object, ...]]:
    """Yield the rows of one run, one for each release that is looked at."""
    values = {"hidden-width": width, "seed": seed}
    experiment = Experiment.load(HERE / "digits.toml", values)
    quiet = redirect_stdout(StringIO())
    with tempfile.TemporaryDirectory() as folder, quiet, noise_times(noise):
        audit = audit_noise(experiment, CANARIES, folder)
    unused = audit.final.unused * audit.final.dimension**0.5
    null = (f"{unused.mean():.4f}", f"{unused.std(ddof=1):.4f}", audit.final.dimension)
    for release, cosines in audit.releases.items():
        epsilon = cosines.epsilon(audit.delta)
        numbers = (cosines.mu().value, epsilon.value, epsilon.low, epsilon.high)
        shown = [f"{number:.4f}" for number in (*numbers, audit.accounted)]
        yield width, noise, seed, release, *shown, *null


def known() -> list[dict[str, str]]:
    """Return the rows of the CSV."""
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


def run() -> None:
    """Add the missing rows to the CSV."""
    if not ROWS.exists():
        ROWS.parent.mkdir(exist_ok=True)
        ROWS.write_text(",".join(COLUMNS) + "\n")
    done = {(row["width"], row["noise"], row["seed"]) for row in known()}
    planned = [(width, seed) for width, seeds in SEEDS.items() for seed in seeds]
    for (width, seed), noise in product(planned, NOISES):
        if (str(width), str(noise), str(seed)) not in done:
            rows = list(rows_of(width, noise, seed))
            with ROWS.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)


def table() -> None:
    """Print how often estimate and low end lie above the accountant's epsilon."""
    cells: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in known():
        cells.setdefault((row["width"], row["release"], row["noise"]), []).append(row)
    print("| width | by | noise | estimate: mean, least to most | above | low end above |")
    print("| ---: | --- | --- | ---: | ---: | ---: |")
    for (width, release, noise), rows in sorted(cells.items(), key=lambda c: int(c[0][0])):
        estimates = [float(row["epsilon"]) for row in rows]
        accounted = [float(row["accounted"]) for row in rows]
        lows = [float(row["low"]) for row in rows]
        above, surely = (
            sum(value > told for value, told in zip(values, accounted, strict=True))
            for values in (estimates, lows)
        )
        spread = f"{min(estimates):.1f} to {max(estimates):.1f}"
        mean, words = sum(estimates) / len(rows), {"1.0": "as told", "0.5": "halved"}[noise]
        print(
            f"| {width} | {release} | {words} | {mean:.1f}, {spread} | {above} of "
            f"{len(rows)} | {surely} of {len(rows)} |"
        )


if __name__ == "__main__":
    {"run": run, "table": table}[sys.argv[1]]()
