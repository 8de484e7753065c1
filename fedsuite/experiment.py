"""An experiment: flat kebab-case keys, checked before anything starts.

The same file serves ``fedsuite run FILE`` and ``flwr run . --run-config FILE``. Keys are
declared where they belong; this module collects the declarations, checks values against
them, and fills in the defaults.
"""

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomli_w

from fedsuite.client_networks import check_networks
from fedsuite.errors import ConfigError
from fedsuite.keys import AUTO, Key, Value
from fedsuite.registry import METHODS
from fedsuite.site_keys import check_sites, number_of_sites

KEYS: tuple[Key, ...] = (
    Key("method", "fedavg", "method to run", choices=tuple(METHODS)),
    Key("num-rounds", 10, "rounds of the federation", minimum=1),
    Key("seed", 0, "seed of all random streams", minimum=0),
    Key(
        "clients-per-round",
        0,
        "clients sampled to train in a round; 0 is all",
        minimum=0,
    ),
    Key("evaluate-every", 1, "rounds between evaluations on all clients", minimum=1),
    Key("quorum", 1, "least good replies for a round to count", minimum=1),
    Key(
        "max-failed-rounds",
        3,
        "rounds in a row below the quorum before the run ends with an error",
        minimum=1,
    ),
    Key("connect-timeout", 600.0, "seconds to wait for SuperNodes", above=0.0),
    Key("round-timeout", 3600.0, "seconds to wait for the replies of a round", above=0.0),
    Key(
        "threads",
        1,
        "torch threads of each process; may change the last bits",
        minimum=1,
        maximum=256,
    ),
    Key("device", "auto", "where clients train", choices=("auto", "cpu", "cuda")),
    Key(
        "engine",
        AUTO,
        "what runs it under `fedsuite run`: auto is local",
        choices=("local", "ray", "deployment"),
        kind=str,
    ),
    Key("resume", False, "go on from the last checkpoint in the run's folder"),
    Key("output-dir", AUTO, "folder that run folders go into", kind=str),
    Key("run-name", AUTO, "name of the run's folder", kind=str),
    Key("state-dir", AUTO, "folder for what clients keep between rounds", kind=str),
    Key(
        "checkpoint-every",
        10,
        "rounds between checkpoints; 0 writes none",
        minimum=0,
    ),
    Key("tensorboard", False, "also write TensorBoard events into the run's folder"),
    Key(
        "metrics-port",
        0,
        "port of the server's Prometheus text, /metrics, while rounds go on; 0 is none",
        minimum=0,
        maximum=65535,
    ),
    Key("metrics-host", "127.0.0.1", "address that metrics-port is opened on"),
    Key(
        "early-stop-metric",
        "",
        "metric of rounds.jsonl that ends the run when it stops improving; empty: never",
    ),
    Key("early-stop-patience", 20, "evaluations without improvement to wait", minimum=1),
    Key(
        "best-model-metric",
        "",
        "metric of rounds.jsonl whose best model is kept too; empty keeps none",
    ),
)

LOCAL_KEYS = frozenset(
    {
        "engine",
        "resume",
        "output-dir",
        "run-name",
        "state-dir",
        "data-dir",
        "public-dir",
        "site-dirs",
        "num-rounds",
        "checkpoint-every",
        "connect-timeout",
        "round-timeout",
        "tensorboard",
        "metrics-port",
        "metrics-host",
    }
)
"""Keys that say where or how long, not what: a run may be resumed with others."""

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


