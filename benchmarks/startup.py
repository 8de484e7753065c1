"""What it takes to begin: imports, help, and a run on digits up to its first round.

    python benchmarks/startup.py --repeats 5

Each time in a fresh process; wall and processor seconds. For imports and help it is told
which of the heavy packages were loaded.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring.arms import BENCHMARKS, engine_arm, environment
from measuring.record import keep
from measuring.tables import markdown, two
from measuring.watch import watch

HEAVY = ("torch", "flwr", "ray", "numpy", "matplotlib", "sklearn")
TELL = f"print('LOADED', *(n for n in {HEAVY!r} if n in sys.modules))"
SNIPPETS = {
    "python alone": "import sys",
    "import fedsuite": "import sys, fedsuite",
    "fedsuite --help": (
        "import sys; from fedsuite.cli import main; sys.argv = ['fedsuite', '--help']\n"
        "try: main()\nexcept SystemExit: pass"
    ),
    "import torch, flwr": "import sys, torch, flwr.serverapp, flwr.clientapp",
}
"""The first is what Python takes itself; the last, what no run of Flower can do without."""

QUICKSTART = BENCHMARKS.parent / "simulations" / "quickstart.toml"
FIRST_ROUNDS = {
    "fedsuite run, digits, to the end of round 1": ("--set", "workers=1"),
    "the same with two workers": ("--set", "workers=2"),
    "the same under Ray": ("--engine", "ray"),
}
"""Options of each run; the engine is the local one unless it is named."""


def snippet(code: str, folder: Path) -> tuple[float, float, str]:
    """Return wall and processor seconds of a fresh Python, and what was loaded."""
    none = folder / "none"
    command = [sys.executable, "-c", code]
    watched = watch(command, none, environment(), folder)
    # A second process tells, so that telling costs the first nothing.
    listing = watch([sys.executable, "-c", f"{code}\n{TELL}"], none, environment(), folder)
    line = next(x for x in listing.output.splitlines() if x.startswith("LOADED"))
    return watched.wall, watched.cpu, ", ".join(line.split()[1:])


def first_round(options: Sequence[str], folder: Path) -> tuple[float, float, str]:
    """Return wall and processor seconds until the first round of a run is over."""
    arm = engine_arm(QUICKSTART, folder, (*options, "--set", "num-rounds=1"))
    mark = watch(arm.command, arm.rounds, environment(), folder).marks[0]
    return mark.wall, mark.cpu, "-"


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/startup.json")
    arguments = parser.parse_args()
    names = [*SNIPPETS, *FIRST_ROUNDS]
    by_name: dict[str, list[tuple[float, float, str]]] = {name: [] for name in names}
    for _ in range(arguments.repeats):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="startup-") as folder:
                by_name[name].append(
                    snippet(SNIPPETS[name], Path(folder))
                    if name in SNIPPETS
                    else first_round(FIRST_ROUNDS[name], Path(folder))
                )
    header = ("what", "s", "CPU s", "loaded")
    rows = [
        (name, two([r[0] for r in runs], 2), two([r[1] for r in runs], 2), runs[0][2])
        for name, runs in by_name.items()
    ]
    keep(arguments.output, {"runs": by_name}, markdown(header, rows))


if __name__ == "__main__":
    main()
