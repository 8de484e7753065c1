"""Server side: one short file a method, showing only how it differs from its parent.

``from fedsuite.strategies import FedAvg`` finds each strategy of the registry; nothing is
imported before it is asked for. Flower's ``Result`` and ``Strategy`` are found here too, so
that an app's line that imports them with ``FedAvg`` can name this package in place of
Flower's.
"""

from importlib import import_module
from typing import Any

from fedsuite.core.registry import exported_classes

_FLOWERS = dict.fromkeys(("Result", "Strategy"), "flwr.serverapp.strategy")
_CLASSES = exported_classes("strategies") | _FLOWERS


def __getattr__(name: str) -> Any:
    """Import a class when it is first used (PEP 562)."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def __dir__() -> list[str]:
    """List what can be imported."""
    return sorted(_CLASSES)
