"""All keys that an experiment may name: collected from where they are declared.

What applies to one experiment is found without loading the methods that it does not use:
between machines every message is answered by a new process.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Key, Value
from fedsuite.core.registry import METHODS
from fedsuite.experiment.own_defaults import TOGETHER
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.strategies import load_strategy


@dataclass(frozen=True)
class KnownKey:
    """A key name with all its declarations, and whom it belongs to.

    Parameters
    ----------
    declarations
        All declarations of the name; methods may share one.
    owners
        ``method fedprox``, ``partitioner shards``, ...; empty for keys of every experiment.
    """

    declarations: tuple[Key, ...]
    owners: tuple[str, ...]


def shared_groups() -> dict[str, tuple[Key, ...]]:
    """Return the keys that every experiment has, by what they are about."""
    from fedsuite.data import DataSettings
    from fedsuite.models.model_settings import ModelSettings
    from fedsuite.rounds.round_settings import RoundSettings
    from fedsuite.training.fault_plan import FaultPlan
    from fedsuite.training.loop import TrainingOptions
    from fedsuite.training.privacy import PrivacyOptions
    from fedsuite.training.scoring import Scoring
    from fedsuite.training.self_regularisation import LSROptions

    return {
        "run": (*RunSettings.KEYS, *RoundSettings.KEYS, *Scoring.KEYS),
        "data": DataSettings.KEYS,
        "model": ModelSettings.KEYS,
        "training": TrainingOptions.KEYS,
        "extras": (*LSROptions.KEYS, *PrivacyOptions.KEYS, *FaultPlan.KEYS),
    }


@cache
def shared_keys() -> dict[str, Key]:
    """Return the keys that every experiment has, by name."""
    return {key.name: key for keys in shared_groups().values() for key in keys}


SELECTORS = ("dataset", "partitioner", "model", "decomposition", "method")
"""Keys whose values bring keys of their own."""


def owners(selector: str) -> tuple[str, ...]:
    """Return the values of a selector that may bring keys."""
    from fedsuite import data, models

    found: dict[str, Iterable[str]] = {
        "dataset": data.DATASETS,
        "partitioner": data.PARTITIONERS,
        "model": models.MODELS,
        "decomposition": ("true",),
        "method": METHODS,
    }
    return tuple(found[selector])


def keys_of(selector: str, name: str) -> Sequence[Key]:
    """Return the keys that apply where a selector has a value; loads that method alone."""
    from fedsuite import data, models
    from fedsuite.messages import decomposition
    from fedsuite.models.model_settings import DecompositionSettings

    if selector == "dataset":
        return data.DATASETS[name].keys
    if selector == "partitioner":
        return data.PARTITIONERS[name].keys
    if selector == "model":
        return models.MODELS[name].keys
    if selector == "method":
        return load_strategy(METHODS[name]).method_keys()
    return (*DecompositionSettings.KEYS, *decomposition.KEYS) if name == "true" else ()


@cache
def known_keys() -> dict[str, KnownKey]:
    """Return every key that an experiment may name."""
    known = {name: KnownKey((key,), ()) for name, key in shared_keys().items()}
    for selector, name in ((s, n) for s in SELECTORS for n in owners(s)):
        for key in keys_of(selector, name):
            old = known.get(key.name, KnownKey((), ()))
            known[key.name] = KnownKey(
                (*old.declarations, key), (*old.owners, f"{selector} {name}")
            )
    return known


@cache
def ambiguous_keys() -> frozenset[str]:
    """Return the keys whose default depends on what else the experiment says."""
    differing = {
        name
        for name, known in known_keys().items()
        if len({(type(key.default), key.default) for key in known.declarations}) > 1
    }
    overridden = {k for m in METHODS.values() for k in load_strategy(m).DEFAULTS}
    # Whether one of these is named decides on others.
    together = {name for group in TOGETHER for name in group}
    return frozenset(differing | overridden | together)


def table_default(name: str) -> Value:
    """Return what stands for a key in ``[tool.flwr.app.config]``."""
    return AUTO if name in ambiguous_keys() else known_keys()[name].declarations[0].default


def is_default(name: str, value: object) -> bool:
    """Return whether a value is what stands there when the user said nothing."""
    return value == table_default(name)


def unknown_key(name: str) -> ConfigError:
    """Return the error for a key that nobody declares, with the nearest known one."""
    near = difflib.get_close_matches(name.replace("_", "-"), known_keys(), 1, cutoff=0.5)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else "`fedsuite methods NAME --all` lists the keys"
    )
    return ConfigError(f"unknown key {name!r}: {hint}")
