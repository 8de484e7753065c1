"""Start, memory and time of a round with 10,000, 100,000 and 1,000,000 clients.

    python benchmarks/million.py [--rounds 5] [--set method=apfl --set client-memory=64]

The local engine with two workers, 1,000 clients per round, the same rows for all. A run is
stopped after its rounds. Linux only.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring.arms import BENCHMARKS, EXPERIMENTS, engine_arm, environment
from measuring.record import keep
from measuring.tables import markdown
from measuring.watch import POLL_S, Tree

LOOKS = 10
"""Looks for new lines from one sum of memory to the next."""


def measure(clients: int, rounds: int, settings: list[str]) -> dict[str, float]:
    """Run with so many clients for so many rounds and return what it took."""
    with tempfile.TemporaryDirectory(prefix="million-") as name:
        chosen = [w for s in (f"num-clients={clients}", *settings) for w in ("--set", s)]
        arm = engine_arm(EXPERIMENTS / "million.toml", Path(name), chosen)
        log = Path(name, "log")
        with log.open("wb") as output:
            began = time.monotonic()
            process = subprocess.Popen(
                arm.command, env=environment(), stdout=output, stderr=subprocess.STDOUT
            )
            try:
                marks, peak_kib = follow(process, arm.rounds, began, rounds)
            finally:
                process.terminate()
                process.wait()
        if len(marks) < rounds:
            raise RuntimeError(log.read_text()[-2000:])
    (first, cpu), (last, last_cpu) = marks[0], marks[-1]
    seconds = (last - first) / (rounds - 1)
    return {
        "start": first - seconds,
        "start_cpu": cpu - (last_cpu - cpu) / (rounds - 1),
        "seconds": seconds,
        "cpu": (last_cpu - cpu) / (rounds - 1),
        "peak_mib": peak_kib / 1024,
    }


def follow(
    process: "subprocess.Popen[bytes]", lines: Path, began: float, rounds: int
) -> tuple[list[tuple[float, float]], int]:
    """Return seconds and processor seconds at each round's end, and the peak of memory."""
    tree, marks, looks = Tree(process.pid), list[tuple[float, float]](), 0
    while process.poll() is None and len(marks) < rounds:
        if looks % LOOKS == 0:
            tree.look()
            tree.weigh()
        looks += 1
        num_lines = lines.read_bytes().count(b"\n") if lines.exists() else 0
        cpu = tree.cpu()
        marks += [(time.monotonic() - began, cpu)] * (num_lines - len(marks))
        time.sleep(POLL_S)
    return marks[:rounds], tree.peak_kib


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--rounds", type=int, default=5, help="at least 2")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/million.json")
    arguments = parser.parse_args()
    by_count: dict[int, dict[str, float]] = {}
    for count in arguments.clients:
        by_count[count] = measure(count, arguments.rounds, arguments.set)
        print(count, by_count[count], file=sys.stderr)
    base = by_count[arguments.clients[0]]
    header = ("clients", "start s", "CPU s", "peak MiB", "/ first", "s/round", "/ first")
    header += ("CPU s/round", "/ first")
    rows = []
    for count, run in by_count.items():
        row = [f"{count}", f"{run['start']:.1f}", f"{run['start_cpu']:.1f}"]
        for key, digits in (("peak_mib", 0), ("seconds", 2), ("cpu", 2)):
            row += [f"{run[key]:.{digits}f}", f"{run[key] / base[key]:.2f}"]
        rows.append(tuple(row))
    keep(arguments.output, {"set": arguments.set, "runs": by_count}, markdown(header, rows))


if __name__ == "__main__":
    main()
