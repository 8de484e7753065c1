"""Where the time of F1 to F5 goes, by part of the program.

    python benchmarks/profiles.py f1 f4 --rounds 20 --data-dir FOLDER

Runs an experiment in the local engine under cProfile, in a process of its own, and sorts
what it counted from the first round to the last, evaluation included. What C code takes
counts where it was called from, but for torch's kernels. Python functions cost more under
the profiler than without it: shares tell where to look, ``speed.py`` what it takes.
"""

import argparse
import json
import pstats
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
CASES = ("f1", "f2", "f3", "f4", "f5")
KERNELS = "torch's kernels"

PLACES = {
    "fedsuite/training/evaluation": "clients: evaluation",
    "fedsuite/clients": "clients: training",
    "fedsuite/training": "clients: training",
    "fedsuite/running/worker": "clients: training",
    "fedsuite/strategies": "strategy",
    "fedsuite/rounds": "strategy",
    "fedsuite/messages/records": "records and checks",
    "fedsuite/messages/array_records": "records and checks",
    "fedsuite/data": "data",
    "fedsuite/callbacks": "files of the run",
    "fedsuite/results": "files of the run",
    "fedsuite": "the rest of fedsuite",
    "site-packages/flwr": "Flower",
    "site-packages/torch": "torch's Python",
}
"""Parts by what the path of a file holds; the first that fits."""

Function = tuple[str, int, str]

UNDER_PROFILE = """
import cProfile, sys
from fedsuite.cli import main
from fedsuite.rounds.strategy import FederatedStrategy
rounds, profile = FederatedStrategy.start, cProfile.Profile()
def watched(*arguments, **options):
    return profile.runcall(rounds, *arguments, **options)
FederatedStrategy.start = watched
path = sys.argv.pop(1)
try:
    main()
finally:
    profile.dump_stats(path)
"""


def part_of(function: Function) -> str:
    """Return the part that a function belongs to."""
    path, _, name = function
    if path == "~":
        return KERNELS if "torch" in name else ""
    matching = (part for place, part in PLACES.items() if place in path)
    return next(matching, "Python and NumPy")


def shares(path: Path) -> dict[str, float]:
    """Return the seconds of each part in a profile."""
    seconds: Counter[str] = Counter()
    profile = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    for function, (_, _, own, _, callers) in profile.items():
        part = part_of(function)
        if part:
            seconds[part] += own
            continue
        for caller, (_, _, spent, _) in callers.items():
            seconds[part_of(caller) or "Python and NumPy"] += spent
    return dict(seconds)


def measure(case: str, rounds: int, data_dir: str) -> dict[str, float]:
    """Run a case and return the seconds of its parts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        every = 20 if case == "f2" else rounds
        keys = {
            "engine": "local",
            "num-rounds": rounds,
            "evaluate-every": every,
            "output-dir": folder / "runs",
        } | ({"data-dir": data_dir} if data_dir else {})
        options = [word for k, v in keys.items() for word in ("--set", f"{k}={v}")]
        experiment = HERE / "experiments" / f"{case}.toml"
        command = [
            sys.executable,
            "-P",
            "-c",
            UNDER_PROFILE,
            str(folder / "profile"),
            "run",
        ]
        subprocess.run(
            [*command, str(experiment), *options], check=True, stdout=subprocess.DEVNULL
        )
        return shares(folder / "profile")


def main() -> None:
    """Profile cases and print a table of shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--json", type=Path, help="also write the seconds here")
    arguments = parser.parse_args()
    by_case = {
        case: measure(case, arguments.rounds, arguments.data_dir)
        for case in arguments.cases
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(by_case, indent=2) + "\n")
    parts = sorted(
        {part for seconds in by_case.values() for part in seconds},
        key=lambda part: -sum(s.get(part, 0.0) / sum(s.values()) for s in by_case.values()),
    )
    print(f"| share of the time, % | {' | '.join(by_case)} |")
    print(f"| --- |{' ---: |' * len(by_case)}")
    for part in parts:
        row = [100 * s.get(part, 0.0) / sum(s.values()) for s in by_case.values()]
        print(f"| {part} | {' | '.join(f'{share:.1f}' for share in row)} |")
    print(f"| s | {' | '.join(f'{sum(s.values()):.2f}' for s in by_case.values())} |")


if __name__ == "__main__":
    main()
