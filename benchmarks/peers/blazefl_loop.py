"""BlazeFL 2.0.3, in an environment of its own: its FedAvg, in processes or threads.

    BLAZEFL_PYTHON -m peers.blazefl_loop process|thread PREPARED OUTPUT

Server and client trainers are those of ``blazefl.contrib``, on two workers. Models come
back through shared memory, the faster of its two ways between processes. It draws other
clients and mini-batches than fedsuite.
"""

import importlib
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path

import torch
from blazefl.contrib import (
    FedAvgBaseServerHandler,
    FedAvgPartitionedDataset,
    FedAvgPartitionType,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode, ModelSelector
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from peers.prepared import Prepared, Rows, end_round, evaluate, make_network, save_model

WORKERS = 2


class Name(StrEnum):
    """Models: with the experiment's initial parameters, or any."""

    INITIAL = "initial"
    ANY = "any"


@cache
def prepared_in(folder: Path) -> Prepared:
    """Return what was prepared, read once a process."""
    return Prepared(folder)


@cache
def rows_of(folder: Path, client: int) -> Rows:
    """Return a client's training rows, read once a process."""
    return prepared_in(folder).train(client)


@dataclass(frozen=True)
class Selector(ModelSelector[Name]):
    """Makes the networks.

    Parameters
    ----------
    folder
        What was prepared.
    """

    folder: Path

    def select_model(self, model_name: Name) -> nn.Module:
        """Return a network."""
        prepared = prepared_in(self.folder)
        if model_name == Name.INITIAL:
            return prepared.model()
        return make_network(prepared.settings)


@dataclass(frozen=True)
class Partitions(FedAvgPartitionedDataset):
    """The clients' training rows; messages to processes carry the folder's name alone.

    Parameters
    ----------
    folder
        What was prepared.
    """

    folder: Path

    def get_dataset(self, type_: FedAvgPartitionType, cid: int | None) -> Dataset:
        """Return a client's rows."""
        assert cid is not None
        return TensorDataset(*rows_of(self.folder, cid))

    def set_dataset(
        self, type_: FedAvgPartitionType, cid: int | None, dataset: Dataset
    ) -> None:
        """Do nothing, because training changes no rows."""

    def get_dataloader(
        self,
        type_: FedAvgPartitionType,
        cid: int | None,
        batch_size: int | None,
        generator: torch.Generator | None,
    ) -> DataLoader:
        """Return a client's mini-batches of one pass, or of its number of steps."""
        rows = self.get_dataset(type_, cid)
        steps = prepared_in(self.folder).settings["local-steps"]
        if not steps:
            return DataLoader(rows, batch_size, shuffle=True, generator=generator)
        count = steps * (batch_size or 1)
        sampler = RandomSampler(rows, num_samples=count, generator=generator)
        return DataLoader(rows, batch_size, sampler=sampler)


def run(mode: str, prepared: Prepared, output: Path, scratch: Path) -> None:
    """Train, and write the final parameters."""
    settings = prepared.settings
    torch.set_num_threads(settings["threads"])
    # As for all arms; its trainers take what torch.optim offers under that name.
    torch.optim.SGD = partial(torch.optim.SGD, fused=True)
    selector, rows = Selector(prepared.folder), Partitions(prepared.folder)
    # Before processes are forked, which then share them. It starts new ones in each round,
    # of which each would import torch's compiler at its first optimiser.
    importlib.import_module("torch._dynamo")
    for client in range(settings["num-clients"]):
        rows_of(prepared.folder, client)
    common = {
        "model_selector": selector,
        "dataset": rows,
        "device": "cpu",
        "num_clients": settings["num-clients"],
        "batch_size": settings["batch-size"],
        "seed": settings["seed"],
    }
    server = FedAvgBaseServerHandler(
        **common,
        model_name=Name.INITIAL,
        global_round=settings["num-rounds"],
        # Half a client more, since it cuts the product off.
        sample_ratio=(settings["clients-per-round"] + 0.5) / settings["num-clients"],
    )
    training = common | {
        "model_name": Name.ANY,
        "epochs": 1 if settings["local-steps"] else settings["local-epochs"],
        "lr": settings["learning-rate"],
        "num_parallels": WORKERS,
    }
    if mode == "thread":
        trainer = FedAvgThreadPoolClientTrainer(**training)
    else:
        trainer = FedAvgProcessPoolClientTrainer(
            **training,
            share_dir=scratch / "share",
            state_dir=scratch / "state",
            ipc_mode=IPCMode.SHARED_MEMORY,
        )
    tests = prepared.test()
    while not server.if_stop():
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        if prepared.is_evaluated(server.round):
            evaluate(server.model, tests)
        end_round(output, server.round)
    save_model(output, server.model.state_dict())


def main() -> None:
    """Run in the mode of the command line."""
    mode, *folders = sys.argv[1:]
    prepared, output = map(Path, folders)
    with tempfile.TemporaryDirectory() as scratch:
        run(mode, Prepared(prepared), output, Path(scratch))


if __name__ == "__main__":
    main()
