"""What a run is, for its manifest and for the line with which it starts."""

from typing import Any

import torch

from fedsuite.core.keys import AUTO
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.models import count_parameters
from fedsuite.models.server_networks import ServerNetworks
from fedsuite.training.loop import resolve_device


def run_facts(
    experiment: Experiment, model: torch.nn.Module, networks: ServerNetworks | None
) -> dict[str, Any]:
    """Return the manifest's entries on the clients' device and network."""
    facts: dict[str, Any] = {"device": device_words(experiment)}
    if networks is not None and experiment["client-models"]:
        labels = networks.networks.labels
        return facts | {
            "networks": labels,
            "network_parameters": networks.num_parameters,
            "client_networks": networks.networks.of_client,
        }
    return facts | {"parameters": count_parameters(model)}


def device_words(experiment: Experiment) -> str:
    """Return the device that clients train on, as far as the server can know it."""
    name = experiment.group(RunSettings).device
    if experiment["engine"] == "local":
        device = resolve_device(name)
        return str(device) if device.type == "cpu" else _gpu_words(device)
    here = experiment["engine"] == "ray"
    if name == AUTO and here and not torch.cuda.is_available():
        return "cpu"
    return "each client's own" if name == AUTO else name


def _gpu_words(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})"


def starting_line(experiment: Experiment, facts: dict[str, Any]) -> str:
    """Return a run in one line: method, data, clients, rounds, network, engine, device."""
    size = facts.get("parameters")
    network = (
        f"{experiment['model']} of {size:,} parameters"
        if size is not None
        else f"{len(set(facts['networks']))} networks"
    )
    engine = experiment["engine"]
    return ", ".join(
        (
            f"{experiment.strategy.__name__} on {experiment['dataset']}",
            _count(experiment.num_clients, "client"),
            _count(experiment.group(RunSettings).num_rounds, "round"),
            network,
            "Flower" if engine == AUTO else f"{engine} engine",
            facts["device"],
        )
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
