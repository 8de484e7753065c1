"""Each client's model at the end of a run, from the run's folder, and its outputs.

If clients keep their models, the last checkpoint names the version of each client's stored
state. A client that never trained has its initial model. If the server holds the model, or
one model per network, clients have that model. Methods that also score clients with models
of their own are refused.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsuite.clients import load_client
from fedsuite.core.errors import RunError
from fedsuite.core.files import safetensors_arrays
from fedsuite.core.keys import AUTO
from fedsuite.core.registry import METHODS
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages.decomposition import clients_take_part
from fedsuite.messages.records import Arrays
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.assignment import experiment_networks
from fedsuite.models.evaluation_mode import EVALUATION_BATCH, evaluation_mode
from fedsuite.results.layout import EXPERIMENT, MODEL
from fedsuite.results.reader import Run
from fedsuite.results.writer import CHECKPOINTS
from fedsuite.rounds.checkpoint import Checkpoint, load_latest
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import resolve_device
from fedsuite.training.store import FileStore, MemoryStore

_PREFIX = "model/"
"""Prefix of the model's arrays in a state with other arrays."""


class FinalModels:
    """The clients' models at a run's end, or at its last checkpoint.

    Raises
    ------
    RunError
        If the folder lacks both, the method has no such models, or the data have changed.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.experiment = _runnable(Experiment.load(run.path / EXPERIMENT))
        self._strategy = self.experiment.strategy
        if not self._strategy.PRIVATE_MODELS:
            self._refuse_personal()
        self.data = federated_data(self.experiment)
        if self.data.fingerprint != run.manifest.get("data_fingerprint"):
            raise RunError(
                f"{run.path}: its partition cannot be made again: data or fedsuite have "
                "changed since; run it again"
            )
        self.device = resolve_device(self.experiment.group(RunSettings).device)
        self._networks = experiment_networks(self.experiment.values)
        self._held = {} if self._strategy.PRIVATE_MODELS else self._read_model()

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self._networks.of_client)

    @property
    def server_round(self) -> int:
        """The round of these models."""
        if self._strategy.PRIVATE_MODELS:
            return self.checkpoint.server_round
        return int(self.run.rounds[-1]["round"]) if self.run.rounds else 0

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The run's last checkpoint, or :class:`RunError`."""
        fingerprint = Experiment.load(self.run.path / EXPERIMENT).fingerprint
        latest = load_latest(self.run.path / CHECKPOINTS, fingerprint)
        if latest is None:
            raise RunError(
                f"{self.run.path}: no checkpoint tells what its clients kept: run it with "
                "checkpoint-every above 0"
            )
        return latest

    @cached_property
    def store(self) -> MemoryStore:
        """The clients' stored states; new states stay in memory."""
        configured = self.experiment.group(RunSettings).state_dir
        folder = self.run.path / "state"
        if configured != AUTO and not folder.is_dir():
            folder = Path(configured) / self.run.path.resolve().name
        if not folder.is_dir():
            raise RunError(
                f"{self.run.path}: its clients' state is not in {folder}: copy it there "
                "from where they ran"
            )
        return MemoryStore(FileStore(folder))

    def models(self) -> Iterator[nn.Module]:
        """Yield each client's model, in client order, on the run's device."""
        for client_id in range(self.num_clients):
            model = self._initial(client_id)
            load_arrays(model, self.arrays(client_id))
            yield model.to(self.device)

    def arrays(self, client_id: int) -> Arrays:
        """Return parameters and buffers of a client's model, or raise :class:`RunError`."""
        index = self._networks.of_client[client_id]
        initial = model_arrays(self._initial(client_id))
        if self._strategy.takes("networks"):
            return self._whole(initial, _under(f"{index}/", self._held), client_id)
        if not self._strategy.PRIVATE_MODELS:
            return self._whole(initial, self._held, client_id)
        version = self.checkpoint.client_versions.get(client_id)
        if version is None:
            return initial
        state = self.store.load(client_id, version)
        return self._whole(initial, _under(_PREFIX, state) or state, client_id)

    def _initial(self, client_id: int) -> nn.Module:
        index = self._networks.of_client[client_id]
        own = self.experiment["client-initialisation"] == "own"
        return network_model(self.experiment, self.data, index, client_id if own else 0)

    def _whole(
        self, wanted: Arrays, kept: Mapping[str, NDArray[Any]], client_id: int
    ) -> Arrays:
        missing = [name for name in wanted if name not in kept]
        if missing:
            raise RunError(
                f"{self.run.path}: what is kept of client {client_id} has no array "
                f"{missing[0]} of its model: give runs of methods that keep whole models"
            )
        return {name: kept[name] for name in wanted}

    def _refuse_personal(self) -> None:
        method = str(self.experiment["method"])
        client = load_client(METHODS[method])
        one = (
            client.on_evaluate is FederatedClient.on_evaluate
            and self._strategy.evaluate_exchange is FederatedStrategy.evaluate_exchange
            and not clients_take_part(self.experiment.values)
        )
        if not (one or self._strategy.takes("networks")):
            raise RunError(
                f"{self.run.path}: method {method} may score clients with models of their "
                "own beside the shared one: give runs whose clients keep their whole "
                "models, or all have the server's"
            )

    def _read_model(self) -> Arrays:
        path = self.run.path / MODEL
        try:
            arrays, _ = safetensors_arrays(path.read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self.run.path}: its final model cannot be read ({error}): give a run "
                "that is finished"
            ) from error
        return arrays


@torch.no_grad()
def all_outputs(model: nn.Module, features: Tensor) -> Tensor:
    """Return a model's outputs on all rows, in evaluation mode."""
    with evaluation_mode(model):
        return torch.cat([model(part) for part in torch.split(features, EVALUATION_BATCH)])


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays below a prefix, by names without the prefix."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _runnable(experiment: Experiment) -> Experiment:
    """Return the experiment for this machine's devices."""
    if experiment["device"] == "cpu":
        return experiment
    return experiment.replace(device="auto")
