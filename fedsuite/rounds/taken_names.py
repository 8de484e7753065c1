"""A subclass of an app's may hide a method that the rounds call: it is refused by name.

A subclass of Flower's FedAvg may call its own list of clients ``chosen``, or its mean
``average``: Flower has no such methods. Here the rounds would call them.
"""

import inspect
from collections.abc import Callable

from fedsuite.core.errors import ConfigError
from fedsuite.rounds.legacy_server import arguments_of, takes


def check_names(strategy: type) -> None:
    """Refuse a subclass that hides a method by what cannot be called in its place.

    Raises
    ------
    ConfigError
        If an attribute, or a method that cannot take the same arguments, hides one.
    """
    for name, value in vars(strategy).items():
        method = None if name.startswith("__") else hidden(strategy, name)
        if method is None:
            continue
        if not callable(getattr(strategy, name)):
            raise hides(strategy, name)
        # The app calls start itself, with what it likes.
        called = inspect.isfunction(value) and name != "start"
        if called and not takes(value, _num_required(method)):
            raise ConfigError(
                f"{strategy.__name__}.{name}{arguments_of(value)} hides a method of "
                f"{_parent(strategy)}, {name}{arguments_of(method)}, which the rounds "
                "call: take the same arguments, or give it another name"
            )


def hidden(strategy: type, name: str) -> Callable[..., object] | None:
    """Return the method of fedsuite's that an attribute of this name hides, or None."""
    for parent in strategy.__mro__:
        method = vars(parent).get(name)
        method = getattr(method, "__func__", method)  # of a classmethod
        if parent.__module__.startswith("fedsuite.") and inspect.isfunction(method):
            return method
    return None


def hides(strategy: type, name: str) -> ConfigError:
    """Return the error of an attribute in a method's place."""
    return ConfigError(
        f"{strategy.__name__}.{name} hides a method of {_parent(strategy)}, which the "
        "rounds call: give it another name"
    )


def replaces(present: object, value: object) -> bool:
    """Return whether a part that the rounds work with would become something else."""
    ours = type(value).__module__.startswith("fedsuite.")
    return not (ours or isinstance(value, type(present)))


def taken(strategy: type, name: str) -> ConfigError:
    """Return the error of an attribute in the place of a part of the strategy."""
    return ConfigError(
        f"{strategy.__name__}.{name} is a part of {_parent(strategy)}, which the rounds "
        "use: give it another name"
    )


def _parent(strategy: type) -> str:
    """Return the name of the strategy of fedsuite's that a class is made from."""
    ours = (c for c in strategy.__mro__ if c.__module__.startswith("fedsuite."))
    return next(ours).__name__


def _num_required(method: Callable[..., object]) -> int:
    """Return how many arguments a method must be given, itself among them."""
    parameters = inspect.signature(method).parameters.values()
    by_position = (p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty for p in by_position)
