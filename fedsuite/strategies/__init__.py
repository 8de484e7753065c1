"""Server side: one short file a method, showing only how it differs from its parent.

``from fedsuite.strategies import FedAvg`` finds each strategy of the registry; nothing is
imported before it is asked for.
"""

from importlib import import_module
from typing import Any

from fedsuite.registry import exported_classes

_CLASSES = exported_classes("strategies")


def __getattr__(name: str) -> Any:
    """Import a strategy's class when it is first used (PEP 562)."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_CLASSES[name]), name)


def __dir__() -> list[str]:
    """List the strategies."""
    return sorted(_CLASSES)
