"""What an experiment is made of: its data, and its networks as they begin."""

import torch

from fedsuite.core.errors import ConfigError
from fedsuite.data import FederatedData, load_federated_data
from fedsuite.data.site import Site
from fedsuite.data.site_federation import site_federation
from fedsuite.experiment.experiment import Experiment
from fedsuite.models import build_model
from fedsuite.models.assignment import experiment_networks
from fedsuite.models.decomposed import decompose, factored_layers
from fedsuite.models.fedpara import fedpara
from fedsuite.models.model_settings import DecompositionSettings, ModelSettings
from fedsuite.models.trial import failure
from fedsuite.models.vision import TorchvisionNetwork


def federated_data(experiment: Experiment, site: Site | None = None) -> FederatedData:
    """Return the experiment's data, divided among its clients.

    Parameters
    ----------
    experiment
        What it is for.
    site
        The data of this node, where clients are sites with data of their own.
    """
    seed = experiment.integer("seed")
    if experiment.text("sites"):
        return site_federation(experiment.values, site, seed)
    return load_federated_data(experiment.values, seed)


def experiment_model(experiment: Experiment, data: FederatedData) -> torch.nn.Module:
    """Return the network that all clients share, with its initial parameters.

    Raises
    ------
    ConfigError
        If they have different networks.
    """
    if experiment.text("client-models"):
        raise ConfigError(
            "key client-models: clients have different networks, and this needs one that "
            "all share; leave it empty"
        )
    return network_model(experiment, data)


def network_model(
    experiment: Experiment, data: FederatedData, index: int = 0, client_id: int = 0
) -> torch.nn.Module:
    """Return one of the experiment's networks with its initial parameters.

    Parameters
    ----------
    experiment, data
        What it is for.
    index
        Which of the experiment's networks.
    client_id
        Client whose own initial parameters they are; 0 is also what clients share.
    """
    network = experiment_networks(experiment.values).distinct[index]
    seed, shape = experiment.integer("seed"), data.input_shape
    model = build_model(
        network.name,
        shape,
        data.num_classes,
        seed,
        client_id=client_id,
        standardisation=data.standardisation,
        **network.options,
    )
    factored = _factored(model, experiment)
    if factored is not model and isinstance(factored, TorchvisionNetwork):
        _check_factors(factored, data.input_shape)
    return factored


def _check_factors(model: torch.nn.Module, input_shape: tuple[int, ...]) -> None:
    """Refuse networks that read the weights of a layer past it, such as transformers."""
    reason = failure(model, input_shape)
    if reason:
        raise ConfigError(
            "model torchvision: the network cannot work with factors in place of weights "
            f"({reason}): choose another, or leave fedpara and decomposition off"
        )


def _refuse_idle_switches(
    model: torch.nn.Module, name: str, factors: DecompositionSettings
) -> None:
    """Refuse to factor layers that the network does not have."""
    switches = {
        "decompose-stem": (factors.decompose_stem, "stem"),
        "decompose-1x1": (factors.decompose_1x1, "pointwise"),
    }
    none = {layers: False for _, layers in switches.values()}
    without = factored_layers(model, **none)
    for key, (wanted, layers) in switches.items():
        if wanted and factored_layers(model, **{**none, layers: True}) == without:
            raise ConfigError(
                f"key {key} = True has no effect: model {name} has no such "
                f"convolution; leave {key} out"
            )


def _factored(model: torch.nn.Module, experiment: Experiment) -> torch.nn.Module:
    """Return the network with the factors that the experiment asks for, if any."""
    settings, seed = experiment.group(ModelSettings), experiment.integer("seed")
    if settings.fedpara and settings.decomposition:
        raise ConfigError("keys fedpara and decomposition are both true: choose one")
    if settings.fedpara:
        return fedpara(
            model, settings.fedpara_gamma, personal=settings.fedpara_personal, seed=seed
        )
    if not settings.decomposition:
        return model
    factors, name = experiment.group(DecompositionSettings), settings.model
    _refuse_idle_switches(model, name, factors)
    try:
        return decompose(
            model,
            factors.atoms,
            initialisation=factors.atoms_initialisation,
            decompose_stem=factors.decompose_stem,
            decompose_1x1=factors.decompose_1x1,
            seed=seed,
        )
    except ConfigError as error:
        raise ConfigError(f"key decomposition = true: model {name}: {error}") from None
