"""An experiment: flat kebab-case keys, checked before anything starts.

The same file serves ``fedsuite run FILE`` and ``flwr run . --run-config FILE``. Keys are
declared where they belong (:mod:`fedsuite.experiment.key_catalog` collects them). This
module checks values against the declarations and fills in defaults.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import tomli_w

from fedsuite.core.errors import ConfigError, Refused
from fedsuite.core.keys import AUTO, Key, Value
from fedsuite.core.registry import METHODS
from fedsuite.core.rules import Rule, check_rules, rule_of_needs
from fedsuite.core.settings import Declared, Settings
from fedsuite.core.text import is_file_name, read_toml
from fedsuite.data.data_settings import DataSettings
from fedsuite.experiment.client_settings import KEY as CLIENT_SETTINGS
from fedsuite.experiment.client_settings import settings_by_entry
from fedsuite.experiment.key_catalog import (
    SELECTORS,
    ambiguous_keys,
    is_default,
    keys_of,
    known_keys,
    local_keys,
    shared_keys,
    unknown_key,
)
from fedsuite.experiment.own_defaults import own_defaults, own_note
from fedsuite.experiment.rules import experiment_rules
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.experiment.shipped import find_experiment
from fedsuite.models.model_settings import ModelSettings
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.strategies import load_strategy

if TYPE_CHECKING:
    from fedsuite.rounds.strategy import FederatedStrategy

Group = TypeVar("Group", bound=Declared)


@dataclass(frozen=True)
class Experiment:
    """A checked experiment with all its values.

    Parameters
    ----------
    values
        Key to value: the keys that apply, no more and no less.
    note
        One line on what the method's own defaults change; empty if nothing.
    left_out
        Keys of a file that lose their effect by overrides.
    """

    values: Mapping[str, Value]
    note: str = field(default="", compare=False)
    left_out: tuple[str, ...] = field(default=(), compare=False)
    _groups: dict[type[Declared], Settings] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def load(cls, path: Path, overrides: Mapping[str, Value] | None = None) -> "Experiment":
        """Read an experiment file; ``overrides`` win over its values.

        Raises
        ------
        ConfigError
            If the file cannot be read, or the experiment cannot be run.
        """
        values = {**read_file(path), **(overrides or {})}
        with naming(path, overrides or ()):
            return cls.from_values(values, tuple(overrides or ()))

    @classmethod
    def from_values(
        cls,
        given_values: Mapping[str, object],
        overridden: Collection[str] = (),
        *,
        own_paths: bool = False,
    ) -> "Experiment":
        """Check values and fill in defaults.

        Parameters
        ----------
        given_values
            Key to value.
        overridden
            Keys whose values win over a file's. Other keys that lose their effect by them
            fall to their defaults, and are not refused.
        own_paths
            Whether the values came with a message to a node, which has folders of its own.

        Raises
        ------
        ConfigError
            Naming the key, the value, and what is allowed.
        """
        values: dict[str, Value] = {}
        defaults: dict[str, Value] = {}
        keys: list[Key] = []
        method, shared = _choice("method", given_values, {}), shared_keys()
        own = own_defaults(method, given_values, shared)
        for group in _keys_that_apply(given_values, own):
            keys += group
            for key in group:
                defaults[key.name] = own.get(key.name, key.default)
                value = given_values.get(key.name, defaults[key.name])
                if own_paths:
                    value = key.own(value)
                if value == AUTO and key.name in own:
                    value = own[key.name]
                elif value == AUTO and key.default != AUTO and key.name in ambiguous_keys():
                    value = key.default
                values[key.name] = key.parse(value)
        others = {n: value for n, value in given_values.items() if n not in values}
        left_out = _foreign_keys(others, overridden)
        rules = _rules_of(values, keys)
        while idle := _idle_keys(rules, values, defaults, overridden):
            left_out += idle
            values.update({name: defaults[name] for name in idle})
        values.update(_number_of_sites(values))
        check_rules(rules, values, defaults)
        notes = [own_note(method, own, given_values, values, shared)]
        if left_out:
            notes.append(f"left out, as they have no effect here: {', '.join(left_out)}")
        note = "; ".join(filter(None, notes))
        experiment = cls(dict(sorted(values.items())), note, tuple(left_out))
        experiment.check()
        return experiment

    def check(self) -> None:
        """Refuse networks, trackers and names that cannot be."""
        from fedsuite.models.assignment import experiment_networks

        experiment_networks(self.values)
        run = self.group(RunSettings)
        if run.client_settings:
            self._check_clients(run.client_settings)
        _ = run.tracker_names
        if not is_file_name(run.run_name, 121):
            raise Refused(
                {"run-name": run.run_name},
                "expected letters, digits, dots, dashes and underscores, 121 at most, "
                "starting with a letter or digit, and no name of a device on Windows, such "
                "as nul",
            )

    def _check_clients(self, text: str) -> None:
        """Refuse values of single clients that no experiment could have for all."""
        for client, values in settings_by_entry(text).items():
            if "lora-rank" in values:
                self._check_rank(text, client, int(values["lora-rank"]))
            try:
                Experiment.from_values({**self.values, CLIENT_SETTINGS: "", **values})
            except ConfigError as error:
                raise Refused(
                    {CLIENT_SETTINGS: text}, f"client {client}: {error}"
                ) from error

    def _check_rank(self, text: str, client: str, rank: int) -> None:
        """Refuse a client's own rank of adapters where it can have no effect."""
        most, average = self.group(ModelSettings).lora_rank, self["lora-average"]
        if average != "products":
            raise Refused(
                {CLIENT_SETTINGS: text, "lora-average": average},
                f"client {client}: the mean of factors is of one rank",
                "set lora-average = 'products'",
            )
        if not 1 <= rank <= most:
            raise Refused(
                {CLIENT_SETTINGS: text, "lora-rank": most},
                f"client {client}: a rank of its own is from 1 to that of all",
            )

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    @property
    def strategy(self) -> "type[FederatedStrategy]":
        """Strategy of the method."""
        return load_strategy(METHODS[str(self["method"])])

    @property
    def seed(self) -> int:
        """Seed of all random streams."""
        return self.group(RoundSettings).seed

    @property
    def num_clients(self) -> int:
        """Number of clients that the data is divided among."""
        return self.group(DataSettings).num_clients

    def group(self, settings: type[Group], **parts: object) -> Group:
        """Return the values of a class's keys as an object of the class.

        Parameters
        ----------
        settings
            Class that declares the keys.
        **parts
            Keywords of the class that are no keys.
        """
        # A tenth of a small run was to make the same settings over and over.
        if not parts and settings in self._groups:
            return cast(Group, self._groups[settings])
        values = {key.argument: self.values[key.name] for key in settings.KEYS}
        group = settings(**values, **parts)
        if isinstance(group, Settings) and not parts:
            self._groups[type(group)] = group
        return group

    def replace(self, **changes: Value) -> "Experiment":
        """Return an experiment with other values; arguments are keys in snake case."""
        renamed = {name.replace("_", "-"): value for name, value in changes.items()}
        return Experiment.from_values({**self.values, **renamed})

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the values that decide what is computed."""
        text = json.dumps(identifying(self.values), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_toml(self) -> str:
        """Return the experiment as a file that :meth:`load` reads back."""
        return tomli_w.dumps(dict(self.values))


def identifying(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values that decide what is computed."""
    return {key: value for key, value in values.items() if key not in local_keys()}


