"""What server and clients of filter decomposition say to each other.

The method itself is in :mod:`fedsuite.strategies.decomposition.filter_decomposition`; both
sides import this module and nothing of each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, Self, get_args

from fedsuite.core.errors import RunError
from fedsuite.core.keys import Key, Unless, Value, With
from fedsuite.messages.records import ConfigValue

FastSet = Literal["atoms", "atoms+head", "atoms+head+other"]
LocalCoefficients = Literal["discard", "freeze", "persist"]
PersonalHead = Literal["shared", "local"]
Average = Literal["factors", "products", "factors-regauged", "products-regauged"]

SLOW = "slow"
"""Record with the slow arrays, for a client that does not hold their current version."""

SLOW_VERSION = "slow-version"
"""Which version of the slow arrays is current; clients that obey say it back."""

_PERSONAL = (With("personal-atoms", True),)

KEYS: tuple[Key, ...] = (
    Key(
        "coefficient-period",
        1,
        "rounds from one upload of the coefficients to the next, 1 / beta; 1 is every "
        "round",
        minimum=1,
    ),
    Key(
        "fast-set",
        "atoms+head",
        "what travels in the rounds between",
        choices=get_args(FastSet),
        needs=(Unless("coefficient-period", 1),),
    ),
    Key(
        "local-coefficients",
        "discard",
        "what a client trains of the slow arrays in the rounds between: it drops it, does "
        "not train them, or goes on from its own until the next upload",
        choices=get_args(LocalCoefficients),
        needs=(Unless("coefficient-period", 1),),
    ),
    Key("freeze-atoms", False, "keep the atoms as they are at the start (control C2)"),
    Key(
        "personal-atoms",
        False,
        "each client also trains atoms of its own, which never leave it, and is scored "
        "with them",
    ),
    Key(
        "personal-epochs",
        0,
        "passes over the data to train the personal atoms; 0 is as many as for the model",
        minimum=0,
        needs=_PERSONAL,
    ),
    Key(
        "personal-head",
        "shared",
        "head of the personal model: the received one, or one of its own",
        choices=get_args(PersonalHead),
        needs=_PERSONAL,
    ),
    Key(
        "refresh-epochs",
        0,
        "also score personal models after so many passes against the newest coefficients, "
        "which are not kept; 0 does not",
        minimum=0,
        needs=_PERSONAL,
    ),
    Key(
        "decomposition-average",
        "factors",
        "average the factors, or the products of each client's factors (control C1); "
        "-regauged then writes either as balanced factors, a fair pair of runs",
        choices=get_args(Average),
    ),
    Key(
        "measure-cross-terms",
        False,
        "record how large a part of each update comes from cross terms",
    ),
)


CLIENT_KEYS = ("coefficient-period", "personal-atoms", "freeze-atoms")
"""Keys that clients must obey too, unless they stand at their defaults."""


def clients_take_part(values: Mapping[str, Value]) -> bool:
    """Return whether an experiment's clients must be wrapped, as its strategy is."""
    defaults = {key.name: key.default for key in KEYS}
    return any(values.get(n, defaults[n]) != defaults[n] for n in CLIENT_KEYS)


def server_takes_part(values: Mapping[str, Value]) -> bool:
    """Return whether an experiment's strategy must be wrapped."""
    return bool(
        clients_take_part(values)
        or values.get("decomposition-average", "factors") != "factors"
        or values.get("measure-cross-terms")
    )


@dataclass(frozen=True)
class Orders:
    """What clients must know to answer; travels in the config of each exchange.

    Parameters
    ----------
    slow_version
        Current version of the slow arrays.
    sync
        Whether the slow arrays are uploaded in this round.
    local_coefficients, freeze_atoms, personal_atoms, personal_epochs, personal_head
        As the keys of the same names.
    refresh_epochs
        As the key of the same name.
    """

    slow_version: int = 0
    sync: bool = True
    local_coefficients: str = "discard"
    freeze_atoms: bool = False
    personal_atoms: bool = False
    personal_epochs: int = 0
    personal_head: str = "shared"
    refresh_epochs: int = 0

    def settings(self) -> dict[str, Value]:
        """Return the values of the keys among the orders."""
        names = {key.name for key in KEYS}
        named = {_entry(field.name): getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if name in names}

    def config(self) -> dict[str, ConfigValue]:
        """Return the entries of a message's config."""
        return {_entry(field.name): getattr(self, field.name) for field in fields(self)}

    @classmethod
    def read(cls, config: Mapping[str, ConfigValue]) -> Self:
        """Return the orders in a message's config.

        Raises
        ------
        RunError
            If one is missing, or of another type.
        """
        values = {}
        for field in fields(cls):
            value = config.get(_entry(field.name))
            if type(value) is not type(field.default):
                raise RunError(
                    f"the message has no {type(field.default).__name__} "
                    f"{_entry(field.name)}: wrap the strategy in FilterDecomposition"
                )
            values[field.name] = value
        return cls(**values)


def _entry(name: str) -> str:
    return name.replace("_", "-")
