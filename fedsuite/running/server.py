"""The ServerApp of fedsuite, and every engine's work around the rounds."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result

from fedsuite.callbacks.best_model import BestModel
from fedsuite.callbacks.checkpoint_writer import CheckpointWriter
from fedsuite.callbacks.columns_of_sites import ColumnsOfSites
from fedsuite.callbacks.early_stop import EarlyStop
from fedsuite.callbacks.final_model import FinalModel
from fedsuite.callbacks.progress import Progress
from fedsuite.callbacks.recorder import Recorder
from fedsuite.callbacks.tracking import tracking
from fedsuite.core.errors import (
    ConfigError,
    FedsuiteError,
    RunError,
    described,
    one_line,
)
from fedsuite.core.extras import naming_extras
from fedsuite.core.keys import AUTO
from fedsuite.core.logs import configure_logs, harmless, log_scope, write_line
from fedsuite.data import DataSettings, FederatedData
from fedsuite.data.site_federation import SiteFederation
from fedsuite.experiment.client_settings import settings_of_clients
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.paths import refuse_relative_paths
from fedsuite.experiment.plug_ins import additions, fingerprint
from fedsuite.experiment.rules import CHOICES, chosen_metric, main_score
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages import decomposition
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import Arrays
from fedsuite.models.model_settings import ModelSettings
from fedsuite.results.layout import (
    CLIENT_NAMES,
    EXPERIMENT,
    FEDERATION,
    FEDERATION_VARIABLE,
    INITIAL_MODEL,
    LEDGER,
    MANIFEST,
    MODEL_FACTS,
    NEW_CLIENTS,
    PARTITION,
    RUN_FOLDER,
    read_manifest,
)
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.summary import tell_summary, write_summary
from fedsuite.results.writer import CHECKPOINTS, RunFolder, noting_failure
from fedsuite.rounds.checkpoint import Checkpoint, list_checkpoints, load_latest
from fedsuite.rounds.events import Callback
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.rounds.release_ledger import ReleaseLedger
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.running.collusion import with_liars
from fedsuite.running.description import run_facts, starting_line
from fedsuite.running.initial_model import KEY, InitialModel, start_from
from fedsuite.running.outcome import untrained
from fedsuite.running.server_parts import (
    ServerParts,
    arrays_at_home,
    initial_arrays,
    server_parts,
)
from fedsuite.running.site_tables import ask_for_statistics
from fedsuite.running.worker import experiment_run_name
from fedsuite.strategies.decomposition.filter_decomposition import FilterDecomposition
from fedsuite.strategies.decomposition.lora_average import LoraAverage
from fedsuite.training.app import source_hash
from fedsuite.workarounds.packed_grid import grid_for

RUNS_VARIABLE = "FEDSUITE_RUNS"

OWN_CODE = "own_code"
"""Entry of the manifest: what identifies the code that is not fedsuite's."""

_MISFITS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What arrays of other shapes may raise; Flower's errors of its network are none."""

_NETWORK_ERRORS = (("httpx", "HTTPError"), ("grpc", "RpcError"))
"""Module and class of what Flower's Grids raise if their SuperLink is gone, or refuses."""

app = ServerApp()


