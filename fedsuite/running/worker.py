"""The ClientApp of fedsuite: makes the clients of an experiment."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedsuite.clients import load_client
from fedsuite.clients.decomposition.filter_decomposition import DecomposedClient
from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.keys import AUTO
from fedsuite.core.least_recent import LeastRecent
from fedsuite.core.logs import configure_logs, json_logs, log_scope
from fedsuite.core.registry import METHODS
from fedsuite.data import ClientData, DataSettings, FederatedData, Split
from fedsuite.data.site import Site, site_from_config
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.parts import federated_data, network_model
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages.decomposition import clients_take_part
from fedsuite.messages.records import Arrays, num_bytes
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.assignment import experiment_networks
from fedsuite.models.groups import parameter_groups
from fedsuite.training.app import Answering, Failures, make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.fault_plan import FaultPlan, PlannedClient
from fedsuite.training.loop import TrainingOptions, resolve_device
from fedsuite.training.privacy import PrivacyOptions
from fedsuite.training.scoring import Scoring, WholeTest
from fedsuite.training.self_regularisation import LSROptions, SelfRegularisation
from fedsuite.training.spill import SpillingMemory
from fedsuite.training.store import ClientStore, FileStore, MemoryStore
from fedsuite.training.vision_transforms import check_augmentation
from fedsuite.workarounds.packed import packing_mod

STATE_VARIABLE = "FEDSUITE_STATE"

CLIENT_CACHE_BYTES = 1 << 30
"""Data and models of recently used clients that a worker keeps, beside one copy of both."""

COPIES = 4
"""Copies of its model that a client may hold: its start, what it received, an optimiser."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Resident:
    """The model of a network that its clients take turns with, and how it starts."""

    model: torch.nn.Module
    initial: Arrays