@dataclass(frozen=True)
class Experiment:
    """A checked experiment with all its values.

    Parameters
    ----------
    values
        Key to value: the keys that apply, no more and no less.
    """

    values: Mapping[str, Value]

    @classmethod
    def load(cls, path: Path, overrides: Mapping[str, Value] | None = None) -> "Experiment":
        """Read an experiment file; ``overrides`` win over what it says.

        Raises
        ------
        ConfigError
            If the file cannot be read, or the experiment cannot be run.
        """
        return cls.from_values({**read_file(path), **(overrides or {})})

    @classmethod
    def from_values(cls, given: Mapping[str, object]) -> "Experiment":
        """Check values and fill in defaults.

        Raises
        ------
        ConfigError
            Naming the key, the value, and what is allowed.
        """
        for name in given:
            if name not in known_keys():
                raise unknown_key(name)
        values: dict[str, Value] = {}
        for group in _groups(given):
            for key in group.keys:
                value = given.get(key.name, group.defaults.get(key.name, key.default))
                if value == AUTO and key.name in group.defaults:
                    value = group.defaults[key.name]
                elif value == AUTO and key.default != AUTO and key.name in ambiguous_keys():
                    value = key.default
                values[key.name] = key.parse(value)
        for name, value in given.items():
            if name not in values and not is_default(name, value):
                raise ConfigError(
                    f"key {name} = {value!r} does not apply here: it belongs to "
                    f"{', '.join(known_keys()[name].owners)}"
                )
        values.update(number_of_sites(values))
        experiment = cls(dict(sorted(values.items())))
        experiment.check()
        return experiment

    def check(self) -> None:
        """Refuse combinations that cannot be run."""
        num_clients, per_round = (
            self.integer("num-clients"),
            self.integer("clients-per-round"),
        )
        if per_round > num_clients:
            raise ConfigError(
                f"key clients-per-round = {per_round}: expected at most num-clients = "
                f"{num_clients}, or 0 for all"
            )
        if self.integer("quorum") > (per_round or num_clients):
            raise ConfigError(
                f"key quorum = {self['quorum']}: expected at most the "
                f"{per_round or num_clients} clients of a round"
            )
        if self.integer("local-epochs") == 0 and self.integer("local-steps") == 0:
            raise ConfigError(
                "keys local-epochs and local-steps are both 0: set one of them"
            )
        if self.number("drop-out") + self.number("straggler") > 1:
            raise ConfigError(
                f"keys drop-out = {self['drop-out']} and straggler = {self['straggler']}: "
                "expected at most 1 together"
            )
        strategy = METHODS[self.text("method")].load_strategy()
        reason = f": {strategy.FIXED_REASON}" if strategy.FIXED_REASON else ""
        for key, value in strategy.FIXED.items():
            if self[key] != value:
                raise ConfigError(
                    f"key {key} = {self[key]!r}: method {self['method']} needs {value!r}"
                    + reason
                )
        check_sites(self.values)
        check_networks(self.values)
        name = self.text("run-name")
        if not _RUN_NAME.fullmatch(name):
            raise ConfigError(
                f"key run-name = {name!r}: expected letters, digits, dots, dashes and "
                "underscores, 121 at most, starting with a letter or digit"
            )

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def integer(self, name: str) -> int:
        """Return the value of an integer key."""
        value = self.values[name]
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        """Return the value of a float key."""
        value = self.values[name]
        assert isinstance(value, float), name
        return value

    def text(self, name: str) -> str:
        """Return the value of a string key."""
        value = self.values[name]
        assert isinstance(value, str), name
        return value

    def arguments(self, keys: Sequence[Key]) -> dict[str, Value]:
        """Return the values of some keys as keyword arguments."""
        return {key.argument: self.values[key.name] for key in keys}

    def replace(self, **changes: Value) -> "Experiment":
        """Return an experiment with other values; arguments are keys in snake case."""
        renamed = {name.replace("_", "-"): value for name, value in changes.items()}
        return Experiment.from_values({**self.values, **renamed})

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the values that decide what is computed."""
        decisive = {k: v for k, v in self.values.items() if k not in LOCAL_KEYS}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """Return the experiment as a file that :meth:`load` reads back."""
        return tomli_w.dumps(dict(self.values))


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


@dataclass(frozen=True)
class _Group:
    """Keys that apply, with defaults that differ from their declarations."""

    keys: Sequence[Key]
    defaults: Mapping[str, Value]


def read_file(path: Path) -> dict[str, object]:
    """Read the flat keys of a TOML file.

    Raises
    ------
    ConfigError
        If it cannot be read, is not TOML, or is not flat.
    """
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read experiment {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"experiment {path} is not valid TOML: {error}") from error
    for name, value in content.items():
        if isinstance(value, dict | list):
            raise ConfigError(
                f"experiment {path}: key {name} holds a {type(value).__name__}; keys are "
                "flat, and a list is a comma-separated string"
            )
    return content


def shared_groups() -> dict[str, tuple[Key, ...]]:
    """Return the keys that every experiment has, by what they are about."""
    from fedsuite import data, models
    from fedsuite.clients.fault_plan import KEYS as FAULT_KEYS
    from fedsuite.clients.privacy import KEYS as PRIVACY_KEYS
    from fedsuite.clients.scoring import KEYS as SCORE_KEYS
    from fedsuite.clients.self_regularisation import KEYS as LSR_KEYS
    from fedsuite.clients.training import KEYS as TRAINING_KEYS
    from fedsuite.strategies.extras import KEYS as SERVER_KEYS

    return {
        "run": (*KEYS, *SCORE_KEYS),
        "data": data.KEYS,
        "model": (
            models.MODEL,
            *models.CLIENT_NETWORK_KEYS,
            models.DECOMPOSITION,
            *models.FEDPARA_KEYS,
        ),
        "training": TRAINING_KEYS,
        "extras": (*SERVER_KEYS, *LSR_KEYS, *PRIVACY_KEYS, *FAULT_KEYS),
    }


def _shared_keys() -> tuple[Key, ...]:
    return tuple(key for keys in shared_groups().values() for key in keys)


def _owned_keys() -> Iterator[tuple[str, str, Sequence[Key]]]:
    """Yield selector, its value, and the keys that apply when it is chosen."""
    from fedsuite import data, decomposition, models

    for name, dataset in data.DATASETS.items():
        yield "dataset", name, dataset.keys
    for name, partitioner in data.PARTITIONERS.items():
        yield "partitioner", name, partitioner.keys
    for name, model in models.MODELS.items():
        yield "model", name, model.keys
    factor_keys = (*models.DECOMPOSITION_KEYS, *decomposition.KEYS)
    yield models.DECOMPOSITION.name, "true", factor_keys
    for name, method in METHODS.items():
        yield "method", name, method.load_strategy().KEYS


@cache
def known_keys() -> dict[str, KnownKey]:
    """Return every key that an experiment may name."""
    known = {key.name: KnownKey((key,), ()) for key in _shared_keys()}
    for selector, name, keys in _owned_keys():
        for key in keys:
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
    overridden = {k for m in METHODS.values() for k in m.load_strategy().DEFAULTS}
    return frozenset(differing | overridden)


def table_default(name: str) -> Value:
    """Return what stands for a key in ``[tool.flwr.app.config]``."""
    return AUTO if name in ambiguous_keys() else known_keys()[name].declarations[0].default


def is_default(name: str, value: object) -> bool:
    """Return whether a value is what stands there when the user said nothing."""
    return value == table_default(name)


def _groups(given: Mapping[str, object]) -> Iterator[_Group]:
    method = _choice("method", given)
    defaults = METHODS[method].load_strategy().DEFAULTS
    yield _Group(_shared_keys(), defaults)
    chosen = {
        selector: defaults.get(selector) if given.get(selector, AUTO) == AUTO else None
        for selector in ("dataset", "partitioner", "model", "decomposition")
    }
    for selector, name, keys in _owned_keys():
        wanted = chosen.get(selector) or _choice(selector, given)
        if name == _selected(wanted):
            yield _Group(keys, defaults)


def _choice(selector: str, given: Mapping[str, object]) -> str:
    """Return the checked value of a key that selects others."""
    key = known_keys()[selector].declarations[0]
    value = given.get(selector, key.default)
    if value == AUTO and selector in ambiguous_keys():
        value = key.default
    return _selected(key.parse(value))


def _selected(value: Value) -> str:
    """Return a selector's value as it stands in TOML."""
    return value if isinstance(value, str) else str(value).lower()


def unknown_key(name: str) -> ConfigError:
    """Return the error for a key that nobody declares, with the nearest known one."""
    near = difflib.get_close_matches(name.replace("_", "-"), known_keys(), 1, cutoff=0.5)
    hint = (
        f"did you mean {near[0]!r}?" if near else "`fedsuite methods NAME` lists the keys"
    )
    return ConfigError(f"unknown key {name!r}: {hint}")


def parse_assignment(text: str) -> tuple[str, Value]:
    """Read ``key=value`` as typed on a command line.

    Raises
    ------
    ConfigError
        If it is not of that form, or the key or value is not known.
    """
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"{text!r}: expected key=value")
    if name not in known_keys():
        raise unknown_key(name)
    if value == AUTO and name in ambiguous_keys():
        return name, AUTO
    return name, known_keys()[name].declarations[0].parse_text(value)
