"""The worker that makes an experiment's clients."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp

from fedsuite.clients import load_client
from fedsuite.clients.decomposition.filter_decomposition import DecomposedClient
from fedsuite.core.column_scaling import ColumnScaling
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import AUTO
from fedsuite.core.least_recent import LeastRecent
from fedsuite.core.logs import write_line
from fedsuite.core.registry import METHODS
from fedsuite.data import ClientData, DataSettings, Split
from fedsuite.data.columns import fingerprint
from fedsuite.data.site import Site
from fedsuite.data.site_federation import SiteFederation
from fedsuite.experiment.client_settings import settings_of_clients
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages.array_records import num_bytes
from fedsuite.messages.compression import DOWN, UP
from fedsuite.messages.decomposition import clients_take_part
from fedsuite.messages.records import EVALUATION_ONLY, TRAINING_ROWS, Arrays
from fedsuite.models.arrays import (
    bfloat16_names,
    buffer_names,
    load_arrays,
    model_arrays,
)
from fedsuite.models.assignment import experiment_networks
from fedsuite.models.groups import parameter_groups
from fedsuite.models.one_row import one_row_failure
from fedsuite.models.travelling import names_at_home
from fedsuite.rounds.greeting import told_sums
from fedsuite.rounds.round_settings import DEVICES, SECURE, RoundSettings
from fedsuite.rounds.secure_rules import SECURE_STAGES
from fedsuite.running.node import (
    plug_in_fingerprint,
)
from fedsuite.training.app import Answering, Fact, Failures, make_client_app
from fedsuite.training.attack_plan import AttackPlan, LyingClient, flipped
from fedsuite.training.base import FederatedClient
from fedsuite.training.compressed_client import (
    Compartment,
    CompressedClient,
    HalfClient,
)
from fedsuite.training.fault_plan import FaultPlan, PlannedClient
from fedsuite.training.loop import TrainingOptions, resolve_device
from fedsuite.training.new_client import NewClient
from fedsuite.training.scoring import Scoring, WholeTest
from fedsuite.training.spill import SpillingMemory
from fedsuite.training.store import ClientStore, FileStore, MemoryStore
from fedsuite.training.told import told_of
from fedsuite.training.upload_noise import UploadNoise

logger = logging.getLogger(__name__)

Group = TypeVar("Group", TrainingOptions, FaultPlan)

STATE_VARIABLE = "FEDSUITE_STATE"

CLIENT_CACHE_BYTES = 1 << 30
"""Bytes of data and models that a worker keeps for recently used clients."""

COPIES = 4
"""Copies of its model that a client may hold: initial, received, and an optimiser's two."""


@dataclass(frozen=True)
class _Resident:
    """Model of one network, shared in turns by clients, and its initial arrays.

    ``halves`` are the names of those that travel as bfloat16.
    """

    model: torch.nn.Module
    initial: Arrays
    halves: frozenset[str]


