"""Server side: one short file a method, showing only how it differs from its parent.

``from fedsuite.strategies import FedAvg`` finds each strategy of the registry; nothing is
imported before it is asked for. Flower's ``Result`` and ``Strategy`` are found here too, so
that an app's line that imports them with ``FedAvg`` can name this package in place of
Flower's.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsuite.core.registry import Method, exported_classes, load_class

if TYPE_CHECKING:
    from fedsuite.rounds.base import FederatedStrategy

_FLOWERS = dict.fromkeys(("Result", "Strategy"), "flwr.serverapp.strategy")
_CLASSES = exported_classes("strategies") | _FLOWERS


def load_strategy(method: Method) -> "type[FederatedStrategy]":
    """Import and return the class of a method's strategy."""
    strategy: type[FederatedStrategy] = load_class("strategies", method.strategy)
    return strategy


def __getattr__(name: str) -> Any:
    """Import a class when it is first used (PEP 562)."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def __dir__() -> list[str]:
    """List what can be imported."""
    return sorted(_CLASSES)
