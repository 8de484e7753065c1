"""Messages of filter decomposition.

The method is in :mod:`fedsuite.strategies.decomposition.filter_decomposition`. Both sides
import this module and nothing of each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from fedsuite.core.errors import RunError
from fedsuite.core.keys import Unless, Value, With
from fedsuite.core.settings import Declared, key
from fedsuite.messages.records import TRAIN, ConfigValue

FastSet = Literal["atoms", "atoms+head", "atoms+head+other"]
LocalCoefficients = Literal["discard", "freeze", "persist"]
PersonalHead = Literal["shared", "local"]
Average = Literal["factors", "products", "factors-regauged", "products-regauged"]

SLOW = "slow"
"""Record of the slow arrays, for a client without the current version."""

SLOW_VERSION = "slow-version"
"""Entry of the slow arrays' current version, which clients send back."""

SYNC = "sync"
"""Whether the slow arrays are uploaded in this round."""

_PERSONAL = (With("personal-atoms", True),)


class DecompositionKeys(Declared):
    """The keys of filter decomposition, which its layer takes as keywords."""

    coefficient_period: int = key(
        default=1,
        help="rounds from one upload of the coefficients to the next, 1 / beta; 1 is every "
        "round",
        minimum=1,
        told=TRAIN,
    )
    fast_set: FastSet = key(
        default="atoms+head",
        help="what travels in the rounds between",
        needs=(Unless("coefficient-period", 1),),
    )
    local_coefficients: LocalCoefficients = key(
        default="discard",
        help="what a client trains of the slow arrays in the rounds between: it drops it, "
        "does not train them, or goes on from its own until the next upload",
        needs=(Unless("coefficient-period", 1),),
        told=TRAIN,
    )
    freeze_atoms: bool = key(
        default=False,
        help="keep the atoms as they are at the start (control C2)",
        told=TRAIN,
    )
    personal_atoms: bool = key(
        default=False,
        help="each client also trains atoms of its own, which never leave it, and is "
        "scored with them",
        told=TRAIN,
    )
    personal_epochs: int = key(
        default=0,
        help="passes over the data to train the personal atoms; 0 is as many as for the "
        "model",
        minimum=0,
        needs=_PERSONAL,
        told=TRAIN,
    )
    personal_head: PersonalHead = key(
        default="shared",
        help="head of the personal model: the received one, or one of its own",
        needs=_PERSONAL,
        told=TRAIN,
    )
    refresh_epochs: int = key(
        default=0,
        help="also score personal models after so many passes against the newest "
        "coefficients, which are not kept; 0 does not",
        minimum=0,
        needs=_PERSONAL,
        told=TRAIN,
    )
    decomposition_average: Average = key(
        default="factors",
        help="average the factors, or the products of each client's factors (control C1); "
        "-regauged then writes either as balanced factors, a fair pair of runs",
    )
    measure_cross_terms: bool = key(
        default=False,
        help="record how large a part of each update comes from cross terms",
    )


KEYS = DecompositionKeys.KEYS

CLIENT_KEYS = ("coefficient-period", "personal-atoms", "freeze-atoms")
"""Keys that need wrapped clients, unless at their defaults."""


def clients_take_part(values: Mapping[str, Value]) -> bool:
    """Return whether an experiment's clients must be wrapped."""
    defaults = {declared.name: declared.default for declared in KEYS}
    return any(values.get(n, defaults[n]) != defaults[n] for n in CLIENT_KEYS)


def server_takes_part(values: Mapping[str, Value]) -> bool:
    """Return whether an experiment's strategy needs the layer."""
    return bool(
        clients_take_part(values)
        or values.get("decomposition-average", "factors") != "factors"
        or values.get("measure-cross-terms")
    )


@dataclass(frozen=True)
class Orders:
    """Settings of the clients in each exchange's config.

    Parameters
    ----------
    keys
        Those that clients are told.
    slow_version
        Current version of the slow arrays.
    sync
        Whether clients upload the slow arrays in this round.
    """

    keys: DecompositionKeys
    slow_version: int = 0
    sync: bool = True

    def config(self) -> dict[str, ConfigValue]:
        """Return the entries of a message's config."""
        return {**self.keys.told(TRAIN), SLOW_VERSION: self.slow_version, SYNC: self.sync}

    @classmethod
    def read(cls, config: Mapping[str, ConfigValue]) -> Self:
        """Return the orders in a message's config.

        Raises
        ------
        RunError
            If an order is missing, or of another type.
        """
        defaults = cls(DecompositionKeys()).config()
        for name, default in defaults.items():
            if type(config.get(name)) is not type(default):
                raise RunError(
                    f"the message has no {type(default).__name__} {name}: give the "
                    "strategy layer=FilterDecomposition(...)"
                )
        entries: dict[str, Any] = {name: config[name] for name in defaults}
        version, sync = entries.pop(SLOW_VERSION), entries.pop(SYNC)
        keys = {name.replace("-", "_"): value for name, value in entries.items()}
        try:
            return cls(DecompositionKeys(**keys), version, sync)
        except ValueError as error:
            raise RunError(f"the message says {error}") from error