class Worker:
    """Maker of clients; the data and one model per network stay in memory.

    Parameters
    ----------
    experiment
        The experiment.
    store
        Store of the clients' state.
    client_seed
        Seed of the clients' own draws; None is the experiment's. Data and initial models
        always have the experiment's.
    site
        Data of this node, if clients are sites; None in a rehearsal, which has all sites.
    told_scaling
        Returns what the server has told of the columns' means; None where it tells none.
    """

    def __init__(
        self,
        experiment: Experiment,
        store: ClientStore,
        client_seed: int | None = None,
        site: Site | None = None,
        told_scaling: Callable[[], ColumnScaling | None] | None = None,
    ) -> None:
        run = experiment.group(RunSettings)
        torch.set_num_threads(run.threads)
        self._experiment = experiment
        self._store = store
        self._device = resolve_device(run.device)
        self._seed = experiment.seed if client_seed is None else client_seed
        self._client_class = load_client(METHODS[run.method])
        self._data = federated_data(experiment, site)
        self._site = site
        if told_scaling is not None and isinstance(self._data, SiteFederation):
            self._data.told_scaling = told_scaling
        if experiment["sites"]:
            self._open_sites()
        self._networks = experiment_networks(experiment.values)
        self._residents: dict[int, _Resident] = {}
        rows = experiment.group(DataSettings)
        self._training = experiment.group(
            TrainingOptions, task=rows.task_name, interval_ends=rows.interval_ends
        )
        public = self._data.public_set()
        self._public = public.features.to(self._device) if len(public) else None
        self._privacy = experiment.group(UploadNoise)
        self._faults = experiment.group(FaultPlan, seed=experiment.seed)
        self._attack = experiment.group(
            AttackPlan, seed=experiment.seed, num_clients=experiment.num_clients
        )
        self._liars = self._attack.liars()
        self._own: dict[int, dict[str, Any]] = {}
        if run.client_settings:
            names = dict(enumerate(self._data.client_names))
            self._own = settings_of_clients(
                run.client_settings, names, experiment.num_clients
            )
        self._scoring = self._make_scoring(run.num_rounds)
        decomposed = clients_take_part(experiment.values)
        # The base's constructor copies nothing from the model.
        own = self._client_class.__init__ is not FederatedClient.__init__
        self._remembers_initial = own or decomposed
        self._groups = parameter_groups(self._resident(0).model) if decomposed else None
        self._clients = LeastRecent[int, Answering](CLIENT_CACHE_BYTES)
        rounds = experiment.group(RoundSettings)
        self._codecs = rounds.codec(UP), rounds.codec(DOWN)
        self._compartment: Compartment | None = None
        if any(codec.is_on for codec in self._codecs):
            self._compartment = Compartment(store)

    @property
    def actions(self) -> list[str]:
        """Message types that the clients answer."""
        masked = self._experiment[SECURE] == "masked"
        return [*self._client_class.ACTIONS, *(SECURE_STAGES if masked else ())]

    def client(self, context: Context, client_id: int) -> Answering:
        """Return a client, new or used recently; what must last is in the store."""
        client = self._clients.get(client_id)
        if client is None:
            data = self._data.client(client_id)
            client = self._make(client_id, data)
            size = data.nbytes
            if self._remembers_initial:
                index = self._networks.of_client[client_id]
                size += COPIES * num_bytes(self._resident(index).initial)
            self._clients.put(client_id, client, size)
        return client

    def _make(self, client_id: int, data: ClientData) -> Answering:
        validation, train = data.validation, data.train
        if self._attack.attack == "label-flip" and client_id in self._liars:
            train = flipped(train, self._data.num_classes)
        client = self._class_of(client_id, len(train))(
            self._initialised(client_id),
            self._on_device(train),
            self._on_device(data.test),
            validation=None if validation is None else self._on_device(validation),
            training=self._with_own(self._training, client_id),
            client_id=client_id,
            seed=self._seed,
            store=self._compartment or self._store,
            privacy=self._privacy,
            scoring=self._scoring,
            public=self._public,
        )
        if len(train) == 1:
            reason = one_row_failure(client.model, client.train_data.features)
            if reason:
                logger.warning(
                    "client %d has one training row, on which its network cannot train "
                    "(%s): it takes no step",
                    client_id,
                    reason,
                )
        return client if self._groups is None else DecomposedClient(client, self._groups)

    def _class_of(self, client_id: int, num_rows: int) -> type[FederatedClient]:
        """Return a client's class: one that never trains has nothing of its own.

        It is scored with the shared model where the method gives others a private one, or
        tunes it on rows that this client does not have.
        """
        strategy = self._experiment.strategy
        if client_id not in self._data.evaluation_only or strategy.SCORED_MODEL == "shared":
            return self._client_class
        if strategy.SCORED_MODEL == "private":
            return FederatedClient
        if num_rows:
            return self._client_class
        if strategy.NO_GLOBAL_MODEL:
            raise RunError(
                f"client {client_id} has no training rows, by which this method would "
                "make its model"
            )
        return FederatedClient

    def _open_sites(self) -> None:
        """Read the sites' data here before the first message needs them."""
        rehearsal = bool(self._experiment["site-dirs"])
        if self._site is None and not rehearsal:
            raise ConfigError(
                "key sites: in this process there are no SuperNodes that bring data; give "
                "site-dirs = FOLDER to rehearse, or run it on a SuperLink"
            )
        if not rehearsal:
            self._site_rows()
            return
        for client_id in range(self._data.num_clients):
            self._data.client(client_id)

    def _site_rows(self) -> ClientData:
        """Return this node's rows, before the server has told how to scale them.

        A node with a site has the site's rows under any client number.
        """
        assert isinstance(self._data, SiteFederation)
        return self._data.site_rows(0)

    def participant(self, context: Context, client_id: int) -> Answering:
        """Return a client that lies and fails where the experiment plans so."""
        client = self.client(context, client_id)
        if client_id in self._data.evaluation_only:
            return self._in_halves(
                NewClient(client, told_of(self._client_class)), client_id
            )
        if client_id in self._liars:
            model = self._resident(self._networks.of_client[client_id]).model
            client = LyingClient(
                client, self._attack, self._client_class.TRAINED, buffer_names(model)
            )
        if (secure := self._experiment[SECURE]) != "off":
            # Its cryptography takes a while to load.
            from fedsuite.training.secure_client import SecureClient

            masked = secure == "masked"
            client = SecureClient(client, context, self._seed, masked=masked)
        if self._compartment is not None:
            model = self._resident(self._networks.of_client[client_id]).model
            client = CompressedClient(
                client,
                self._compartment,
                *self._codecs,
                list(model.state_dict()),
                buffer_names(model),
            )
        client = self._in_halves(client, client_id)
        faults = self._with_own(self._faults, client_id)
        if faults:
            client = PlannedClient(client, faults)
        if self._experiment[DEVICES]:
            # What it imports takes a while.
            from fedsuite.training.multiplications import CountedClient

            client = CountedClient(client)
        return client

    def _with_own(self, settings: Group, client_id: int) -> Group:
        """Return settings with a client's own values."""
        names = {key.argument for key in settings.KEYS}
        own = {n: v for n, v in self._own.get(client_id, {}).items() if n in names}
        return replace(settings, **own) if own else settings

    def _in_halves(self, client: Answering, client_id: int) -> Answering:
        """Return a client whose bfloat16 arrays travel as they are; itself without any."""
        halves = self._resident(self._networks.of_client[client_id]).halves
        return HalfClient(client, halves) if halves else client

    def read_ahead(self, context: Context, client_ids: Sequence[int]) -> None:
        """Read the rows of several small clients at once; sites have read theirs."""
        if not self._experiment["sites"]:
            self._data.read_ahead([k for k in client_ids if k not in self._clients])

    def fingerprints(self, context: Context) -> Mapping[str, Fact]:
        """Return the node's part of its hello: hashes of code and data, a site's rows.

        With them go the sums of its columns where sites scale them alike.
        """
        return self._fingerprints

    @cached_property
    def _fingerprints(self) -> Mapping[str, Fact]:
        # Very many nodes of one process ask for them.
        public = self._data.public_set()
        of_public = {"public": public.fingerprint} if len(public) else {}
        of_plug_ins = plug_in_fingerprint(self._experiment)
        of_site: dict[str, Fact] = {}
        if self._site is not None and isinstance(self._data, SiteFederation):
            of_site[TRAINING_ROWS] = len(self._site_rows().train)
            if self._data.never_trains(0):
                of_site[EVALUATION_ONLY] = 1
            elif self._data.needs_sums:
                of_site |= told_sums(self._data.sums(0))
            of_site |= self._column_fingerprint(self._site.name)
        return {**of_plug_ins, **of_public, **of_site}

    def _column_fingerprint(self, site: str) -> dict[str, str]:
        """Return a hash of this site's columns; the names are told to its own log."""
        if not (columns := self._site_rows().columns):
            return {}
        schema = self._data.spec.schema
        columns_hash = schema.fingerprint if schema else fingerprint(columns)
        # One line, whatever the names hold.
        names = " ".join(", ".join(columns).split())
        write_line(
            f"site {site}: columns {columns_hash[:12]}, which all sites must "
            f"have in this order: {names}"
        )
        return {"columns": columns_hash}

    def _initialised(self, client_id: int) -> torch.nn.Module:
        """Return the client's model, with the client's initial arrays if it copies them.

        Clients share the model, and others may have trained it.
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

    def _resident(self, index: int) -> _Resident:
        if index not in self._residents:
            model = network_model(self._experiment, self._data, index).to(self._device)
            one = not self._experiment["client-models"]
            shared = one and not self._experiment.strategy.takes("networks")
            halves = bfloat16_names(model) - names_at_home(model) if shared else frozenset()
            self._residents[index] = _Resident(model, model_arrays(model), halves)
        return self._residents[index]

    def _make_scoring(self, num_rounds: int) -> Scoring:
        every = self._experiment.group(RoundSettings).evaluate_every
        scoring = self._experiment.group(
            Scoring, evaluate_every=every, num_rounds=num_rounds
        )
        if not scoring.score_whole_test:
            return scoring
        whole_test = WholeTest(self._on_device(self._data.test_set()))
        return replace(scoring, whole_test=whole_test)

    def _on_device(self, split: Split) -> Split:
        if self._device.type == "cpu":
            return split
        features, labels = split.features.to(self._device), split.labels.to(self._device)
        return replace(split, features=features, labels=labels)


def experiment_run_name(experiment: Experiment, flwr_run_id: int) -> str:
    """Return the name of a run, the same on server and clients."""
    run = experiment.group(RunSettings)
    if run.run_name != AUTO:
        return run.run_name
    dataset = str(experiment["dataset"]).replace(":", "-")
    return f"{run.method}-{dataset}-s{experiment.seed}-{flwr_run_id}"


def state_folder(experiment: Experiment, run_name: str) -> Path:
    """Return the folder of a run's client states on this machine."""
    root = experiment.group(RunSettings).state_dir
    if root == AUTO:
        default = Path.home() / ".fedsuite" / "state"
        root = os.environ.get(STATE_VARIABLE, str(default))
    return Path(root) / run_name


def memory_store(experiment: Experiment, folder: Path) -> MemoryStore:
    """Return a store of clients' state in memory, up to the key ``client-memory``.

    Parameters
    ----------
    experiment
        The experiment.
    folder
        Folder of checkpointed states, and of states beyond the limit; one store at a time
        may use it.
    """
    limit = experiment.group(RunSettings).client_memory << 20
    return MemoryStore(FileStore(folder), SpillingMemory(folder / "spilled", limit))


def client_app_for(worker: Worker, failures: Failures | None = None) -> ClientApp:
    """Return a ClientApp whose clients come from one worker."""
    return make_client_app(
        worker.participant,
        worker.actions,
        fingerprints=worker.fingerprints,
        failures=failures,
        read_ahead=worker.read_ahead,
    )
