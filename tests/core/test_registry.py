"""What all methods of the registry have in common."""

import inspect

import pytest

from fedsuite.core.keys import Key
from fedsuite.core.registry import METHODS
from fedsuite.rounds.base import FederatedStrategy
from fedsuite.strategies import load_strategy


def own_default(strategy: type[FederatedStrategy], key: Key) -> object:
    """Return the default of the constructor's keyword that a key sets."""
    for parent in strategy.__mro__:
        if "__init__" in vars(parent):
            parameters = inspect.signature(parent.__init__).parameters
            if key.argument in parameters:
                return parameters[key.argument].default
    return None


@pytest.mark.parametrize("method", METHODS)
def test_by_hand_and_by_file_a_method_has_the_same_defaults(method: str) -> None:
    strategy = load_strategy(METHODS[method])
    for key in strategy.KEYS:
        assert own_default(strategy, key) == key.default, key.name
