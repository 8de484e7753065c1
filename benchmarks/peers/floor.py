"""The floor: a plain PyTorch loop with the same SGD steps as fedsuite's FedAvg.

    python -m peers.floor PREPARED OUTPUT

Same model, data, mini-batches, optimiser, averaging and evaluation of each client, none of
fedsuite's machinery: its final parameters are the local engine's, bit for bit.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.core.rng import numpy_stream, torch_stream
from peers.prepared import Prepared, Rows, end_round, evaluate, save_model


def train(model: nn.Module, rows: Rows, settings: dict, generator: torch.Generator) -> None:
    """Take a client's steps."""
    features, labels = rows
    size = settings["batch-size"]
    steps = settings["local-steps"]
    left = steps or settings["local-epochs"] * -(-len(labels) // size)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings["learning-rate"], fused=True
    )
    while left:
        order = torch.randperm(len(labels), generator=generator)
        for batch in order.split(size)[:left]:
            left -= 1
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(features[batch]), labels[batch])
            loss.backward()
            optimizer.step()


def run(prepared: Prepared, output: Path) -> dict[str, Tensor]:
    """Train and return the final parameters."""
    settings = prepared.settings
    torch.set_num_threads(settings["threads"])
    count, seed = settings["num-clients"], settings["seed"]
    trains = [prepared.train(k) for k in range(count)]
    tests = [prepared.test(k) for k in range(count)]
    model = prepared.model()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for server_round in range(1, settings["num-rounds"] + 1):
        draw = numpy_stream(seed, "sample-train", server_round)
        chosen = draw.choice(count, size=settings["clients-per-round"], replace=False)
        sums = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in state.items()}
        total = 0
        for k in sorted(map(int, chosen)):
            model.load_state_dict(state)
            train(
                model, trains[k], settings, torch_stream(seed, "batches", server_round, k)
            )
            weight = len(trains[k][1])
            for name, tensor in model.state_dict().items():
                sums[name] += tensor.double() * weight
            total += weight
        # Counters of batch normalisation are whole numbers.
        state = {n: (value / total).to(state[n].dtype) for n, value in sums.items()}
        if prepared.is_evaluated(server_round):
            model.load_state_dict(state)
            for rows in tests:
                evaluate(model, rows)
        end_round(output, server_round)
    return state


if __name__ == "__main__":
    prepared_folder, output_folder = map(Path, sys.argv[1:])
    save_model(output_folder, run(Prepared(prepared_folder), output_folder))
