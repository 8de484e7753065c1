"""The one model of a run that all clients share, if its method ends with one."""

from pathlib import Path

from torch import nn

from fedsuite.core.errors import FedsuiteError, RunError
from fedsuite.core.files import read_error
from fedsuite.core.reading import read_arrays
from fedsuite.engines.trained.experiment import experiment_of
from fedsuite.engines.trained.replay import client_model
from fedsuite.experiment.data_and_models import network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import Arrays
from fedsuite.models.arrays import load_arrays
from fedsuite.results.layout import MODEL
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.reader import Client, Run
from fedsuite.running.initial_model import global_arrays, no_global_model


def model_of(run: Run, client: Client | None) -> nn.Module:
    """Return a client's model, or that of all."""
    return global_model(run) if client is None else client_model(run, client)


def global_model(run: Run) -> nn.Module:
    """Return the run's final model, ready to predict; RunError if there is none."""
    experiment = experiment_of(run.path)
    if reason := no_global_model(experiment):
        raise RunError(
            f"{run.path}: method {experiment['method']} ends without one model for all, "
            f"for {reason}: name a client, run.client_model(NAME) or --client NAME"
        )
    facts = ModelFacts.read(run.path)
    model = network_model(experiment, facts)
    arrays = _final_arrays(run.path, experiment)
    try:
        load_arrays(model, arrays)
    except FedsuiteError as error:
        raise RunError(f"{run.path / MODEL}: {error}") from error
    return model.eval()


def _final_arrays(folder: Path, experiment: Experiment) -> Arrays:
    path = folder / MODEL
    if not path.exists():
        raise RunError(
            f"{folder} has no {MODEL}, which a run writes as its rounds end: go on with it "
            f"by `fedsuite resume {folder}`"
        )
    try:
        arrays, _ = read_arrays(path)
    except OSError as error:
        raise read_error(path, error) from error
    except ValueError as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    return global_arrays(experiment, arrays)