@dataclass(frozen=True)
class FinishedRun:
    """Folder of a finished run, and the result of Flower's ``start``."""

    path: Path
    result: Result


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment in the run config; Flower calls this."""
    try:
        experiment = Experiment.from_values(context.run_config)
        if experiment.note:
            write_line(experiment.note)
        refuse_relative_paths(experiment.values)
        refuse_flowers_table(experiment, context.run_config)
        folder = runs_folder(experiment) / experiment_run_name(experiment, context.run_id)
        if experiment.group(DataSettings).only_statistics:
            ask_for_statistics(experiment, grid_for(grid), folder)
            return
        run_experiment(experiment, grid_for(grid), folder, flwr_run_id=context.run_id)
    except FedsuiteError as error:
        # Flower logs a traceback; this line is for people.
        write_line(f"fedsuite: error: {error}")
        raise


def refuse_flowers_table(experiment: Experiment, run_config: Mapping[str, object]) -> None:
    """Refuse what packages add under a bare ``flwr run .``.

    Flower's table in ``pyproject.toml`` has fedsuite's keys alone, with fedsuite's
    defaults. ``fedsuite run`` sends the experiment's own keys and no others.
    """
    added = additions(experiment.values)
    if added and not set(run_config) <= set(experiment.values):
        raise ConfigError(
            f"{added[0].name!r} is of {added[0].origin}, whose keys and defaults the "
            "pyproject.toml of this app lacks: use `fedsuite run FILE --engine ray` or "
            "`fedsuite deploy run` in place of `flwr run`"
        )


def runs_folder(experiment: Experiment) -> Path:
    """Return the parent folder of run folders, for a ServerApp."""
    configured = experiment.group(RunSettings).output_dir
    if configured != AUTO:
        return Path(configured)
    return Path(os.environ.get(RUNS_VARIABLE, Path.home() / ".fedsuite" / "runs"))


def run_experiment(
    experiment: Experiment,
    grid: Grid,
    folder: Path,
    *,
    flwr_run_id: int | None = None,
    write: Callable[[str], None] = write_line,
    callbacks: Sequence[Callback] = (),
) -> FinishedRun:
    """Run an experiment on a grid of nodes, and write the run's folder.

    Parameters
    ----------
    experiment, grid
        Experiment and grid.
    folder
        The run's folder. It must be new, unless the key ``resume`` is true or Flower
        restarted this run's ServerApp.
    flwr_run_id
        Flower's number of the run, if any.
    write
        Function that prints a line of progress.
    callbacks
        Callbacks of the caller's own.
    """
    import torch

    configure_logs()
    if experiment.group(DataSettings).only_statistics:
        raise ConfigError(
            "key only-statistics = true trains nothing: use `fedsuite deploy statistics`, "
            "or leave it out"
        )
    run = experiment.group(RunSettings)
    with log_scope(run=folder.name):
        torch.set_num_threads(run.threads)
        goes_on = run.resume or _is_retry(folder, flwr_run_id)
        data = federated_data(experiment)
        if run.client_settings:
            names = dict(enumerate(data.client_names))
            settings_of_clients(run.client_settings, names, experiment.num_clients)
        model = network_model(experiment, data)
        parts = server_parts(experiment, data, model)
        strategy = build_strategy(experiment, parts)
        if isinstance(data, SiteFederation):
            data.told_scaling = lambda: strategy.directory.column_means.scaling
        initial = initial_arrays(experiment, model, parts)
        at_home = arrays_at_home(model)
        start = _start(experiment, folder if goes_on else None, initial, at_home)
        if start.fingerprint:
            write(start.story(experiment))
        facts = run_facts(experiment, model, parts.networks)
        checkpoint: Checkpoint | None = None
        # All that may be refused is known: from here on the folder changes.
        if goes_on:
            run_folder, checkpoint = _reopened(experiment, folder, data, initial)
            last = checkpoint.server_round if checkpoint else 0
            write(f"resuming {folder} after round {last}")
        else:
            known = {INITIAL_MODEL: start.fingerprint} if start.fingerprint else {}
            facts_known = {**facts, **known}
            run_folder = _new_folder(folder, experiment, data, facts_known, flwr_run_id)
        write(starting_line(experiment, facts))
        with noting_failure(run_folder):
            if goes_on:
                # The run may have another number of rounds now, or lie elsewhere.
                resumed = experiment.replace(resume=False)
                run_folder.write_bytes(EXPERIMENT, resumed.to_toml().encode())
            # Clients of an earlier attempt, or of another run of this name, may be at work
            # still; not those of this process.
            if goes_on or flwr_run_id is not None:
                strategy.attempt = run_folder.attempt
            if strategy.privacy is not None:
                strategy.privacy.ledger = ReleaseLedger(folder / LEDGER)
            with tracking(run.tracker_names, run_folder, experiment.values) as trackers:
                final = FinalModel(run_folder, at_home)
                own = [*trackers, *callbacks]
                others = build_callbacks(
                    experiment, data, run_folder, checkpoint, write, own, at_home
                )
                with _naming_superlink(folder), _naming_checkpoint(checkpoint, strategy):
                    result = strategy.start(
                        with_liars(experiment, grid),
                        to_record(start.arrays),
                        num_rounds=run.num_rounds,
                        timeout=run.round_timeout,
                        callbacks=[final, *others],
                        resume=checkpoint,
                    )
                # Nothing is left to do but where it could not be written.
                final.write(result.arrays)
                with harmless("summary", write):
                    write_summary(run_folder)
                # The folder is whole, and the trackers hear of a failed run.
                if reason := untrained(folder):
                    raise RunError(reason)
                run_folder.finish("finished")
        with harmless("tables", write):
            tell_summary(folder, write)
        write(f"{RUN_FOLDER}{folder}")
        return FinishedRun(folder, result)


def _own_ranks(experiment: Experiment, names: Sequence[str]) -> dict[int, int]:
    """Return the rank of the adapters of each client that has one of its own."""
    text = experiment.group(RunSettings).client_settings
    own = settings_of_clients(text, dict(enumerate(names)), experiment.num_clients)
    return {k: int(v["lora_rank"]) for k, v in own.items() if "lora_rank" in v}


def build_strategy(experiment: Experiment, parts: ServerParts) -> FederatedStrategy:
    """Return the experiment's strategy.

    Raises
    ------
    ConfigError
        If the strategy refuses a combination of values.
    """
    data = experiment.group(DataSettings)
    # Sites are SuperNodes with registered names; a rehearsal has none.
    own_nodes = bool(data.sites) and not data.site_dirs
    try:
        layer = ExchangeLayer()
        if decomposition.server_takes_part(experiment.values):
            layer = experiment.group(FilterDecomposition, groups=parts.groups)
        elif experiment.group(ModelSettings).lora_average == "products":
            layer = LoraAverage(_own_ranks(experiment, parts.client_names))
        return experiment.group(
            experiment.strategy,
            **parts.needed_by(experiment.strategy),
            layer=layer,
            buffers=parts.buffers,
            halves=parts.halves,
            num_clients=data.num_clients,
            min_available_nodes=1,
            identity="registered" if own_nodes else "partition",
            site_names=parts.client_names,
            evaluation_only=parts.evaluation_only,
            training_rows=data.rows_of_sites or parts.training_rows,
            source_hash=source_hash(),
            plug_ins=fingerprint(experiment.values),
            public_fingerprint=parts.public.fingerprint if parts.public else None,
        )
    except ValueError as error:
        raise ConfigError(f"method {experiment['method']}: {error}") from error


def build_callbacks(
    experiment: Experiment,
    data: FederatedData,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    write: Callable[[str], None],
    trackers: Sequence[Callback],
    at_home: Arrays,
) -> list[Callback]:
    """Return the callbacks after the final model's, in the order of their calls."""
    run = experiment.group(RunSettings)
    callbacks: list[Callback] = [Recorder(folder)]
    if isinstance(data, SiteFederation):
        callbacks.append(ColumnsOfSites(lambda: ModelFacts.of(data), folder))
    best, stop = (chosen_metric(experiment.values, key) for key in CHOICES)
    if stop:
        callbacks.append(EarlyStop(stop, run.early_stop_patience))
    if best:
        callbacks.append(BestModel(best, folder, at_home))
    if run.metrics_port:
        with naming_extras(f"metrics-port = {run.metrics_port}"):
            from fedsuite.callbacks.prometheus import Prometheus

        callbacks.append(Prometheus(run.metrics_host, run.metrics_port))
    callbacks += trackers
    # Last but one: others may stop the run, and a round's lines precede its checkpoint.
    writer = CheckpointWriter(
        folder, experiment.fingerprint, every=run.checkpoint_every, others=callbacks
    )
    if checkpoint is not None:
        writer.recall(checkpoint)
    return [*callbacks, writer, Progress(write, main_score(experiment.values))]


