"""Client side: one short file a method, of the same name as its strategy's.

``from fedsuite.clients import FedAvgClient`` finds each client of the registry; nothing is
imported before it is asked for.
"""

from importlib import import_module
from typing import Any

from fedsuite.core.registry import exported_classes

_CLASSES = exported_classes("clients")


def __getattr__(name: str) -> Any:
    """Import a client's class when it is first used (PEP 562)."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def __dir__() -> list[str]:
    """List the clients."""
    return sorted(_CLASSES)
