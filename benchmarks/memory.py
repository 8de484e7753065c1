"""Memory and time of a round with 10,000 clients beside 100, in the local engine.

    python benchmarks/memory.py --data-dir FOLDER --repeats 5 [--set method=ditto]

F5: clients of 6 images, or of 600, take the same steps in a round; all are evaluated at the
end. Methods whose clients keep a model also tell what lies on the disk at the end.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from measuring.arms import BENCHMARKS, EXPERIMENTS, engine_arm, environment
from measuring.record import keep
from measuring.tables import markdown, ratios, steady, two
from measuring.watch import watch


def measure(clients: int, options: list[str]) -> dict[str, float]:
    """Run F5 with so many clients and return what it took."""
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        folder = Path(name)
        chosen = ["--set", f"num-clients={clients}", *options]
        arm = engine_arm(EXPERIMENTS / "f5.toml", folder, ["--engine", "local", *chosen])
        watched = watch(arm.command, arm.rounds, environment(), folder)
        stored = sum(f.stat().st_size for f in (folder / "run").rglob("state/**/*"))
    seconds, cpu = steady(watched.marks)
    peak = watched.peak_mib
    return {"peak_mib": peak, "seconds": seconds, "cpu": cpu, "stored_mib": stored / 2**20}


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="folder of data sets; else FEDSUITE_DATA")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 10000])
    parser.add_argument("--rounds", type=int, default=50, help="at least 3")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/memory.json")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    settings = [f"num-rounds={rounds}", f"evaluate-every={rounds}", *arguments.set]
    if arguments.data_dir:
        settings.append(f"data-dir={os.path.abspath(arguments.data_dir)}")
    options = [word for setting in settings for word in ("--set", setting)]
    by_count: dict[int, list[dict[str, float]]] = {count: [] for count in arguments.clients}
    for _ in range(arguments.repeats):
        for count in arguments.clients:
            by_count[count].append(measure(count, options))
            print(count, by_count[count][-1], file=sys.stderr)
    base = by_count[arguments.clients[0]]
    over = f"/ {arguments.clients[0]}"
    header = ("clients", "peak MiB", over, "s/round", "CPU s/round", over, "stored MiB")
    rows = []
    for count, runs in by_count.items():
        peaks, used = ([r[key] for r in runs] for key in ("peak_mib", "cpu"))
        rows.append(
            (
                str(count),
                two(peaks, 0),
                ratios(peaks, [r["peak_mib"] for r in base]),
                two([r["seconds"] for r in runs], 4),
                two(used, 4),
                ratios(used, [r["cpu"] for r in base]),
                f"{statistics.median(r['stored_mib'] for r in runs):.0f}",
            )
        )
    keep(arguments.output, {"set": settings, "runs": by_count}, markdown(header, rows))


if __name__ == "__main__":
    main()
