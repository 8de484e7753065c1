"""Parts of a run that strategies may take as keywords beside their keys."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

from torch import nn

from fedsuite.core.errors import ConfigError, Refused
from fedsuite.data import FederatedData, Split
from fedsuite.data.public import PublicData
from fedsuite.data.rows import Rows
from fedsuite.experiment.data_and_models import network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages.decomposition import server_takes_part
from fedsuite.messages.records import Arrays
from fedsuite.models import count_parameters
from fedsuite.models.arrays import bfloat16_names, buffer_names, model_arrays
from fedsuite.models.assignment import experiment_networks
from fedsuite.models.features import features_are_inputs
from fedsuite.models.groups import ParameterGroups, parameter_groups
from fedsuite.models.server_networks import ServerNetworks
from fedsuite.models.travelling import names_at_home, without
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.running.server_validation import ServerValidation
from fedsuite.training.loop import resolve_device


@dataclass(frozen=True)
class ServerParts:
    """Parts that strategies may take.

    Parameters
    ----------
    groups
        Parameter groups of the experiment's model.
    validation
        Scorer of models on the server's rows.
    networks
        The clients' networks, if they differ or the method asks for them.
    public
        The clients' public data; None for no public data.
    num_classes
        Number of classes.
    buffers
        Names of the arrays that are buffers of the networks.
    training_rows
        Client to its number of training rows, where the server divides the data.
    client_names
        Names of the clients in order; empty where they have none.
    evaluation_only
        Clients that never train, as far as the server knows.
    halves
        Names of the arrays that are bfloat16 in the one network of all.
    """

    groups: ParameterGroups | None = None
    validation: ServerValidation | None = None
    networks: ServerNetworks | None = None
    public: PublicData | None = None
    num_classes: int = 0
    buffers: frozenset[str] = frozenset()
    training_rows: Mapping[int, int] = field(default_factory=dict)
    client_names: tuple[str, ...] = ()
    evaluation_only: frozenset[int] = frozenset()
    halves: frozenset[str] = frozenset()

    @property
    def public_rows(self) -> int:
        """Number of public samples."""
        return len(self.public) if self.public else 0

    def needed_by(self, strategy: type[FederatedStrategy]) -> dict[str, object]:
        """Return the parts that a strategy takes, as keywords of its constructor."""
        return {name: getattr(self, name) for name in strategy.PARTS}


def server_parts(
    experiment: Experiment, data: FederatedData, model: nn.Module
) -> ServerParts:
    """Return the parts for the experiment's strategy.

    Parameters
    ----------
    experiment, data
        The experiment and its data.
    model
        Network of the key ``model``, with initial parameters.

    Raises
    ------
    ConfigError
        If a needed part is missing, a network cannot take the data, or a term on features
        would have no effect.
    """
    _check_feature_term(experiment, data, model)
    takes = experiment.strategy.takes
    networks = None
    if experiment["client-models"] or takes("networks"):
        networks = server_networks(experiment, data)
    divides = takes("groups") or server_takes_part(experiment.values)
    return ServerParts(
        parameter_groups(model) if divides else None,
        server_validation(experiment, data, model) if takes("validation") else None,
        networks,
        public_data(experiment, data),
        data.num_classes,
        networks.buffers if networks else buffer_names(model),
        {} if experiment["sites"] else dict(enumerate(_sizes(data))),
        data.client_names,
        data.evaluation_only,
        frozenset() if networks else bfloat16_names(model) - names_at_home(model),
    )


def _sizes(data: FederatedData) -> list[int]:
    sizes: list[int] = Rows.of(data.partition.train).sizes.tolist()
    return sizes


def _check_feature_term(
    experiment: Experiment, data: FederatedData, model: nn.Module
) -> None:
    """Refuse a term on features that no client's training moves."""
    terms = (experiment.strategy.FEATURE_WEIGHT, "decorrelation-weight")
    key = next((term for term in terms if term and experiment[term] != 0), None)
    if key is None:
        return
    if all(map(features_are_inputs, _networks(experiment, data, model))):
        model_key = "client-models" if experiment["client-models"] else "model"
        raise Refused(
            {name: experiment[name] for name in (key, model_key)},
            "no client has anything to train before its classifier, so that features are "
            "inputs",
            "choose another model, or set 0",
            idle=True,
        )


def _networks(
    experiment: Experiment, data: FederatedData, model: nn.Module
) -> list[nn.Module]:
    """Return the clients' networks: that of the key ``model``, if they share one."""
    if not experiment["client-models"]:
        return [model]
    distinct = experiment_networks(experiment.values).distinct
    return [network_model(experiment, data, index) for index in range(len(distinct))]


def initial_arrays(experiment: Experiment, model: nn.Module, parts: ServerParts) -> Arrays:
    """Return the initial arrays that the server sends; empty if clients keep their models.

    Those that do not travel are not among them: see :func:`arrays_at_home`.
    """
    if experiment.strategy.PRIVATE_MODELS:
        return {}
    if experiment.strategy.takes("networks"):
        assert parts.networks is not None
        return parts.networks.join(parts.networks.initial)
    return without(model_arrays(model), names_at_home(model))


def arrays_at_home(model: nn.Module) -> Arrays:
    """Return what a run's model holds and no message: what the key travels leaves out."""
    at_home = names_at_home(model)
    return model_arrays(model, at_home) if at_home else {}


def server_networks(experiment: Experiment, data: FederatedData) -> ServerNetworks:
    """Return the clients' networks.

    Raises
    ------
    ConfigError
        If a network cannot take the data.
    """
    networks = experiment_networks(experiment.values)
    build = partial(network_model, experiment, data)
    models = [build(index) for index in range(len(networks.distinct))]
    # One network's array of such a name may be trained by another.
    own = [buffer_names(model) for model in models]
    trained = {
        name
        for model, buffers in zip(models, own, strict=True)
        for name in model_arrays(model)
        if name not in buffers
    }
    joined = (f"{index}/{name}" for index, names in enumerate(own) for name in names)
    return ServerNetworks(
        networks,
        initial=tuple(model_arrays(model) for model in models),
        num_parameters=tuple(count_parameters(model) for model in models),
        build=build,
        buffers=frozenset().union(joined, *own) - trained,
    )


def server_validation(
    experiment: Experiment, data: FederatedData, model: nn.Module
) -> ServerValidation:
    """Return the method's scorer of models on the server.

    Raises
    ------
    ConfigError
        If no rows are held out.
    """
    split = data.validation_set()
    if not len(split):
        raise ConfigError(
            f"method {experiment['method']} validates on the server: set "
            "server-validation-fraction above 0, such as 0.1"
        )
    # The key names the clients' device; the server takes the same kind if it can.
    on_cpu = experiment.group(RunSettings).device == "cpu"
    device = resolve_device("cpu" if on_cpu else "auto")
    on_device = Split(split.features.to(device), split.labels.to(device))
    return ServerValidation(deepcopy(model).to(device), on_device)


def public_data(experiment: Experiment, data: FederatedData) -> PublicData | None:
    """Return the clients' public data; refuse a method that needs some and has none."""
    public = data.public_set()
    if len(public):
        return public
    if experiment.strategy.takes("public_rows"):
        raise ConfigError(
            f"method {experiment['method']} needs public data: set public-size, such as "
            "200, or public-dir"
        )
    return None
