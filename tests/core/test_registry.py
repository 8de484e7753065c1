"""What all methods of the registry have in common."""

import inspect
import re

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Key, toml_text
from fedsuite.core.registry import METHODS, OPTIONS, find_method
from fedsuite.experiment.experiment import Experiment
from fedsuite.rounds.strategy import FederatedStrategy
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


def test_methods_that_are_options_answer_with_the_keys_that_give_them() -> None:
    for name, keys in OPTIONS.items():
        assert name not in METHODS
        experiment = Experiment.from_values({"method": "fedavg", **keys})
        given = " with " + ", ".join(f"{k} = {toml_text(v)}" for k, v in keys.items())
        assert all(experiment[key] == value for key, value in keys.items())
        for refused in (
            lambda name=name: find_method(name),
            lambda name=name: Experiment.from_values({"method": name}),
        ):
            with pytest.raises(ConfigError, match=re.escape(f'"fedavg"{given}')) as error:
                refused()
            assert "\n" not in str(error.value)
