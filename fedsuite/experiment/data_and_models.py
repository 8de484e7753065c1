"""Data and initial networks of an experiment."""

from typing import Protocol

import torch

from fedsuite.core.errors import ConfigError, Refused
from fedsuite.data import DataSettings, FederatedData, load_federated_data
from fedsuite.data.site import Site
from fedsuite.data.site_federation import site_federation
from fedsuite.experiment.experiment import Experiment
from fedsuite.models import build_model
from fedsuite.models.assignment import experiment_networks
from fedsuite.models.decomposed import decompose, factored_layers
from fedsuite.models.fedpara import fedpara
from fedsuite.models.lora import add_lora
from fedsuite.models.model_settings import DecompositionSettings, ModelSettings
from fedsuite.models.travelling import ALL, hold_at_home
from fedsuite.training.attack_plan import AttackPlan


def federated_data(experiment: Experiment, site: Site | None = None) -> FederatedData:
    """Return the experiment's data, divided among its clients.

    Parameters
    ----------
    experiment
        The experiment.
    site
        Data of this node, if clients are sites with data of their own.
    """
    if experiment.group(DataSettings).sites:
        return site_federation(experiment.values, site, experiment.seed)
    clients = experiment.num_clients
    if experiment["attack"] != "canary":
        return load_federated_data(experiment.values, experiment.seed)
    plan = experiment.group(AttackPlan, seed=experiment.seed, num_clients=clients)
    others = {"num-clients": clients - plan.num_canaries}
    data = load_federated_data({**experiment.values, **others}, experiment.seed)
    return data.with_borrowers(plan.num_canaries)


def experiment_model(experiment: Experiment, data: FederatedData) -> torch.nn.Module:
    """Return the initial network that all clients share; refuse different networks."""
    if experiment.group(ModelSettings).client_models:
        raise ConfigError(
            "key client-models: clients have different networks, and this needs one that "
            "all share; leave it empty"
        )
    return network_model(experiment, data)


class DataShape(Protocol):
    """What a network is built for."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""

    @property
    def holds_words(self) -> bool:
        """Whether inputs are numbers of words."""


def network_model(
    experiment: Experiment, data: DataShape, index: int = 0, client_id: int = 0
) -> torch.nn.Module:
    """Return one of the experiment's networks with its initial parameters.

    Parameters
    ----------
    experiment, data
        The experiment and its data.
    index
        Position in the experiment's distinct networks.
    client_id
        Client whose own initial parameters are drawn; clients share those of client 0.
    """
    network = experiment_networks(experiment.values).distinct[index]
    model = build_model(
        network.name,
        data.input_shape,
        data.num_classes,
        experiment.seed,
        client_id=client_id,
        words=data.holds_words,
        **network.options,
    )
    settings = experiment.group(ModelSettings)
    if settings.fedpara or settings.lora_rank or settings.decomposition:
        model = _factored(model, experiment, settings)
    return model if settings.travels == ALL else hold_at_home(model, settings.travels)


def _factored(
    model: torch.nn.Module, experiment: Experiment, settings: ModelSettings
) -> torch.nn.Module:
    """Return the network with the experiment's factors."""
    if settings.fedpara:
        return fedpara(
            model,
            settings.fedpara_gamma,
            personal=settings.fedpara_personal,
            seed=experiment.seed,
        )
    if settings.lora_rank:
        try:
            rank, alpha = settings.lora_rank, settings.lora_alpha
            return add_lora(model, rank, alpha, seed=experiment.seed)
        except ConfigError as error:
            values = {"lora-rank": settings.lora_rank, "model": settings.model}
            raise Refused(values, str(error), "choose another network") from None
    factors = experiment.group(DecompositionSettings)
    _refuse_idle_switches(model, settings.model, factors)
    try:
        return decompose(
            model,
            factors.atoms,
            initialisation=factors.atoms_initialisation,
            decompose_stem=factors.decompose_stem,
            decompose_1x1=factors.decompose_1x1,
            seed=experiment.seed,
        )
    except ConfigError as error:
        raise ConfigError(
            f"key decomposition = true: model {settings.model}: {error}"
        ) from None


def _refuse_idle_switches(
    model: torch.nn.Module, name: str, factors: DecompositionSettings
) -> None:
    """Refuse to factor layers that the network does not have."""
    stem = factored_layers(model, stem=True, pointwise=False)
    pointwise = factored_layers(model, stem=False, pointwise=True)
    for key, wanted, layers in (
        ("decompose-stem", factors.decompose_stem, stem),
        ("decompose-1x1", factors.decompose_1x1, pointwise),
    ):
        if wanted and layers == factored_layers(model, stem=False, pointwise=False):
            raise Refused(
                {key: True, "model": name},
                "it has no such convolution",
                "leave it out",
                idle=True,
            )
