"""Seconds of a round between real processes, beside an app that does nothing.

    python benchmarks/deployment.py --repeats 3

A federation as `fedsuite deploy` runs it, on this machine: TLS, keys, process isolation.
The floor is a Flower app whose clients import torch and answer the model plus a number, and
whose server waits with Flower's own Grid; fedsuite trains FedAvg for one step on digits,
with as many numbers, which the floor sends as one array. The arms take turns in one
federation, once as Flower starts ClientApps and once with torch and Flower loaded before.
The first round of each run is left out. CPU seconds are those of the ClientApp processes, a
message.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.api import at_home
from fedsuite.engines.flower import (
    in_world,
)
from fedsuite.engines.processes import World
from fedsuite.engines.staging import stage_app
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
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

SETTLED_S = 10.0
"""Time in which nodes load torch and Flower, where they do so beforehand."""

LOADED = {"by each": False, "before": True}
"""Who loads torch and Flower: each ClientApp, or one process that is then forked."""

Arm = Callable[[LocalFederation, Path, int, Experiment], list[float]]


def noop(
    federation: LocalFederation, folder: Path, nodes: int, experiment: Experiment
) -> list[float]:
    """Return seconds of the rounds of the app that does nothing, with as many numbers."""
    output = folder / "seconds.json"
    model = network_model(experiment, federated_data(experiment))
    config = {
        "num-nodes": nodes,
        "num-rounds": int(experiment["num-rounds"]),
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
        if node.preload:
            # Its first child forks ClientApps; that is part of what a message costs.
            ticks += ticks_below(int(children(helper)[0]))
            ticks += sum(process_fields(int(children(helper)[0]))[11:13])
        ticks += ticks_below(helper, but=int(node.preload))
    return ticks / os.sysconf("SC_CLK_TCK")


def ticks_below(process: int, but: int = 0) -> int:
    """Return the ticks of a process's children, but the first, once they have ended."""
    ticks = sum(process_fields(process)[13:15])
    for child in map(int, children(process)[but:]):
        # Whose they are takes note of their end when the next one begins.
        while process_fields(child)[0] != ENDED:
            time.sleep(0.1)
        ticks += sum(process_fields(child)[11:15])
    return ticks


def children(process: int) -> list[str]:
    """Return the numbers of a process's children, ended ones of which it knows not too."""
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def process_fields(process: int) -> list[int]:
    """Return the state of a process, as a code, and the numbers that follow it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return [ord(fields[0]), *map(int, fields[1:])]


ARMS: dict[str, Arm] = {"no-op": noop, "fedsuite": fedavg}


def measure(
    nodes: int, experiment: Experiment, repeats: int, *, preload: bool
) -> dict[str, list[tuple[float, float]]]:
    """Return seconds a round, and CPU seconds a message, of each arm and repeat."""
    timings: dict[str, list[tuple[float, float]]] = {name: [] for name in ARMS}

    def drive(world: World) -> None:
        place = world.folder / "federation"
        federation = LocalFederation(world, place, nodes, preload=preload)
        federation.start()
        time.sleep(SETTLED_S)
        for repeat in range(repeats):
            for name, arm in ARMS.items():
                folder = world.folder / f"{name}-{repeat}"
                folder.mkdir()
                before = client_seconds(federation)
                seconds = arm(federation, folder, nodes, experiment)
                used = client_seconds(federation) - before
                rounds = int(experiment["num-rounds"])
                # fedsuite says hello, and evaluates once.
                messages = nodes * (rounds + (2 if name == "fedsuite" else 0))
                timings[name].append((statistics.fmean(seconds[1:]), used / messages))

    in_world(drive)
    return timings


def main() -> None:
    """Run the benchmark and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--loaded", nargs="+", choices=LOADED, default=list(LOADED))
    arguments = parser.parse_args()
    print("| nodes | model | torch loaded | arm | s/round (min to max) | CPU s/message |")
    print("| ---: | --- | --- | --- | ---: | ---: |", flush=True)
    for nodes in arguments.nodes:
        for model in arguments.models:
            experiment = experiment_of(MODELS[model], nodes, arguments.rounds)
            for loaded in arguments.loaded:
                preload = LOADED[loaded]
                timings = measure(nodes, experiment, arguments.repeats, preload=preload)
                for name, pairs in timings.items():
                    print(
                        f"| {nodes} | {model} | {loaded} | {name} {row(pairs)}", flush=True
                    )


def row(pairs: list[tuple[float, float]]) -> str:
    """Return the figures of an arm as the end of a table's line."""
    seconds, used = ([pair[k] for pair in pairs] for k in (0, 1))
    return (
        f"| {statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f}) "
        f"| {statistics.median(used):.2f} |"
    )


if __name__ == "__main__":
    main()
