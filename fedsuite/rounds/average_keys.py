"""Keys of the average that a method takes of its clients' models."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from typing_extensions import override

from fedsuite.core.keys import Unless, Value, With
from fedsuite.core.settings import Declared, key

Aggregator = Literal["mean", "median", "trimmed-mean", "geometric-median", "multi-krum"]
Mix = Literal["none", "nearest"]

AVERAGE_KEYS = ("aggregator", "liars", "mix", "max-client-weight")

_ROBUST = (Unless("aggregator", "mean"),)


class AverageKeys(Declared):
    """Keys of the average of the clients' models."""

    aggregator: Aggregator = key(
        default="mean",
        help="what is made of the clients' models: their mean, or a rule that a few liars "
        "cannot move far, for which the server holds all models of a round",
    )
    liars: float = key(
        default=0.2,
        help="clients of a round that may lie: a share below 0.5, rounded up, or a whole "
        "number; 0 trusts all",
        minimum=0.0,
        needs=_ROBUST,
    )
    mix: Mix = key(
        default="none",
        help="what is done to models first: nothing, or each becomes the mean of its "
        "nearest, which helps where clients' data differ",
        needs=_ROBUST,
    )
    max_client_weight: float | Literal["auto"] = key(
        default="auto",
        help="largest share of one client in the average, whatever made the weights; 1 is "
        "no limit; auto is half for the mean of four clients or more, and for other rules "
        "so much that the liars have less than half",
        above=0.0,
        maximum=1.0,
    )

    @property
    def share_ratio(self) -> float:
        """How many times the share of its size a client may have, whatever it claims."""
        return math.inf


def share_ratio_key(*needs: With | Unless) -> Any:
    """Return the key of :class:`ShareRatio`; some methods need others beside it."""
    return key(
        default=2.0,
        help="largest share of one client, whatever it claims beside its size, such as a "
        "loss: in shares that it has where claims count for nothing",
        minimum=1.0,
        words=("off",),
        needs=needs,
    )


class ShareRatio(AverageKeys):
    """What claims can do to a share, for methods that weigh clients by them."""

    PAPER: ClassVar[Mapping[str, Value]] = {
        "max-share-ratio": "off",
        "max-client-weight": 1.0,
    }

    max_share_ratio: float | str = share_ratio_key()

    @property
    @override
    def share_ratio(self) -> float:
        ratio = self.max_share_ratio
        return math.inf if isinstance(ratio, str) else ratio


def liars_of(liars: float, num_clients: int) -> int:
    """Return how many of a round's clients may lie."""
    if liars >= 1:
        return int(liars)
    # A share of 0.2 of ten is two, not three for want of a last bit.
    return math.ceil(liars * num_clients - 1e-9)


def fewest_clients(aggregator: str, liars: int) -> int:
    """Return the fewest clients that a rule works with."""
    if aggregator == "mean":
        return 1
    return 2 * liars + (3 if aggregator == "multi-krum" else 1)


def too_few(aggregator: str, liars: float, num_clients: int) -> str:
    """Return why a round has too few clients for a rule; empty if it has enough."""
    assumed = liars_of(liars, num_clients)
    needed = fewest_clients(aggregator, assumed)
    if num_clients >= needed:
        return ""
    return (
        f"aggregator = {aggregator!r} needs {needed} clients in a round where {assumed} "
        f"may lie, and there are {num_clients}"
    )
