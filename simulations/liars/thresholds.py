"""Every threshold that the code declares: where a lie is tried from both sides."""

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass

from fedsuite.rounds import average, guard, recovery
from fedsuite.rounds.strategy import FederatedStrategy

MODULES = (average, guard, recovery)
"""Modules whose constants are thresholds."""


def thresholds(strategy: FederatedStrategy) -> frozenset[float]:
    """Return the thresholds of a strategy.

    They are the constants of the average, the guard and recovery, the guard's limits of
    this strategy, and what its claims may do to a share.
    """
    constants = [
        value
        for module in MODULES
        for name, value in vars(module).items()
        if name.isupper()
    ]
    return frozenset(_numbers([constants, strategy.guard, strategy.share_ratio]))


def _numbers(value: object) -> Iterator[float]:
    """Yield the finite numbers > 0 in constants, dataclasses, mappings and sequences."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if 0 < value < math.inf:
            yield float(value)
    elif is_dataclass(value):
        for item in fields(value):
            if not item.name.startswith("_"):
                yield from _numbers(getattr(value, item.name))
    elif isinstance(value, Mapping):
        yield from _numbers(list(value.values()))
    elif isinstance(value, list | tuple | Set):
        for item in value:
            yield from _numbers(item)
