"""The ClientApp of real nodes: each message names its experiment in its context."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache, partial

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedsuite.clients import load_client
from fedsuite.core.errors import FedsuiteError
from fedsuite.core.keys import Value
from fedsuite.core.logs import configure_logs, json_logs, log_scope
from fedsuite.core.registry import METHODS
from fedsuite.data import DataSettings
from fedsuite.rounds.greeting import told_scaling
from fedsuite.rounds.round_settings import SECURE
from fedsuite.rounds.secure_rules import SECURE_STAGES
from fedsuite.running.node import (
    data_errors_stay_here,
    is_simulated,
    node_experiment,
    node_site,
    plug_in_fingerprint,
    warn_of_ignored_paths,
)
from fedsuite.running.paths_at_home import paths_at_home
from fedsuite.running.site_tables import keep, told_before, told_statistics
from fedsuite.running.worker import Worker, experiment_run_name, state_folder
from fedsuite.training.app import Answering, Fact, make_client_app, reply_of_error
from fedsuite.training.store import FileStore
from fedsuite.workarounds.packed import packing_mod

Config = frozenset[tuple[str, Value]]

logger = logging.getLogger(__name__)


@cache
def _worker(run_config: Config, run_id: int, node_config: Config) -> Worker:
    experiment = node_experiment(dict(run_config), dict(node_config))
    site = node_site(experiment, dict(node_config))
    folder = state_folder(experiment, experiment_run_name(experiment, run_id))
    if site is None:
        return Worker(experiment, FileStore(folder))
    told = partial(told_before, folder)
    with data_errors_stay_here():
        return Worker(experiment, FileStore(folder), site=site, told_scaling=told)


def client_from_context(context: Context, client_id: int) -> Answering:
    """Return a client of a run config's experiment; the process keeps model and data."""
    return _worker_from(context).participant(context, client_id)


def read_ahead_from_context(context: Context, client_ids: Sequence[int]) -> None:
    """Call :meth:`Worker.read_ahead` of a run config's experiment."""
    _worker_from(context).read_ahead(context, client_ids)


def fingerprints_from_context(context: Context) -> Mapping[str, Fact]:
    """Return the fingerprints of a node's hello; load data for hashes or checks alone."""
    experiment = node_experiment(context.run_config, context.node_config)
    warn_of_ignored_paths(context.run_config, experiment)
    data = experiment.group(DataSettings)
    public = data.public_size or data.public_dir
    site = node_site(experiment, context.node_config)
    if site is None and not public:
        return plug_in_fingerprint(experiment)
    if site is not None and data.only_statistics:
        with data_errors_stay_here():
            return plug_in_fingerprint(experiment) | told_statistics(experiment, site)
    worker = _worker_from(context)
    with data_errors_stay_here():
        return worker.fingerprints(context)


def _worker_from(context: Context) -> Worker:
    run_config, node_config = context.run_config.items(), context.node_config.items()
    return _worker(frozenset(run_config), context.run_id, frozenset(node_config))


def log_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Add the names of the run and of the site, if any, to this process's log."""
    configure_logs()
    if not json_logs():
        return call_next(message, context)
    experiment = node_experiment(context.run_config, context.node_config)
    names = {"run": experiment_run_name(experiment, context.run_id)}
    if "site" in context.node_config:
        names["site"] = str(context.node_config["site"])
    with log_scope(**names):
        return call_next(message, context)


class ExperimentApp(ClientApp):
    """ClientApp that loads the one method that a message's context names."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message; of another machine's error no path leaves."""
        if is_simulated():
            return _answer(message, context)
        try:
            reply = _logged(message, context)
        except Exception as error:
            reply = reply_of_error(message, error)
        return paths_at_home(reply, context.node_config)


def _logged(message: Message, context: Context) -> Message:
    """Answer a message; log an error as it is before a reply is made of it."""
    try:
        return _answer(message, context)
    except FedsuiteError as error:
        logger.error("%s", error)
        raise
    except Exception:
        logger.exception("%s failed", message.metadata.message_type)
        raise


def _answer(message: Message, context: Context) -> Message:
    experiment = node_experiment(context.run_config, context.node_config)
    scaling = told_scaling(message.content) if message.has_content() else None
    if scaling is not None:
        run_name = experiment_run_name(experiment, context.run_id)
        keep(scaling, state_folder(experiment, run_name))
    masked = experiment[SECURE] == "masked"
    return _app_of(str(experiment["method"]), masked)(message, context)


@cache
def _app_of(method: str, masked: bool) -> ClientApp:
    more = SECURE_STAGES if masked else ()
    return make_client_app(
        client_from_context,
        [*load_client(METHODS[method]).ACTIONS, *more],
        mods=[log_mod, packing_mod],
        fingerprints=fingerprints_from_context,
        read_ahead=read_ahead_from_context,
    )


app = ExperimentApp()