class Worker:
    """Makes clients, on data and one model of each network that stay in memory.

    Parameters
    ----------
    experiment
        Says which method, model and data.
    store
        Keeps the clients' state.
    client_seed
        Seed of the clients' own draws; None is the experiment's. Data and initial models
        always have the experiment's.
    site
        What this node's operator says of its data, where the experiment has sites; None
        in a rehearsal, which has all of them.
    """

    def __init__(
        self,
        experiment: Experiment,
        store: ClientStore,
        client_seed: int | None = None,
        site: Site | None = None,
    ) -> None:
        run = experiment.group(RunSettings)
        torch.set_num_threads(run.threads)
        self._experiment = experiment
        self._store = store
        self._device = resolve_device(run.device)
        self._seed = experiment.integer("seed") if client_seed is None else client_seed
        self._client_class = load_client(METHODS[run.method])
        self._data = federated_data(experiment, site)
        self._site = site
        if experiment["sites"]:
            self._open_sites()
        self._networks = experiment_networks(experiment.values)
        self._residents: dict[int, _Resident] = {}
        self._training = experiment.group(TrainingOptions)
        augmentation = self._training.torchvision_augmentation
        check_augmentation(augmentation, self._data.input_shape)
        public = self._data.public_set()
        self._public = public.features.to(self._device) if len(public) else None
        self._privacy = experiment.group(PrivacyOptions)
        self._faults = experiment.group(FaultPlan, seed=experiment.integer("seed"))
        self._self_regularisation = _self_regularisation(
            experiment.group(LSROptions), self._training, self._data
        )
        self._scoring = self._scores_asked_for(run.num_rounds)
        # A client that is made as the base makes it takes nothing from the model.
        made = self._client_class.__init__ is not FederatedClient.__init__
        self._remembers_initial = made or clients_take_part(experiment.values)
        # None where the strategy stands alone: its clients do too.
        self._groups = (
            parameter_groups(self._resident(0).model)
            if clients_take_part(experiment.values)
            else None
        )
        self._clients = LeastRecent[int, Answering](CLIENT_CACHE_BYTES)

    @property
    def actions(self) -> list[str]:
        """The message types that the clients answer."""
        return list(self._client_class.ACTIONS)

    def client(self, context: Context, client_id: int) -> Answering:
        """Return the client of that number.

        Clients used recently are kept. One that is made again answers as before: what
        must last from one message to the next is in the store.
        """
        client = self._clients.get(client_id)
        if client is None:
            data = self._data.client(client_id)
            client = self._make(client_id, data)
            size = data.nbytes + self._bytes_beside_data(client_id)
            self._clients.put(client_id, client, size)
        return client

    def _make(self, client_id: int, data: ClientData) -> Answering:
        validation = data.validation
        client = self._client_class(
            self._initialised(client_id),
            self._on_device(data.train),
            self._on_device(data.test),
            validation=None if validation is None else self._on_device(validation),
            training=self._training,
            client_id=client_id,
            seed=self._seed,
            store=self._store,
            self_regularisation=self._self_regularisation,
            privacy=self._privacy,
            scoring=self._scoring,
            public=self._public,
            standardisation=self._data.standardisation,
        )
        return client if self._groups is None else DecomposedClient(client, self._groups)

    def _bytes_beside_data(self, client_id: int) -> int:
        """Return about what a client holds of models, between messages too."""
        if not self._remembers_initial:
            return 0
        initial = self._resident(self._networks.of_client[client_id]).initial
        return COPIES * num_bytes(initial)

    def _open_sites(self) -> None:
        """Read what there is of the sites' data before the first message needs it."""
        rehearsal = bool(self._experiment["site-dirs"])
        if self._site is None and not rehearsal:
            raise ConfigError(
                "key sites: in this process there are no SuperNodes that bring data; give "
                "site-dirs = FOLDER to rehearse, or run it on a SuperLink"
            )
        for client_id in range(self._data.num_clients if rehearsal else 1):
            self._data.client(client_id)

    def participant(self, context: Context, client_id: int) -> Answering:
        """Return the client of that number as it takes part in a run: it may fail."""
        client = self.client(context, client_id)
        return PlannedClient(client, self._faults) if self._faults else client

    def facts(self, context: Context) -> Mapping[str, str]:
        """Return what a node tells at the hello: its public data, where it has some."""
        public = self._data.public_set()
        return {"public": public.fingerprint} if len(public) else {}

    def _initialised(self, client_id: int) -> torch.nn.Module:
        """Return the model that a client uses, with the client's initial parameters.

        Clients share it, and others may have trained it by now: what a client must keep of
        it, it copies when it is made. Those that keep nothing get it as it is.
        """
        index = self._networks.of_client[client_id]
        resident = self._resident(index)
        if not self._remembers_initial:
            return resident.model
        initial = resident.initial
        if self._experiment["client-initialisation"] == "own":
            initial = model_arrays(
                network_model(self._experiment, self._data, index, client_id)
            )
        load_arrays(resident.model, initial)
        return resident.model

    def _resident(self, index: int) -> "_Resident":
        if index not in self._residents:
            model = network_model(self._experiment, self._data, index).to(self._device)
            self._residents[index] = _Resident(model, model_arrays(model))
        return self._residents[index]

    def _scores_asked_for(self, num_rounds: int) -> Scoring:
        every = self._experiment.integer("evaluate-every")
        scoring = self._experiment.group(
            Scoring, evaluate_every=every, num_rounds=num_rounds
        )
        if not scoring.score_whole_test:
            return scoring
        return replace(
            scoring, whole_test=WholeTest(self._on_device(self._data.test_set()))
        )

    def _on_device(self, split: Split) -> Split:
        if self._device.type == "cpu":
            return split
        features, labels = (
            tensor.to(self._device) for tensor in (split.features, split.labels)
        )
        return replace(split, features=features, labels=labels)


def experiment_run_name(experiment: Experiment, flwr_run_id: int) -> str:
    """Return the name of a run; server and clients come to the same one."""
    run = experiment.group(RunSettings)
    if run.run_name != AUTO:
        return run.run_name
    dataset, seed = experiment.text("dataset"), experiment.integer("seed")
    return f"{run.method}-{dataset}-s{seed}-{flwr_run_id}"


def state_folder(experiment: Experiment, run_name: str) -> Path:
    """Return where the clients of a run keep their state on this machine."""
    configured = experiment.text("state-dir")
    if configured != AUTO:
        root = Path(configured)
    elif STATE_VARIABLE in os.environ:
        root = Path(os.environ[STATE_VARIABLE])
    else:
        root = Path.home() / ".fedsuite" / "state"
    return root / run_name


