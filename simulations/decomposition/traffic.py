"""Counts what filter decomposition sends: communication.toml without data or training.

What is sent follows from the shapes of LeNet-A at CIFAR-100's 100 classes, from who is
drawn, and from who holds what. All three are those of a run of that file. Clients move each
array by 1 instead of training. Writes results/traffic.csv:

    python simulations/decomposition/traffic.py
"""

import csv
from pathlib import Path

import torch
from flwr.app import Context

from fedsuite.callbacks import Callback
from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.clients.decomposition.filter_decomposition import DecomposedClient
from fedsuite.data import Split
from fedsuite.engines.local import LocalGrid
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import (
    ARRAYS,
    NUM_EXAMPLES,
    Reply,
    Request,
)
from fedsuite.models import build_model, decompose, parameter_groups
from fedsuite.models.arrays import model_arrays
from fedsuite.rounds.events import RoundReport, RunState
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import ServerParts
from fedsuite.training.app import make_client_app
from fedsuite.training.store import MemoryStore
from fedsuite.workarounds.identity import flower_identity

HERE = Path(__file__).parent
SHAPE, CLASSES, ATOMS = (3, 32, 32), 100, 9
SEEDS = range(5)
RUNS = [
    *((period, seed, 100) for period in (1, 2, 5, 10) for seed in SEEDS),
    *((5, seed, 10) for seed in SEEDS),
    (5, 0, 600),
]
ACCOUNTS = tuple(
    f"{account}_parameters_{way}"
    for account in ("nominal", "true")
    for way in ("up", "down")
)


class Mover(FedAvgClient):
    """Moves each array by 1 instead of training."""

    def on_train(self, request: Request) -> Reply:
        """Answer at once, with a model that differs from the one received."""
        moved = {name: array + 1 for name, array in request.arrays[ARRAYS].items()}
        return Reply({ARRAYS: moved}, {NUM_EXAMPLES: 1})


class Count(Callback):
    """Adds up what the rounds' reports say was sent."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(ACCOUNTS, 0)

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Add one round."""
        for name in ACCOUNTS:
            self.sums[name] += int(report.metrics[name])


def networks(seed: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return LeNet-A dense and factored."""
    dense = build_model("cnn", SHAPE, CLASSES, seed)
    return dense, decompose(dense, ATOMS)


def count(period: int, seed: int, rounds: int) -> dict[str, int]:
    """Return what one run sends in numbers of parameters, by name.

    ``fetches`` is how often a client that was drawn had to be sent the slow arrays too, of
    ``participations``; with period 1 all arrays travel and nothing is fetched.
    """
    experiment = Experiment.load(
        HERE / "communication.toml",
        {
            "coefficient-period": period,
            "measure-cross-terms": period == 1,
            "seed": seed,
            "num-rounds": rounds,
            "evaluate-every": rounds,
        },
    )
    dense, factored = networks(seed)
    groups = parameter_groups(factored)
    data = Split(torch.zeros(1, *SHAPE), torch.zeros(1, dtype=torch.long))
    store = MemoryStore()

    def client_fn(context: Context, client_id: int) -> DecomposedClient | Mover:
        inner = Mover(factored, data, data, client_id=client_id, store=store)
        return inner if period == 1 else DecomposedClient(inner, groups)

    app = make_client_app(client_fn, list(Mover.ACTIONS))
    counted = Count()
    with flower_identity():
        build_strategy(experiment, ServerParts(groups)).start(
            LocalGrid(app, experiment.num_clients, store=store),
            to_record(model_arrays(factored)),
            num_rounds=rounds,
            callbacks=[counted],
        )
    sizes = {name: array.size for name, array in model_arrays(factored).items()}
    fast = sum(sizes[name] for name in (*groups.atoms, *groups.head))
    participations = rounds * experiment.group(RoundSettings).clients_per_round
    extra = counted.sums["true_parameters_down"] - fast * participations
    slow = sum(sizes.values()) - fast
    return {
        "coefficient_period": period,
        "seed": seed,
        "rounds": rounds,
        "participations": participations,
        "fetches": 0 if period == 1 else extra // slow,
        **counted.sums,
        "dense_parameters_each_way": participations
        * sum(array.size for array in model_arrays(dense).values()),
    }


if __name__ == "__main__":
    rows = [count(*run) for run in RUNS]
    with (HERE / "results" / "traffic.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
