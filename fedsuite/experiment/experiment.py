"""An experiment: flat kebab-case keys, checked before anything starts.

The same file serves ``fedsuite run FILE`` and ``flwr run . --run-config FILE``. Keys are
declared where they belong (:mod:`fedsuite.experiment.key_catalog` collects them). This
module checks values against the declarations and fills in defaults.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import tomli_w

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Key, Value
from fedsuite.core.registry import METHODS
from fedsuite.core.settings import Declaring
from fedsuite.core.text import read_toml
from fedsuite.data.data_settings import DataSettings
from fedsuite.experiment.choices import check_choices
from fedsuite.experiment.client_networks import check_networks
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
from fedsuite.experiment.key_effects import check_value_needs, idle_keys
from fedsuite.experiment.own_defaults import own_defaults, own_note
from fedsuite.experiment.plug_ins import check_installed
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.experiment.shipped import find_experiment
from fedsuite.experiment.site_keys import check_sites, number_of_sites
from fedsuite.rounds.average_keys import refusal as average_refusal
from fedsuite.rounds.privacy_rules import refusal as noise_refusal
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.strategies import load_strategy
from fedsuite.strategies.decomposition.rules import refusal

if TYPE_CHECKING:
    from fedsuite.rounds.base import FederatedStrategy

Group = TypeVar("Group", bound=Declaring)

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


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

    @classmethod
    def load(cls, path: Path, overrides: Mapping[str, Value] | None = None) -> "Experiment":
        """Read an experiment file; ``overrides`` win over its values.

        Raises
        ------
        ConfigError
            If the file cannot be read, or the experiment cannot be run.
        """
        with naming(path):
            given = {**read_file(path), **(overrides or {})}
            return cls.from_values(given, tuple(overrides or ()))

    @classmethod
    def from_values(
        cls,
        given: Mapping[str, object],
        overridden: Collection[str] = (),
        *,
        own_paths: bool = False,
    ) -> "Experiment":
        """Check values and fill in defaults.

        Parameters
        ----------
        given
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
        check_installed(given.get("plug-ins"))
        values: dict[str, Value] = {}
        defaults: dict[str, Value] = {}
        keys: list[Key] = []
        method, shared = _choice("method", given, {}), shared_keys()
        own = own_defaults(method, given, shared)
        for group in _keys_that_apply(given, own):
            keys += group
            for key in group:
                defaults[key.name] = own.get(key.name, key.default)
                value = given.get(key.name, defaults[key.name])
                if own_paths:
                    value = key.own(value)
                if value == AUTO and key.name in own:
                    value = own[key.name]
                elif value == AUTO and key.default != AUTO and key.name in ambiguous_keys():
                    value = key.default
                values[key.name] = key.parse(value)
        others = {n: value for n, value in given.items() if n not in values}
        left_out = _foreign_keys(others, overridden)
        strategy = load_strategy(METHODS[str(values["method"])])
        while idle := idle_keys(values, defaults, keys, strategy, overridden):
            left_out += idle
            values.update({name: defaults[name] for name in idle})
        values.update(number_of_sites(values))
        notes = [own_note(method, own, given, values, shared)]
        if left_out:
            notes.append(f"left out, as they have no effect here: {', '.join(left_out)}")
        note = "; ".join(filter(None, notes))
        experiment = cls(dict(sorted(values.items())), note, tuple(left_out))
        experiment.check()
        return experiment

    def check(self) -> None:
        """Refuse combinations that cannot be run."""
        self._check_numbers()
        reason = self.strategy.FIXED_REASON
        for key, value in self.strategy.FIXED.items():
            if self[key] != value:
                raise ConfigError(
                    f"key {key} = {self[key]!r}: method {self['method']} needs {value!r}"
                    + (f": {reason}" if reason else "")
                )
        check_value_needs(self.values, self.strategy.KEYS)
        if self["decomposition"] and (reason := refusal(self.strategy, self.values)):
            raise ConfigError(f"key {reason}")
        check_sites(self.values)
        check_choices(self.values)
        self._check_privacy()
        check_networks(self.values)
        run = self.group(RunSettings)
        _ = run.tracker_names
        name = run.run_name
        if not _RUN_NAME.fullmatch(name):
            raise ConfigError(
                f"key run-name = {name!r}: expected letters, digits, dots, dashes and "
                "underscores, 121 at most, starting with a letter or digit"
            )

    def _check_numbers(self) -> None:
        rounds, num_clients = self.group(RoundSettings), self.num_clients
        per_round = rounds.clients_per_round or num_clients
        if per_round > num_clients:
            raise ConfigError(
                f"key clients-per-round = {per_round}: expected at most num-clients = "
                f"{num_clients}, or 0 for all"
            )
        replies = self.strategy.replies_per_round(self.values, per_round)
        if rounds.quorum > replies:
            raise ConfigError(
                f"key quorum = {rounds.quorum}: expected at most the {replies} clients "
                "whose replies close a round"
            )
        if not self["local-epochs"] and not self["local-steps"]:
            raise ConfigError(
                "keys local-epochs and local-steps are both 0: set one of them"
            )
        if float(self["drop-out"]) + float(self["straggler"]) > 1:
            raise ConfigError(
                f"keys drop-out = {self['drop-out']} and straggler = {self['straggler']}: "
                "expected at most 1 together"
            )
        if reason := average_refusal(self.values, replies):
            raise ConfigError(f"key {reason}")
        self._check_attack()

    def _check_attack(self) -> None:
        from fedsuite.training.attack_plan import AttackPlan

        try:
            self.group(AttackPlan, num_clients=self.num_clients)
        except ValueError as error:
            raise ConfigError(f"key {error}") from None
        if self["attack"] == "label-flip" and self["dataset"] == "reddit":
            raise ConfigError(
                "key attack = 'label-flip': rows of data set reddit have no class to flip"
            )

    def _check_privacy(self) -> None:
        method, values = f"method {self['method']}", self.values
        if reason := noise_refusal(method, self.strategy.released(), values):
            raise ConfigError(f"key {reason}")

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

    def group(self, settings: type[Group], **given: object) -> Group:
        """Return the values of a class's keys as an object of the class.

        Parameters
        ----------
        settings
            Class that declares the keys.
        **given
            Keywords of the class that are no keys.
        """
        values = {key.argument: self.values[key.name] for key in settings.KEYS}
        return settings(**values, **given)

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
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an error inside the block if the file alone is at fault.

    Overrides stand on the command line, before the user's eyes.
    """
    try:
        yield
    except ConfigError as error:
        if str(path) in str(error):
            raise
        try:
            Experiment.from_values(read_file(path))
        except ConfigError as alone:
            if str(error).endswith(str(alone)):
                raise ConfigError(f"{path}: {error}") from None
        raise


def _foreign_keys(given: Mapping[str, object], overridden: Collection[str]) -> list[str]:
    """Return the keys of a file whose method, model or the like an override replaced.

    Raises
    ------
    ConfigError
        If another key does not apply, unless its value is the default.
    """
    foreign = []
    for name, value in given.items():
        if name not in known_keys():
            raise unknown_key(name)
        if is_default(name, value):
            continue
        owners = known_keys()[name].owners
        replaced = {owner.split()[0] for owner in owners} & set(overridden)
        if name in overridden or not replaced:
            raise ConfigError(
                f"key {name} = {value!r} does not apply here: it belongs to "
                f"{', '.join(owners)}"
            )
        foreign.append(name)
    return foreign


def _keys_that_apply(
    given: Mapping[str, object], own: Mapping[str, Value]
) -> Iterator[Sequence[Key]]:
    yield tuple(shared_keys().values())
    for selector in SELECTORS:
        yield keys_of(selector, _choice(selector, given, own))


def _choice(selector: str, given: Mapping[str, object], own: Mapping[str, Value]) -> str:
    """Return the checked value, as TOML text, of a key that selects others."""
    key = shared_keys()[selector]
    value = given.get(selector, AUTO)
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
    if name not in known_keys():
        raise unknown_key(name)
    if value == AUTO and name in ambiguous_keys():
        return name, AUTO
    return name, known_keys()[name].declarations[0].parse_text(value)
