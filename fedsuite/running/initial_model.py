"""The model of an earlier run that a run starts from: key ``initial-model``."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsuite.clients import load_client
from fedsuite.clients.personal.own_model import OwnModelClient
from fedsuite.core.errors import Refused
from fedsuite.core.files import safetensors_bytes
from fedsuite.core.reading import read_arrays
from fedsuite.core.registry import METHODS
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import Arrays
from fedsuite.models.assignment import experiment_networks
from fedsuite.results.layout import MODEL

KEY = "initial-model"

_PREFIX = "0/"
"""Begins the names of the first network's arrays, where a server has several networks."""


@dataclass(frozen=True)
class InitialModel:
    """Arrays that a run starts with, and the fingerprint of a model of another run."""

    arrays: Arrays
    fingerprint: str = ""

    def story(self, experiment: Experiment) -> str:
        """Return one line on where the run starts."""
        client = load_client(METHODS[str(experiment["method"])])
        keeps = issubclass(client, OwnModelClient)
        rest = "; what clients keep for themselves begins as without it" if keeps else ""
        return f"starting from {experiment[KEY]} ({self.fingerprint[:12]}){rest}"


def no_global_model(experiment: Experiment) -> str:
    """Return why an experiment has no one model for all clients; empty where it has."""
    if len(experiment_networks(experiment.values).distinct) > 1:
        return "its clients have different networks"
    return experiment.strategy.NO_GLOBAL_MODEL


def global_arrays(experiment: Experiment, arrays: Arrays) -> Arrays:
    """Return the arrays of the one network under its own names."""
    if not experiment.strategy.takes("networks"):
        return arrays
    return {name.removeprefix(_PREFIX): array for name, array in arrays.items()}


def start_from(experiment: Experiment, drawn: Arrays, at_home: Arrays) -> InitialModel:
    """Return the arrays that a run starts with.

    Parameters
    ----------
    experiment
        The experiment.
    drawn
        The initial arrays without the key.
    at_home
        What the network holds beside them and never sends.

    Raises
    ------
    Refused
        If the method has no one model, or the file's arrays are not those of the network,
        or clients would not have what it holds.
    """
    chosen = str(experiment[KEY])
    values = {KEY: chosen, "method": experiment["method"]}
    if reason := no_global_model(experiment):
        raise Refused(values, reason, "leave it out")
    path = Path(chosen).expanduser()
    if path.is_dir():
        path /= MODEL
    try:
        read, _ = read_arrays(path)
    except (OSError, ValueError) as error:
        raise Refused(
            {KEY: chosen},
            f"{path} cannot be read ({error})",
            "name the folder of a finished run, or a file of safetensors",
        ) from error
    # A run of a method with networks has its arrays under a number.
    bare = {name.removeprefix(_PREFIX): array for name, array in read.items()}
    names = {name.removeprefix(_PREFIX): name for name in drawn}
    needed = {bare_name: drawn[name] for bare_name, name in names.items()} | at_home
    if reason := _unlike(bare, needed):
        raise Refused({KEY: chosen}, reason, "choose the network that it is of")
    other = [n for n, array in at_home.items() if not np.array_equal(bare[n], array)]
    if other:
        raise Refused(
            {KEY: chosen, "travels": experiment["travels"]},
            f"its {other[0]} is another than the clients have, and does not travel",
            "let it travel, or give the network those weights where it is built",
        )
    arrays = {names[n]: bare[n].astype(drawn[names[n]].dtype) for n in names}
    text = safetensors_bytes({name: bare[name] for name in sorted(bare)})
    return InitialModel(arrays, hashlib.sha256(text).hexdigest())


def _unlike(arrays: Arrays, drawn: Arrays) -> str:
    """Return how arrays differ from a network's; empty where they do not."""
    for name, array in drawn.items():
        if name not in arrays:
            return f"it lacks {name}, which this network has"
        mine, theirs = list(arrays[name].shape), list(array.shape)
        if mine != theirs:
            return f"its {name} is of shape {mine}, and this network's of {theirs}"
        if arrays[name].dtype.kind != array.dtype.kind:
            return f"its {name} is of {arrays[name].dtype}, not of {array.dtype}"
    extra = sorted(set(arrays) - set(drawn))
    return f"it has {extra[0]}, which this network lacks" if extra else ""
