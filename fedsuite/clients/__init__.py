"""Client side: one short file per method, named as its strategy's.

``from fedsuite.clients import FedAvgClient`` finds each client of the registry, and imports
it when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsuite.core.registry import Method, exported_classes, load_class

if TYPE_CHECKING:
    from fedsuite.training.base import FederatedClient

_CLASSES = exported_classes("clients")


def load_client(method: Method) -> "type[FederatedClient]":
    """Import and return the class of a method's client."""
    client: type[FederatedClient] = load_class("clients", method.client)
    return client


def __getattr__(name: str) -> Any:
    """Import a client's class when it is first used (PEP 562)."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def __dir__() -> list[str]:
    """List the clients."""
    return sorted(_CLASSES)
