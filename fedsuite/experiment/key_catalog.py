"""All keys that an experiment may name, collected from where they are declared.

An experiment loads its own method alone: between machines every message is answered by a
new process.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from fedsuite.core.errors import ConfigError, nearest
from fedsuite.core.keys import AUTO, Key, Value
from fedsuite.core.plug_ins import Registry
from fedsuite.core.registry import METHODS
from fedsuite.experiment.own_defaults import TOGETHER
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.strategies import load_strategy


@dataclass(frozen=True)
class KnownKey:
    """All declarations of a key's name.

    Parameters
    ----------
    declarations
        The declarations; methods may share one.
    owners
        ``method fedprox``, ``partitioner shards``, ...; empty for keys of every experiment.
    """

    declarations: tuple[Key, ...]
    owners: tuple[str, ...]


def shared_groups() -> dict[str, tuple[Key, ...]]:
    """Return the keys of every experiment, by subject."""
    from fedsuite.data import DataSettings
    from fedsuite.models.model_settings import ModelSettings
    from fedsuite.rounds.round_settings import PRIVACY_KEYS, RoundSettings
    from fedsuite.training.attack_plan import AttackPlan
    from fedsuite.training.fault_plan import FaultPlan
    from fedsuite.training.loop import TrainingOptions
    from fedsuite.training.scoring import Scoring
    from fedsuite.training.upload_noise import UploadNoise

    of_rounds = (key for key in RoundSettings.KEYS if key not in PRIVACY_KEYS)
    return {
        "run": (*RunSettings.KEYS, *of_rounds, *Scoring.KEYS),
        "data": DataSettings.KEYS,
        "model": ModelSettings.KEYS,
        "training": TrainingOptions.KEYS,
        "privacy": PRIVACY_KEYS,
        "extras": (
            *UploadNoise.KEYS,
            *FaultPlan.KEYS,
            *AttackPlan.KEYS,
        ),
    }


@cache
def shared_keys() -> dict[str, Key]:
    """Return the keys of every experiment, by name."""
    return {key.name: key for keys in shared_groups().values() for key in keys}


@cache
def local_keys() -> frozenset[str]:
    """Return the keys that say where or how long a run works, not what it computes."""
    return frozenset(name for name, key in shared_keys().items() if key.local)


SELECTORS = ("dataset", "partitioner", "model", "decomposition", "method")
"""Keys whose values have keys of their own."""


def owners(selector: str) -> tuple[str, ...]:
    """Return the values of a selector that may have keys."""
    return tuple(_values_of()[selector])


def our_owners(selector: str) -> tuple[str, ...]:
    """Return those values of a selector that no other package adds."""
    all_owners = _values_of()[selector]
    ours = all_owners.ours if isinstance(all_owners, Registry) else all_owners
    return tuple(name for name in all_owners if name in ours)


def _values_of() -> dict[str, Iterable[str]]:
    from fedsuite import data, models

    return {
        "dataset": data.DATASETS,
        "partitioner": data.PARTITIONERS,
        "model": models.MODELS,
        "decomposition": ("true",),
        "method": METHODS,
    }


def keys_of(selector: str, name: str) -> Sequence[Key]:
    """Return the keys of a selector's value, such as those of ``dataset``, ``mnist``."""
    from fedsuite import data, models
    from fedsuite.messages import decomposition
    from fedsuite.models.model_settings import DecompositionSettings

    if selector == "dataset":
        return data.DATASETS[name].source.KEYS
    if selector == "partitioner":
        return data.PARTITIONERS[name].KEYS
    if selector == "model":
        return models.MODELS[name].settings.KEYS
    if selector == "method":
        return load_strategy(METHODS[name]).method_keys()
    return (*DecompositionSettings.KEYS, *decomposition.KEYS) if name == "true" else ()


@cache
def known_keys() -> dict[str, KnownKey]:
    """Return all keys of all experiments, by name."""
    return _collected(owners)


@cache
def our_keys() -> dict[str, KnownKey]:
    """Return the keys that no other package adds, by name."""
    return _collected(our_owners)


def _collected(values_of: Callable[[str], tuple[str, ...]]) -> dict[str, KnownKey]:
    known = {name: KnownKey((key,), ()) for name, key in shared_keys().items()}
    for selector, name in ((s, n) for s in SELECTORS for n in values_of(s)):
        for key in keys_of(selector, name):
            old = known.get(key.name, KnownKey((), ()))
            known[key.name] = KnownKey(
                (*old.declarations, key), (*old.owners, f"{selector} {name}")
            )
    return known


@cache
def ambiguous_keys() -> frozenset[str]:
    """Return the keys whose default depends on other keys."""
    return _ambiguous(known_keys(), owners("method"))


@cache
def _ambiguous_of_ours() -> frozenset[str]:
    return _ambiguous(our_keys(), our_owners("method"))


def _ambiguous(keys: Mapping[str, KnownKey], methods: Iterable[str]) -> frozenset[str]:
    differing = {
        name
        for name, known in keys.items()
        if len({(type(key.default), key.default) for key in known.declarations}) > 1
    }
    strategies = [load_strategy(METHODS[method]) for method in methods]
    overridden = {k for s in strategies for k in (*s.DEFAULTS, *s.PAPER)}
    # Naming one of TOGETHER decides on the others.
    return frozenset(differing | overridden).union(*TOGETHER)


def table_default(name: str) -> Value:
    """Return the value of a key in ``[tool.flwr.app.config]``.

    Packages that are installed change nothing there.
    """
    if name in _ambiguous_of_ours():
        return AUTO
    known = our_keys().get(name) or known_keys()[name]
    return known.declarations[0].default


def is_default(name: str, value: object) -> bool:
    """Return whether a value is the one of ``[tool.flwr.app.config]``."""
    return value == table_default(name)


def unknown_key(name: str) -> ConfigError:
    """Return the error for an undeclared key, with the nearest known one."""
    near = nearest(name.replace("_", "-"), known_keys(), cutoff=0.5)
    hint = "`fedsuite methods NAME --all` lists the keys"
    if near:
        hint = f"did you mean {near!r}?"
    return ConfigError(f"unknown key {name!r}: {hint}", [name])
