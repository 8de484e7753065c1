"""A round in which 1,000 clients do nothing, under Ray: on few SuperNodes, and stock.

    python benchmarks/noop.py --clients 1000 --rounds 4 --repeats 5

Both answer the model that they got plus 1. Stock Flower has one SuperNode a client and its
own Grid, with a server that does no more than send and take; fedsuite hosts the clients on
as many SuperNodes as there are cores, checks all replies and averages them.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from measuring.arms import BENCHMARKS, environment
from measuring.record import keep
from measuring.tables import markdown, two
from measuring.watch import Watched, watch

APPS = {"fedsuite": "hosted_noop_app", "flower": "noop_app"}


def start(name: str, clients: int, nodes: int, rounds: int, folder: Path) -> None:
    """Run an app in Flower's simulation; it writes its rounds' seconds."""
    from fedsuite.engines.ray import run_ray

    config = {
        "num-nodes": nodes,
        "num-clients": clients,
        "num-rounds": rounds,
        "num-parameters": 10,
        "output": str(folder / "seconds.json"),
    }
    run_ray(config, num_supernodes=nodes, package=BENCHMARKS / APPS[name])


def measure(name: str, clients: int, rounds: int) -> tuple[list[float], Watched]:
    """Return seconds of the rounds after the first, and what the whole run took."""
    folder = Path(tempfile.mkdtemp(prefix="noop-"))
    nodes = clients if name == "flower" else len(os.sched_getaffinity(0))
    command = (
        *(sys.executable, str(Path(__file__).resolve()), "--one", name, str(nodes)),
        *("--clients", str(clients), "--rounds", str(rounds), "--folder", str(folder)),
    )
    try:
        watched = watch(command, folder / "none", environment(), folder)
        seconds = json.loads((folder / "seconds.json").read_text())
    finally:
        shutil.rmtree(folder)
    return seconds[1:], watched


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4, help="at least 2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--arms", nargs="+", default=list(APPS), choices=APPS)
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/noop.json")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    clients, rounds = arguments.clients, arguments.rounds
    if arguments.one:
        name, nodes = arguments.one
        start(name, clients, int(nodes), rounds, arguments.folder)
        return
    by_arm: dict[str, list[dict]] = {name: [] for name in arguments.arms}
    for _ in range(arguments.repeats):
        for name in arguments.arms:
            seconds, watched = measure(name, clients, rounds)
            by_arm[name].append(
                {
                    "seconds": statistics.fmean(seconds),
                    "wall": watched.wall,
                    "cpu": watched.cpu,
                    "peak_mib": watched.peak_mib,
                }
            )
            print(name, by_arm[name][-1], file=sys.stderr)
    header = ("arm", "s/round", "whole run, s", "whole run, CPU s", "peak MiB")
    rows = []
    for name, runs in by_arm.items():
        cells = [two([r[key] for r in runs], 2) for key in ("seconds", "wall", "cpu")]
        rows.append((name, *cells, two([r["peak_mib"] for r in runs], 0)))
    results = {"clients": clients, "rounds": rounds, "runs": by_arm}
    keep(arguments.output, results, markdown(header, rows))


if __name__ == "__main__":
    main()
