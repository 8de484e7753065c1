"""Checks of the keys about clients' networks."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.core.registry import METHODS
from fedsuite.strategies import load_strategy

if TYPE_CHECKING:
    from fedsuite.rounds.base import FederatedStrategy


def check_networks(values: Mapping[str, Value]) -> None:
    """Refuse an experiment whose keys about clients' networks contradict each other."""
    from fedsuite.models.assignment import experiment_networks
    from fedsuite.models.model_settings import ModelSettings

    method = str(values["method"])
    strategy = load_strategy(METHODS[method])
    settings = ModelSettings.of(values)
    different = bool(settings.client_models)
    own = settings.client_initialisation == "own"
    if different and not _allows_different(strategy):
        raise ConfigError(
            f"key client-models: clients of method {method} share one model; those of "
            f"{_methods(_allows_different)} may have different ones"
        )
    if own and not strategy.PRIVATE_MODELS:
        raise ConfigError(
            f"key client-initialisation = 'own': clients of method {method} start from "
            f"what the server holds; those of {_methods(_keeps_private)} do not"
        )
    for name in ("decomposition", "fedpara"):
        if values[name] and (different or own):
            key = "client-models" if different else "client-initialisation = 'own'"
            raise ConfigError(f"key {name} = true cannot go with {key}: choose one")
    if values["best-model-metric"] and strategy.PRIVATE_MODELS:
        raise ConfigError(
            f"key best-model-metric: clients of method {method} keep their models, so the "
            "server has none to write; leave it empty"
        )
    experiment_networks(values)


def _allows_different(strategy: "type[FederatedStrategy]") -> bool:
    one_model = strategy.takes("groups") or strategy.takes("validation")
    return (strategy.PRIVATE_MODELS or strategy.takes("networks")) and not one_model


def _keeps_private(strategy: "type[FederatedStrategy]") -> bool:
    return strategy.PRIVATE_MODELS


def _methods(fits: Callable[["type[FederatedStrategy]"], bool]) -> str:
    """Return the names of the methods whose strategies fit."""
    return ", ".join(name for name, m in METHODS.items() if fits(load_strategy(m)))
