"""Seconds of a round between real processes, beside an app that does nothing.

    python benchmarks/deployment.py --repeats 3

A federation as `fedsuite deploy` runs it, on this machine: TLS, keys, process isolation.
The floor is a Flower app whose clients import torch and add 1 to what they got, and whose
server waits with Flower's own Grid; fedsuite trains FedAvg for one step on digits with a
model of the same size. The arms take turns in one federation. The first round of each run
is left out. CPU seconds are those of the ClientApp processes, a message.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path

from fedsuite.api import at_home
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.flower import in_world, stage_app
from fedsuite.engines.processes import World
from fedsuite.experiment import Experiment
from fedsuite.results.reader import load_run

HERE = Path(__file__).parent
MODELS = {"MLP, 55 k": 200, "MLP, 11 M": 3270}
"""Hidden width of a network 64-w-w-10, by name."""

Arm = Callable[[LocalFederation, Path, int, int, int], list[float]]


def noop(
    federation: LocalFederation, folder: Path, nodes: int, width: int, rounds: int
) -> list[float]:
    """Return seconds of the rounds of the app that does nothing."""
    output = folder / "seconds.json"
    config = {
        "num-nodes": nodes,
        "num-rounds": rounds,
        "num-parameters": 64 * width + width + width * width + width + width * 10 + 10,
        "output": str(output),
    }
    app = stage_app(folder / "app", config, package=HERE / "noop_app")
    federation.run_app(app, lambda line: None)
    seconds: list[float] = json.loads(output.read_text())
    return seconds


def fedavg(
    federation: LocalFederation, folder: Path, nodes: int, width: int, rounds: int
) -> list[float]:
    """Return seconds of the training phases of fedsuite's rounds."""
    values = {
        "method": "fedavg",
        "dataset": "digits",
        "model": "mlp",
        "hidden-width": width,
        "num-clients": nodes,
        "num-rounds": rounds,
        "local-steps": 1,
        "evaluate-every": rounds,
        "checkpoint-every": 0,
        "device": "cpu",
        "output-dir": str(folder),
        "run-name": "run",
    }
    config = at_home(Experiment.from_values({**values, "engine": "deployment"})).values
    federation.run(config, lambda line: None)
    run = load_run(folder / "run")
    whole, evaluation = run.column("seconds")[1], run.column("seconds_evaluate")[1]
    return [float(value) for value in whole - evaluation]


def client_seconds(federation: LocalFederation) -> float:
    """Return the CPU seconds of all ClientApps that have ended."""
    total = 0
    for node in federation.nodes:
        helper = federation.running[node.name][1].process
        fields = Path(f"/proc/{helper.pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[13]) + int(fields[14])
    return total / os.sysconf("SC_CLK_TCK")


ARMS: dict[str, Arm] = {"no-op": noop, "fedsuite": fedavg}


def measure(
    nodes: int, width: int, rounds: int, repeats: int
) -> dict[str, list[tuple[float, float]]]:
    """Return seconds a round, and CPU seconds a message, of each arm and repeat."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ARMS}

    def drive(world: World) -> None:
        federation = LocalFederation(world, world.folder / "federation", nodes)
        federation.start()
        for repeat in range(repeats):
            for name, arm in ARMS.items():
                folder = world.folder / f"{name}-{repeat}"
                folder.mkdir()
                before = client_seconds(federation)
                seconds = arm(federation, folder, nodes, width, rounds)
                used = client_seconds(federation) - before
                # fedsuite says hello, and evaluates once.
                messages = nodes * (rounds + (2 if name == "fedsuite" else 0))
                found[name].append((statistics.fmean(seconds[1:]), used / messages))

    in_world(drive)
    return found


def main() -> None:
    """Run the benchmark and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args()
    print("| nodes | model | arm | s/round, median (min to max) | CPU s/message |")
    print("| ---: | --- | --- | ---: | ---: |", flush=True)
    for nodes in arguments.nodes:
        for model in arguments.models:
            found = measure(nodes, MODELS[model], arguments.rounds, arguments.repeats)
            for name, pairs in found.items():
                seconds, used = ([pair[k] for pair in pairs] for k in (0, 1))
                print(
                    f"| {nodes} | {model} | {name} | {statistics.median(seconds):.2f} "
                    f"({min(seconds):.2f} to {max(seconds):.2f}) "
                    f"| {statistics.median(used):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