def _self_regularisation(
    options: LSROptions, training: TrainingOptions, data: FederatedData
) -> SelfRegularisation | None:
    """Return LSR on the data's scaling, None where it is off."""
    if options.lsr_gamma == 0:
        return None
    if not data.spec.is_image:
        raise ConfigError(
            f"key lsr-gamma = {options.lsr_gamma}: dataset {data.spec.name} has no images, "
            "which it takes random views of; set 0"
        )
    if training.loss != "cross-entropy":
        raise ConfigError(
            f"key loss = {training.loss!r}: local self-regularisation, which "
            "lsr-gamma above 0 turns on, has a loss of its own; leave one of them out"
        )
    return SelfRegularisation(options, *data.standardisation)


def memory_store(experiment: Experiment, folder: Path) -> MemoryStore:
    """Return what keeps clients' state in memory, as much of it as the experiment allows.

    Parameters
    ----------
    experiment
        Says how much.
    folder
        Where a checkpoint has it written, and what is over the limit lies for the while.
        No two stores may be over it at a time.
    """
    limit = experiment.integer("client-memory") << 20
    return MemoryStore(FileStore(folder), SpillingMemory(folder / "spilled", limit))


def client_app_for(worker: Worker, failures: Failures | None = None) -> ClientApp:
    """Return a ClientApp whose clients come from one worker."""
    return make_client_app(
        worker.participant, worker.actions, facts=worker.facts, failures=failures
    )


Config = frozenset[tuple[str, bool | int | float | str]]


@cache
def _worker(run_config: Config, run_id: int, node_config: Config) -> Worker:
    experiment = Experiment.from_values(dict(run_config))
    site = node_site(experiment, dict(node_config))
    folder = state_folder(experiment, experiment_run_name(experiment, run_id))
    if site is None:
        return Worker(experiment, FileStore(folder))
    with reasons_stay_here():
        return Worker(experiment, FileStore(folder), site=site)


def node_site(
    experiment: Experiment, node_config: Mapping[str, bool | int | float | str]
) -> Site | None:
    """Return the data of this node's operator, None where clients divide a data set.

    Raises
    ------
    ConfigError
        If the experiment and the node's configuration do not go together: a node with
        data of its own opens no other folder because a run says so.
    """
    data = experiment.group(DataSettings)
    if data.site_dirs:
        raise ConfigError(
            "key site-dirs rehearses in the local engine: leave it out, and name each "
            "node's data in its node-config"
        )
    if data.sites:
        return site_from_config(node_config)
    if "data" in node_config:
        raise ConfigError(
            "this node has data of its own (data in its node-config) and serves no other: "
            "name it in the key sites"
        )
    return None


@contextmanager
def reasons_stay_here() -> Iterator[None]:
    """Keep what is wrong with a site's data out of replies: it may quote paths and rows."""
    try:
        yield
    except DataError as error:
        logger.error("%s", error)
        raise DataError("the site's data cannot be used: its own log says why") from None


def client_from_context(context: Context, client_id: int) -> Answering:
    """Return a client of the experiment in a run config.

    Processes that serve many messages (Ray's actors) keep model and data between them.
    """
    return _worker_from(context).participant(context, client_id)


def facts_from_context(context: Context) -> Mapping[str, str]:
    """Return what a node tells at the hello; nothing to tell or to check loads nothing."""
    experiment = Experiment.from_values(context.run_config)
    data = experiment.group(DataSettings)
    public = data.public_size or data.public_dir
    if node_site(experiment, context.node_config) is None and not public:
        return {}
    return _worker_from(context).facts(context)


def _worker_from(context: Context) -> Worker:
    run_config, node_config = context.run_config.items(), context.node_config.items()
    return _worker(frozenset(run_config), context.run_id, frozenset(node_config))


def log_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Give what this process logs the names of the run and, where it has one, the site."""
    configure_logs()
    if not json_logs():
        return call_next(message, context)
    experiment = Experiment.from_values(context.run_config)
    facts = {"run": experiment_run_name(experiment, context.run_id)}
    if "site" in context.node_config:
        facts["site"] = str(context.node_config["site"])
    with log_scope(**facts):
        return call_next(message, context)


class ExperimentApp(ClientApp):
    """A ClientApp that answers what the clients of its run's method do.

    Which one that is, only a message's context says; a process between machines answers
    one message, and is not to load all methods for it.
    """

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        experiment = Experiment.from_values(context.run_config)
        return _app_of(experiment.text("method"))(message, context)


@cache
def _app_of(method: str) -> ClientApp:
    return make_client_app(
        client_from_context,
        list(load_client(METHODS[method]).ACTIONS),
        mods=[log_mod, packing_mod],
        facts=facts_from_context,
    )


app = ExperimentApp()
