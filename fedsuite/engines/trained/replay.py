"""The model that a client of a run was last scored with.

The run's last checkpoint is put into a strategy, which writes the message that it would
send a client to evaluate. The client is made as the engines make it, with the state that
the checkpoint names. So what a method does to give a client its model, it does here, and no
method is written twice.
"""

from pathlib import Path
from typing import NoReturn

import torch
from flwr.app import ConfigRecord, Context
from flwr.clientapp import ClientApp
from torch import nn
from typing_extensions import override

from fedsuite.clients.decomposition.filter_decomposition import DecomposedClient
from fedsuite.core.errors import RunError, one_line
from fedsuite.core.keys import AUTO
from fedsuite.core.logs import log_scope, write_line
from fedsuite.data import ClientData, Split
from fedsuite.engines.grid import FIRST_NODE, node_context
from fedsuite.engines.local import LocalGrid
from fedsuite.engines.trained.experiment import experiment_of
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import EVALUATE, NEW, Request, unpack_requests
from fedsuite.results.reader import Client, Run
from fedsuite.results.writer import CHECKPOINTS, STATE
from fedsuite.rounds.checkpoint import Checkpoint, load_latest
from fedsuite.rounds.events import RunState
from fedsuite.rounds.membership import Members
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import initial_arrays, server_parts
from fedsuite.running.worker import Worker, state_folder
from fedsuite.training.base import FederatedClient
from fedsuite.training.evaluation import evaluate_model
from fedsuite.training.store import FileStore
from fedsuite.workarounds.identity import flower_identity

_SAME = 1e-9
"""Difference of two accuracies below which they are one."""


def client_model(run: Run, client: Client) -> nn.Module:
    """Return the model that a client was scored with at the run's last checkpoint.

    Parameters
    ----------
    run
        The run.
    client
        The client's name, where clients have names, or its number.

    Raises
    ------
    RunError
        If there is no such client, or what its model needs is not here.
    """
    experiment = experiment_of(run.path)
    client_id = client_number(run, experiment, client)
    checkpoint = _last_checkpoint(run.path, experiment)
    with flower_identity(), log_scope(run=run.path.name):
        request = _evaluation(experiment, checkpoint, client_id)
    store = FileStore(_states_of(experiment, run.path))
    version = request.start_version
    if version and not store.path(client_id, version).is_file():
        raise RunError(
            f"client {client}: a part of its model stays with it, and this machine has no "
            f"{store.path(client_id, version)}: load the model where the client's state "
            "lies, or put state-dir back"
        )
    at_sites = bool(experiment["sites"]) and not experiment["site-dirs"]
    worker = (_WithoutRows if at_sites else Worker)(experiment, store)
    participant = worker.client(node_context(0, 1, {}), client_id)
    assert isinstance(participant, FederatedClient | DecomposedClient)
    model = participant.model_for(request)
    if not at_sites:
        _compare(run, client, checkpoint.server_round, model, participant)
    return model.cpu()


def client_number(run: Run, experiment: Experiment, client: Client) -> int:
    """Return a client's number; RunError for one that the run does not have.

    A text is a name first; what is no name may be a number.
    """
    names = run.client_names
    known = [*names, *map(str, range(experiment.num_clients))]
    if str(client) not in known:
        of_names = f", or {one_line(', '.join(names))}" if names else ""
        raise RunError(
            f"client {client!r:.60}: this run's clients are 0 to "
            f"{experiment.num_clients - 1}{of_names}"
        )
    is_name = isinstance(client, str) and client in names
    return names.index(str(client)) if is_name else int(client)


def _last_checkpoint(folder: Path, experiment: Experiment) -> Checkpoint:
    checkpoint = load_latest(folder / CHECKPOINTS, experiment.fingerprint)
    if checkpoint is None:
        raise RunError(
            f"{folder} has no checkpoint, from which clients' models are made: run with "
            "checkpoint-every above 0"
        )
    return checkpoint


def _states_of(experiment: Experiment, folder: Path) -> Path:
    """Return the folder of the clients' states, as the engines chose it."""
    chosen = experiment.group(RunSettings).state_dir
    if chosen == AUTO and (folder / STATE).is_dir():
        return folder / STATE
    # Under another name the run's folder was moved, and the states were not.
    return state_folder(experiment, folder.name)


def _evaluation(experiment: Experiment, checkpoint: Checkpoint, client_id: int) -> Request:
    """Return the message that a client gets to evaluate after the checkpoint."""
    data = federated_data(experiment)
    model = network_model(experiment, data)
    parts = server_parts(experiment, data, model)
    # Every client is asked, in every round.
    strategy = build_strategy(experiment.replace(evaluate_every=1), parts)
    grid = LocalGrid(ClientApp(), 1)
    initial = to_record(initial_arrays(experiment, model, parts))
    num_rounds = experiment.group(RunSettings).num_rounds
    state = RunState(strategy, grid, num_rounds, initial)
    checkpoint.restore(state)
    strategy.num_rounds = num_rounds
    # What is asked here gets the model as it is.
    strategy.compression = ()
    _only_member(strategy, client_id)
    config = ConfigRecord()
    asked = strategy.configure_evaluate(state.server_round, state.arrays, config, grid)
    for message in asked:
        kind, group = message.metadata.message_type, message.metadata.group_id
        for request in unpack_requests(message.content, kind, group, client_id)[0]:
            if request.client_id == client_id and kind == EVALUATE:
                return request
    raise RunError(f"client {client_id}: method {experiment['method']} evaluates no client")


def _only_member(strategy: FederatedStrategy, client_id: int) -> None:
    """Let a strategy find one client in its federation, without a hello to a node."""
    members = Members([client_id], {client_id: FIRST_NODE}, hosted=True)
    vars(strategy.directory)["wait"] = lambda *_: members


class _Elsewhere:
    """Rows that lie at their site: whoever looks at them hears so."""

    def __init__(self, client_id: int) -> None:
        self._client_id = client_id

    def __getattr__(self, name: str) -> NoReturn:
        raise RunError(
            f"client {self._client_id}: its model is made from its own rows, which lie at "
            "its site: load the model there"
        )

    def __len__(self) -> NoReturn:
        self.__getattr__("rows")


class _WithoutRows(Worker):
    """Maker of clients of which this machine has the state alone, if anything."""

    @override
    def _open_sites(self) -> None:
        pass

    @override
    def client(self, context: Context, client_id: int) -> FederatedClient:
        none = Split(
            torch.zeros((0, *self._data.input_shape)), torch.zeros(0, dtype=torch.int64)
        )
        built = self._make(client_id, ClientData(none, none))
        client = built.client if isinstance(built, DecomposedClient) else built
        assert isinstance(client, FederatedClient)
        vars(client)["train_data"] = _Elsewhere(client_id)
        return built  # type: ignore[return-value]


def _compare(
    run: Run,
    client: Client,
    server_round: int,
    model: nn.Module,
    participant: FederatedClient | DecomposedClient,
) -> None:
    """Say so where the model's accuracy is not the one that the run recorded."""
    recorded: dict[Client, float] = {}
    for phase in (EVALUATE, NEW):
        recorded |= run.client_values(phase, "accuracy", server_round)
    inner = participant.client if isinstance(participant, DecomposedClient) else participant
    mine = evaluate_model(model, inner.test_data)[1]
    noted = recorded.get(run.named(inner.client_id))
    if noted is not None and abs(noted - mine) > _SAME:
        write_line(
            f"client {client}: this model's accuracy on the client's test rows is "
            f"{100 * mine:.2f} %, and the run recorded {100 * noted:.2f} %: the data, the "
            "code or the device are others than the run's"
        )
