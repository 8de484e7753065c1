"""Seconds of a round between real processes, beside an app that does nothing.

    python benchmarks/deployment.py --repeats 3

A federation as `fedsuite deploy` runs it, on this machine: TLS, keys, process isolation.
The floor is a Flower app whose clients import torch and add 1 to what they got, and whose
server waits with Flower's own Grid; fedsuite trains FedAvg for one step on digits with a
model of as many numbers, which the floor sends as one array. The arms take turns in one
federation. The first round of each run is left out. CPU seconds are those of the ClientApp
processes, a message.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedsuite.api import at_home
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.flower import in_world, stage_app
from fedsuite.engines.processes import World
from fedsuite.experiment import Experiment
from fedsuite.experiment_parts import federated_data, network_model
from fedsuite.models.arrays import model_arrays
from fedsuite.results.reader import load_run

HERE = Path(__file__).parent
MODELS: dict[str, dict[str, str | int]] = {
    "MLP, 55 k": {"model": "mlp", "hidden-width": 200},
    "MLP, 11 M": {"model": "mlp", "hidden-width": 3270},
    "ResNet-18, 11 M": {"model": "resnet18", "batch-size": 8},
}
"""Keys of each network: 6 arrays in an MLP, 122 in the ResNet."""

ENDED = ord("Z")

Arm = Callable[[LocalFederation, Path, int, Experiment], list[float]]


def noop(
    federation: LocalFederation, folder: Path, nodes: int, experiment: Experiment
) -> list[float]:
    """Return seconds of the rounds of the app that does nothing, with as many numbers."""
    output = folder / "seconds.json"
    model = network_model(experiment, federated_data(experiment))
    config = {
        "num-nodes": nodes,
        "num-rounds": experiment.integer("num-rounds"),
        "num-parameters": sum(array.size for array in model_arrays(model).values()),
        "output": str(output),
    }
    app = stage_app(folder / "app", config, package=HERE / "noop_app")
    federation.run_app(app, lambda line: None)
    seconds: list[float] = json.loads(output.read_text())
    return seconds


def fedavg(
    federation: LocalFederation, folder: Path, nodes: int, experiment: Experiment
) -> list[float]:
    """Return seconds of the training phases of fedsuite's rounds."""
    values = {**experiment.values, "output-dir": str(folder)}
    config = at_home(Experiment.from_values(values)).values
    federation.run(config, lambda line: None)
    run = load_run(folder / "run")
    whole, evaluation = run.column("seconds")[1], run.column("seconds_evaluate")[1]
    return [float(value) for value in whole - evaluation]


def experiment_of(keys: Mapping[str, str | int], nodes: int, rounds: int) -> Experiment:
    """Return FedAvg for one step a round with a network of those keys."""
    values = {
        "method": "fedavg",
        "dataset": "digits",
        "num-clients": nodes,
        "num-rounds": rounds,
        "local-steps": 1,
        "evaluate-every": rounds,
        "checkpoint-every": 0,
        "device": "cpu",
        "run-name": "run",
        "engine": "deployment",
    }
    return Experiment.from_values({**values, **keys})


def client_seconds(federation: LocalFederation) -> float:
    """Return the CPU seconds of all ClientApps, once the last of them has ended."""
    ticks = 0
    for node in federation.nodes:
        helper = federation.running[node.name][1].process.pid
        ticks += sum(process_fields(helper)[13:15])
        for child in map(int, children(helper)):
            # Flower takes note of its end when the next one begins.
            while process_fields(child)[0] != ENDED:
                time.sleep(0.1)
            ticks += sum(process_fields(child)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def children(process: int) -> list[str]:
    """Return the numbers of a process's children, ended ones of which it knows not too."""
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def process_fields(process: int) -> list[int]:
    """Return the state of a process, as a code, and the numbers that follow it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return [ord(fields[0]), *map(int, fields[1:])]


ARMS: dict[str, Arm] = {"no-op": noop, "fedsuite": fedavg}


def measure(
    nodes: int, experiment: Experiment, repeats: int
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
                seconds = arm(federation, folder, nodes, experiment)
                used = client_seconds(federation) - before
                rounds = experiment.integer("num-rounds")
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
            experiment = experiment_of(MODELS[model], nodes, arguments.rounds)
            found = measure(nodes, experiment, arguments.repeats)
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
