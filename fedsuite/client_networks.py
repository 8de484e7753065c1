"""What an experiment may say of its clients' networks, and with which methods."""

from collections.abc import Mapping

from fedsuite.errors import ConfigError
from fedsuite.keys import Value
from fedsuite.registry import METHODS


def check_networks(values: Mapping[str, Value]) -> None:
    """Refuse keys about clients' models that cannot be kept together.

    Parameters
    ----------
    values
        Those of an experiment.

    Raises
    ------
    ConfigError
        In one line, with what to do.
    """
    from fedsuite.models.assignment import experiment_networks

    method = str(values["method"])
    strategy = METHODS[method].load_strategy()
    different = bool(values["client-models"])
    own = values["client-initialisation"] == "own"
    if different and not (strategy.PRIVATE_MODELS or strategy.NEEDS_NETWORKS):
        raise ConfigError(
            f"key client-models: clients of method {method} share one model; those of "
            f"{_methods(private_only=False)} may have different ones"
        )
    if own and not strategy.PRIVATE_MODELS:
        raise ConfigError(
            f"key client-initialisation = 'own': clients of method {method} start from "
            f"what the server holds; those of {_methods(private_only=True)} do not"
        )
    if not different and values["client-model-assignment"] != "random":
        raise ConfigError(
            f"key client-model-assignment = {values['client-model-assignment']!r}: set "
            "client-models too, or leave it out"
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


def _methods(*, private_only: bool) -> str:
    """Return the names of the methods whose clients may have models of their own."""
    strategies = {name: method.load_strategy() for name, method in METHODS.items()}
    return ", ".join(
        name
        for name, strategy in strategies.items()
        if strategy.PRIVATE_MODELS or (strategy.NEEDS_NETWORKS and not private_only)
    )
