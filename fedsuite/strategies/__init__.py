"""Server side of the methods: one file each, with its differences from the parent.

``from fedsuite.strategies import FedAvg`` finds each strategy of the registry, and imports
nothing else. Flower's ``Result`` and ``Strategy`` are found here too, as in the package of
Flower's strategies.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsuite.core.registry import Method, exported_classes, load_class

if TYPE_CHECKING:
    from fedsuite.rounds.strategy import FederatedStrategy

_FLOWERS = dict.fromkeys(("Result", "Strategy"), "flwr.serverapp.strategy")
_KEYWORDS_HERE = {
    "FedAvgM": "FedAvg(server_momentum=...)",
    "FedAdam": "FedAvg(server_optimizer='adam', server_adaptive_rate=...)",
    "FedYogi": "FedAvg(server_optimizer='yogi', server_adaptive_rate=...)",
    "FedAdagrad": "FedAvg(server_optimizer='adagrad', server_adaptive_rate=...)",
    "FedMedian": "FedAvg(aggregator='median')",
    "FedTrimmedAvg": "FedAvg(aggregator='trimmed-mean', liars=...)",
    "Krum": "FedAvg(aggregator='multi-krum', liars=...)",
    "MultiKrum": "FedAvg(aggregator='multi-krum', liars=...)",
    "QFedAvg": "QFFL(qffl_q=...)",
}
"""Flower's strategies that are keywords or have another name here."""
_CLASSES = exported_classes("strategies") | _FLOWERS


def load_strategy(method: Method) -> "type[FederatedStrategy]":
    """Import and return the class of a method's strategy."""
    strategy: type[FederatedStrategy] = load_class("strategies", method.strategy)
    return strategy


def __getattr__(name: str) -> Any:
    """Import a class when it is first used (PEP 562)."""
    if name in _KEYWORDS_HERE:
        # No AttributeError, in whose place Python would say no more than the name.
        raise ImportError(f"{name} of Flower is {_KEYWORDS_HERE[name]} here")
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def __dir__() -> list[str]:
    """List what can be imported."""
    return sorted(_CLASSES)