def read_file(path: Path) -> dict[str, object]:
    """Read the flat keys of a file that :func:`~.shipped.find_experiment` finds.

    Raises
    ------
    ConfigError
        If it cannot be read, is not TOML, or is not flat.
    """
    try:
        content = read_toml(find_experiment(path))
    except OSError as error:
        raise ConfigError(f"cannot read experiment {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"experiment {path} is not valid TOML: {error}") from error
    for name, value in content.items():
        if isinstance(value, dict | list):
            raise ConfigError(
                f"experiment {path}: key {name} holds a {type(value).__name__}; keys are "
                "flat, and a list is a comma-separated string"
            )
    return content


@contextmanager
def naming(path: Path, overridden: Collection[str]) -> Iterator[None]:
    """Add the file's name to an error inside the block, unless overrides have a part in it.

    Those stand on the command line, before the user's eyes.
    """
    try:
        yield
    except ConfigError as error:
        if not error.keys or error.keys & set(overridden):
            raise
        raise ConfigError(f"{path}: {error}") from None


def _rules_of(values: Mapping[str, Value], keys: Iterable[Key]) -> tuple[Rule, ...]:
    """Return the rules of an experiment with these keys."""
    strategy = load_strategy(METHODS[str(values["method"])])
    known = {key.name for key in strategy.KEYS}
    others = (key for key in keys if key.name not in known)
    return (
        *strategy.rules(),
        *(rule_of_needs(key) for key in others if key.needs),
        *experiment_rules(strategy),
    )


def _idle_keys(
    rules: Iterable[Rule],
    values: Mapping[str, Value],
    defaults: Mapping[str, Value],
    overridden: Collection[str],
) -> list[str]:
    """Return the keys of a file that lose their effect by overrides.

    Raises
    ------
    Refused
        If another key would change nothing in this experiment.
    """
    idle = []
    for rule in rules:
        if rule.idle and rule.refuses(values, defaults):
            name, *causes = rule.keys
            if name in overridden or not set(causes) & set(overridden):
                raise rule.error(values)
            idle.append(name)
    return list(dict.fromkeys(idle))


def site_names(values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the names of an experiment's sites; none where clients divide a data set."""
    return DataSettings.of(values).site_names


def _number_of_sites(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the key num-clients of sites; refuse another number, here and of rows."""
    settings = DataSettings.of(values)
    names, _ = settings.site_names, settings.rows_of_sites
    usual = shared_keys()["num-clients"].default
    if names and values["num-clients"] not in (len(names), usual):
        raise Refused(
            {key: values[key] for key in ("num-clients", "sites")},
            f"it names {len(names)}, one client each",
            "leave {num-clients} out",
        )
    return {"num-clients": len(names)} if names else {}


def _foreign_keys(values: Mapping[str, object], overridden: Collection[str]) -> list[str]:
    """Return the keys of a file whose method, model or the like an override replaced.

    Raises
    ------
    ConfigError
        If another key does not apply, unless its value is the default.
    """
    foreign = []
    for name, value in values.items():
        if name not in known_keys():
            raise unknown_key(name)
        if is_default(name, value):
            continue
        owners = known_keys()[name].owners
        replaced = {owner.split()[0] for owner in owners} & set(overridden)
        if name in overridden or not replaced:
            why = f"it does not apply here, it belongs to {', '.join(owners)}"
            raise Refused({name: value}, why, "leave it out")
        foreign.append(name)
    return foreign


def _keys_that_apply(
    values: Mapping[str, object], own: Mapping[str, Value]
) -> Iterator[Sequence[Key]]:
    yield tuple(shared_keys().values())
    for selector in SELECTORS:
        yield keys_of(selector, _choice(selector, values, own))


def _choice(selector: str, values: Mapping[str, object], own: Mapping[str, Value]) -> str:
    """Return the checked value, as TOML text, of a key that selects others."""
    key = shared_keys()[selector]
    value = values.get(selector, AUTO)
    if value == AUTO:
        value = own.get(selector, key.default)
    value = key.parse(value)
    return value if isinstance(value, str) else str(value).lower()


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
    name = name.replace("_", "-")
    if name not in known_keys():
        raise unknown_key(name)
    if value == AUTO and name in ambiguous_keys():
        return name, AUTO
    return name, known_keys()[name].declarations[0].parse_text(value)