def _refuse_other_public(folder: Path, data: FederatedData) -> None:
    """Refuse to resume with other public data, which no key identifies."""
    data_before = read_manifest(folder).get("data") or {}
    before = str(data_before.get("public-fingerprint", ""))
    now = str(data.description.get("public-fingerprint", ""))
    if before != now:
        raise RunError(
            f"{folder} began with other public data ({before[:12] or 'none'} then, "
            f"{now[:12] or 'none'} now): give public-dir the files that it had"
        )


def _refuse_other_code(folder: Path, experiment: Experiment) -> None:
    """Refuse to resume with other code of one's own, which no key identifies."""
    before = str(read_manifest(folder).get(OWN_CODE) or "none")
    now = fingerprint(experiment.values) or "none"
    if before != now:
        raise RunError(
            f"{folder} began with other code of yours ({one_line(before)} then, "
            f"{one_line(now)} now): put back the files that it had, or start a new run"
        )


def _refuse_loss(folder: RunFolder, experiment: Experiment) -> None:
    """Refuse to begin a run anew whose recorded rounds a checkpoint should have kept.

    A run that was stopped before its first checkpoint, or writes none, begins anew.
    """
    every, done = experiment.group(RunSettings).checkpoint_every, folder.last_round
    ended = read_manifest(folder.path)["status"] == "finished"
    if done and (ended or 0 < every < done):
        raise RunError(
            f"{folder.path} has {done} rounds and no checkpoint to go on from, and they "
            "would be lost: put its checkpoints back, or start a new run"
        )


def _reopened(
    experiment: Experiment, folder: Path, data: FederatedData, initial: Arrays
) -> tuple[RunFolder, Checkpoint | None]:
    """Open the folder of a run that goes on; return it and the run's last checkpoint.

    Nothing has changed where that is refused.
    """
    checkpoints: list[Checkpoint | None] = []

    def last_round(run_folder: RunFolder) -> int:
        _refuse_other_code(folder, experiment)
        _refuse_other_public(folder, data)
        checkpoints.append(load_latest(folder / CHECKPOINTS, experiment.fingerprint))
        last = checkpoints[0].server_round if checkpoints[0] else 0
        if checkpoints[0] is None:
            _refuse_loss(run_folder, experiment)
        else:
            checkpoints[0].check_model(initial)
        num_rounds = experiment.group(RunSettings).num_rounds
        if last > num_rounds:
            raise RunError(
                f"key num-rounds = {num_rounds}: the run is at round {last} already; "
                "give more rounds"
            )
        return last

    return RunFolder.resume(folder, last_round), checkpoints[0]


