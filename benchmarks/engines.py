"""Rounds per second of the engines, beside a hand-written loop with the same SGD steps.

    python benchmarks/engines.py --data-dir FOLDER --rounds 50 --repeats 5 [--ray]

The floor is a plain PyTorch loop in this process: same model, data, mini-batches,
optimiser, averaging and evaluation, none of fedsuite's machinery. Its final parameters
must equal the engine's bit for bit, or the comparison is void and the script stops. Times
are wall seconds a round; of the engines the first round, which loads data, is left out.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

import fedsuite
from fedsuite.experiment import Experiment
from fedsuite.experiment_parts import experiment_model, federated_data
from fedsuite.rng import numpy_stream, torch_stream

HERE = Path(__file__).parent
EXPERIMENT = HERE.parent / "simulations" / "fashion_mnist_fedavg.toml"


def floor(experiment: Experiment) -> tuple[float, dict[str, torch.Tensor]]:
    """Return seconds a round of the bare loop, and its final parameters."""
    data = federated_data(experiment)
    clients = [data.client(k) for k in range(data.num_clients)]
    model = experiment_model(experiment, data)
    seed, rounds = experiment.integer("seed"), experiment.integer("num-rounds")
    steps, size = experiment.integer("local-steps"), experiment.integer("batch-size")
    every = experiment.integer("evaluate-every")
    start = time.perf_counter()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for server_round in range(1, rounds + 1):
        draw = numpy_stream(seed, "sample-train", server_round)
        count = experiment.integer("clients-per-round")
        chosen = sorted(draw.choice(len(clients), size=count, replace=False))
        sums = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in state.items()}
        total = 0
        for k in chosen:
            train = clients[k].train
            model.load_state_dict(state)
            optimizer = torch.optim.SGD(
                model.parameters(), lr=experiment.number("learning-rate"), fused=True
            )
            generator = torch_stream(seed, "batches", server_round, int(k))
            left = steps
            while left:
                order = torch.randperm(len(train), generator=generator)
                for batch in order.split(size)[:left]:
                    left -= 1
                    optimizer.zero_grad()
                    logits = model(train.features[batch])
                    functional.cross_entropy(logits, train.labels[batch]).backward()
                    optimizer.step()
            for name, tensor in model.state_dict().items():
                sums[name] += tensor.double() * len(train)
            total += len(train)
        state = {name: (value / total).float() for name, value in sums.items()}
        if server_round % every == 0 or server_round == rounds:
            model.load_state_dict(state)
            with torch.no_grad():
                for client in clients:
                    logits = model(client.test.features)
                    functional.cross_entropy(logits, client.test.labels)
                    (logits.argmax(dim=1) == client.test.labels).sum()
    return (time.perf_counter() - start) / rounds, state


def engine(experiment: Experiment, name: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Return seconds a round of an engine, the first round left out, and its parameters."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        overrides = {"output-dir": folder, "run-name": "benchmark", "checkpoint-every": 0}
        run = fedsuite.run(experiment.values, engine=name, overrides=overrides)
        _, seconds = run.column("seconds")
        return float(seconds[1:].mean()), load_file(run.path / "model.safetensors")


def main() -> None:
    """Run the benchmark and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ray", action="store_true", help="also through flwr run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    overrides = {"data-dir": arguments.data_dir, "num-rounds": arguments.rounds}
    experiment = Experiment.load(EXPERIMENT, overrides)
    names = ["floor", "local", *(["ray"] if arguments.ray else [])]
    times: dict[str, list[float]] = {name: [] for name in names}
    floor(experiment.replace(num_rounds=3))
    for _ in range(arguments.repeats):
        seconds, expected = floor(experiment)
        times["floor"].append(seconds)
        for name in names[1:]:
            seconds, found = engine(experiment, name)
            times[name].append(seconds)
            if not all(torch.equal(found[key], expected[key]) for key in expected):
                raise SystemExit(f"{name}: final parameters differ from the floor's")
    lines = ["| engine | min s/round | median s/round | min / floor | median / floor |"]
    lines.append("| --- | --- | --- | --- | --- |")
    base = times["floor"]
    for name, values in times.items():
        low, middle = min(values), statistics.median(values)
        lines.append(
            f"| {name} | {low:.4f} | {middle:.4f} | {low / min(base):.2f} | "
            f"{middle / statistics.median(base):.2f} |"
        )
    print("\n".join(lines))
    print(json.dumps({"rounds": arguments.rounds, "times": times}))


if __name__ == "__main__":
    main()