@contextmanager
def _naming_checkpoint(
    checkpoint: Checkpoint | None, strategy: FederatedStrategy
) -> Iterator[None]:
    """Name the checkpoint if the first round after it fails by one of :data:`_MISFITS`.

    Only a method knows the shapes of what it remembers, and it may find out there.
    """
    try:
        yield
    except FedsuiteError:
        raise
    except _MISFITS as error:
        if checkpoint is None or strategy.server_round > checkpoint.server_round + 1:
            raise
        raise RunError(
            f"the first round after the checkpoint of round {checkpoint.server_round} "
            f"failed: {described(error)}: if the file did not come from this run, start a "
            "new one"
        ) from error


@contextmanager
def _naming_superlink(folder: Path) -> Iterator[None]:
    """Say how a run goes on whose SuperLink is gone, or came back without its database."""
    try:
        yield
    except Exception as error:
        loaded = ((sys.modules.get(module), name) for module, name in _NETWORK_ERRORS)
        if not isinstance(error, tuple(getattr(m, name, ()) for m, name in loaded)):
            raise
        again = f"`{shlex.join(['fedsuite', 'resume', str(folder)])}`"
        if not os.environ.get(FEDERATION_VARIABLE):
            keys = shlex.quote(f'resume=true run-name="{folder.name}"')
            again = f"the same `flwr run` with {keys} in its --run-config"
        raise RunError(
            f"Flower's SuperLink is gone or does not know this run ({described(error)}): "
            f"start it again if it is down, and go on by {again}"
        ) from error


def _start(
    experiment: Experiment, folder: Path | None, drawn: Arrays, at_home: Arrays
) -> InitialModel:
    """Return what a run starts with; ``folder`` is that of a run that goes on."""
    if folder is not None and list_checkpoints(folder / CHECKPOINTS):
        # The model to start from has done its part.
        return InitialModel(drawn)
    start = InitialModel(drawn)
    if experiment[KEY]:
        start = start_from(experiment, drawn, at_home)
    if folder is not None:
        before = str(read_manifest(folder).get(INITIAL_MODEL) or "")
        if before != start.fingerprint:
            raise RunError(
                f"{folder} began with another model of {KEY} ({one_line(before)[:12]} "
                f"then, {start.fingerprint[:12]} now): put that one back, or start a new "
                "run"
            )
    return start


def _is_retry(folder: Path, flwr_run_id: int | None) -> bool:
    if flwr_run_id is None or not (folder / MANIFEST).exists():
        return False
    return read_manifest(folder).get("flwr_run_id") == flwr_run_id


def _new_folder(
    folder: Path,
    experiment: Experiment,
    data: FederatedData,
    facts: Mapping[str, Any],
    flwr_run_id: int | None,
) -> RunFolder:
    manifest: dict[str, Any] = {
        "method": experiment["method"],
        "dataset": experiment["dataset"],
        "seed": experiment["seed"],
        "engine": "flower" if experiment["engine"] == AUTO else experiment["engine"],
        "num_clients": experiment["num-clients"],
        "data": data.description,
        "data_fingerprint": data.fingerprint,
        "experiment_fingerprint": experiment.fingerprint,
        "flwr_run_id": flwr_run_id,
        OWN_CODE: fingerprint(experiment.values),
        **({CLIENT_NAMES: data.client_names} if data.client_names else {}),
        **({NEW_CLIENTS: sorted(data.evaluation_only)} if data.evaluation_only else {}),
        **facts,
    }
    if federation := os.environ.get(FEDERATION_VARIABLE):
        manifest[FEDERATION] = federation
    run_folder = RunFolder.create(folder, experiment.values, manifest)
    with noting_failure(run_folder):
        _write_what_is_known(run_folder, experiment, data)
    return run_folder


def _write_what_is_known(
    run_folder: RunFolder, experiment: Experiment, data: FederatedData
) -> None:
    """Write what the folder says of the model's inputs, and of who holds what."""
    run_folder.write_json(MODEL_FACTS, ModelFacts.of(data).as_json())
    if experiment["sites"]:
        return
    counts = {"train": data.class_counts(), "test": data.test_class_counts()}
    validation = data.validation_class_counts()
    if validation is not None:
        counts["validation"] = validation
    shifts = [asdict(shift) for shift in data.partition.shifts]
    run_folder.write_tables(PARTITION, counts, {"shift": shifts} if shifts else {})
