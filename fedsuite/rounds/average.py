"""The average of clients' models: one primitive for every method that takes one.

No client counts for more than a share of the average, whatever made its weight. The mean
takes the models one at a time, and can take back a part of the heaviest. Limits on what
claims do to shares need all weights before the first model, and a robust rule all models:
these hold the models of the round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsuite.core.keys import AUTO
from fedsuite.core.logs import ServerLogger
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.rounds.aggregation import WeightedMean, cast_like, weighted_mean
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.rounds.robust_rules import (
    fewest_clients,
    geometric_median,
    krum_selection,
    liars_of,
    mean_of,
    nearest_mixture,
    too_few,
    trimmed_mean,
    weighted_median,
)
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.updates import flatten, parameter_names, unflatten
from fedsuite.rounds.validation import ClientReply

_NOTHING_TO_TRIM = ("trimmed-mean", "multi-krum")

HALF = 0.5
"""Largest share of one client, of at least so many:"""

FEWEST_OF_HALF = 4

_ROUNDING = 1e-9
"""Share by which a weight may be above its limit."""

logger = ServerLogger(__name__)


@dataclass
class Averaged:
    """What became of a round's models.

    Parameters
    ----------
    arrays
        The average in the models' dtypes; None where no client has weight.
    weights
        Client to its weight in the average, of any sum.
    """

    arrays: Arrays | None = None
    weights: dict[int, float] = field(default_factory=dict)


class Averaging:
    """The rule that a strategy's keys name.

    Parameters
    ----------
    keys
        The keys, which the rules of :mod:`fedsuite.rounds.rules` have let pass.
    """

    def __init__(self, keys: RoundSettings) -> None:
        self.aggregator = keys.aggregator
        self._share = keys.liars
        self._mix = keys.mix
        self._cap = keys.max_client_weight
        self._ratio = keys.share_ratio
        self._told = False

    @property
    def is_robust(self) -> bool:
        """Whether the rule is another than the mean."""
        return self.aggregator != "mean"

    @property
    def streams(self) -> bool:
        """Whether models are taken one at a time, each with its own weight."""
        return not self.is_robust and self._cap in (AUTO, 1.0) and self._ratio == math.inf

    def check(self, num_clients: int) -> None:
        """Raise QuorumMissed if a rule cannot work with so many replies; none is for all.

        A method that remembers something calls this before it changes that.
        """
        if not self.is_robust or not num_clients:
            return
        if reason := too_few(self.aggregator, self._share, num_clients):
            needed = fewest_clients(self.aggregator, liars_of(self._share, num_clients))
            least = f"the {needed} that the aggregator needs"
            raise QuorumMissed(Kind.TOO_FEW, num_clients, reason, least)

    def shares(self, weights: Vector, neutral: Vector | None = None) -> Vector:
        """Return weights within the limits of one client's share; as they are if they are.

        Parameters
        ----------
        weights
            One >= 0 a client.
        neutral
            The weights, above 0, where nobody claims anything but its size; None for
            weights that rest on no other claim.
        """
        if not weights.any():
            return weights
        usual = weights if neutral is None else neutral
        largest = self._largest(int(np.count_nonzero(usual)))
        limits: Vector = np.full(len(weights), largest)
        if neutral is not None:
            limits = np.minimum(limits, self._ratio * capped_shares(usual, largest))
        shares: Vector = weights / weights.sum()
        if (shares <= limits * (1 + _ROUNDING)).all():
            return weights
        self._tell_cut()
        # What may go to nobody who has weight goes to the others.
        little = _ROUNDING * usual / usual.sum()
        return capped_shares(shares + little, limits)

    def _tell_cut(self) -> None:
        if self._told:
            return
        self._told = True
        ratio = f", max-share-ratio = {self._ratio:g}" if self._ratio < math.inf else ""
        logger.warning(
            "a client's share of the average is cut (max-client-weight = %s%s): later "
            "ones are too, without a word",
            self._cap,
            ratio,
        )

    def begin(self) -> "RunningAverage":
        """Return an average that takes models one at a time."""
        return RunningAverage(self)

    def of_all(self, counted: "Sequence[Counted]") -> Averaged:
        """Return the average of replies that are all there."""
        average = Averaged(weights={one.reply.client_id: 0.0 for one in counted})
        weights = np.array([one.weight for one in counted])
        neutral = np.array([one.neutral for one in counted])
        weights = self.shares(weights, None if self._ratio == math.inf else neutral)
        replies = [one.reply for one, w in zip(counted, weights, strict=True) if w > 0]
        weights = weights[weights > 0]
        if not replies:
            return average
        self.check(len(replies))
        models = [reply.arrays[ARRAYS] for reply in replies]
        liars = liars_of(self._share, len(replies)) if self.is_robust else 0
        if self._is_mean(liars):
            average.arrays = weighted_mean(models, weights.tolist())
        else:
            average.arrays, weights = self._robust(models, weights, liars)
        shares = zip(replies, weights.tolist(), strict=True)
        average.weights |= {reply.client_id: weight for reply, weight in shares}
        return average

    def _is_mean(self, liars: int) -> bool:
        """Return whether the rule is the mean, because it trusts all."""
        trusting = self.aggregator in _NOTHING_TO_TRIM or self._mix == "nearest"
        return not self.is_robust or (liars == 0 and trusting)

    def _robust(
        self, models: Sequence[Arrays], weights: Vector, liars: int
    ) -> tuple[Arrays, Vector]:
        """Return the average, and the weights with which clients are in it."""
        first = models[0]
        names = parameter_names(first)
        points = np.stack([flatten(model, names) for model in models])
        # Statistics are no directions: they get the median of each coordinate.
        averaged: Arrays = {
            name: _median_like([model[name] for model in models], weights)
            for name in first
            if name not in names
        }
        if self._mix == "nearest":
            points = nearest_mixture(points, weights, liars)
        centre, weights = self._centre(points, weights, liars)
        parts = unflatten(centre, first)
        averaged |= {name: cast_like(parts[name], first[name].dtype) for name in names}
        return {name: averaged[name] for name in first}, weights

    def _centre(self, points: Vector, weights: Vector, liars: int) -> tuple[Vector, Vector]:
        if self.aggregator == "multi-krum":
            kept = krum_selection(points, liars)
            selected = np.zeros(len(weights))
            selected[kept] = weights[kept]
            return mean_of(points[kept], weights[kept]), selected
        if self.aggregator == "trimmed-mean":
            return trimmed_mean(points, weights, liars), weights
        if self.aggregator == "median":
            return weighted_median(points, weights), weights
        return geometric_median(points, weights), weights

    def _largest(self, num_clients: int) -> float:
        """Return the largest share that one of so many clients may have."""
        if self._cap != AUTO:
            return float(self._cap)
        if not self.is_robust:
            return HALF if num_clients >= FEWEST_OF_HALF else 1.0
        return 1.0 / (2 * liars_of(self._share, num_clients) + 1)


@dataclass(frozen=True)
class Counted:
    """A reply as it counts in an average.

    Parameters
    ----------
    reply
        The reply.
    weight
        Its weight >= 0.
    neutral
        Its weight where no client claims anything but its size.
    """

    reply: ClientReply
    weight: float
    neutral: float


class RunningAverage:
    """An average that is given the models one at a time, and holds a sum of them.

    Where the rule needs all models, or all weights, before the first, it holds the models.

    Parameters
    ----------
    averaging
        The rule.
    """

    def __init__(self, averaging: Averaging) -> None:
        self._averaging = averaging
        self._mean = WeightedMean()
        self._weights: dict[int, float] = {}
        self._counted: list[Counted] = []
        self._heaviest: Counted | None = None

    def add(self, reply: ClientReply, weight: float, neutral: float) -> None:
        """Take in one client's model, with a weight >= 0; see :class:`Counted`."""
        counted = Counted(reply, weight, neutral)
        if not self._averaging.streams:
            self._counted.append(counted)
            return
        self._weights[reply.client_id] = weight
        self._mean.add(reply.arrays[ARRAYS], weight)
        if self._heaviest is None or weight > self._heaviest.weight:
            self._heaviest = counted

    def result(self) -> Averaged:
        """Return the average; raise QuorumMissed of too few models for the rule."""
        if not self._averaging.streams:
            return self._averaging.of_all(self._counted)
        self._cut_heaviest()
        return Averaged(self._mean.result(), self._weights)

    def _cut_heaviest(self) -> None:
        """Leave the heaviest client its limit: no other can be above half."""
        if self._heaviest is None:
            return
        client_id = self._heaviest.reply.client_id
        shares = self._averaging.shares(np.array(list(self._weights.values())))
        place = list(self._weights).index(client_id)
        if shares[place] == self._weights[client_id]:
            return
        others = self._mean.total_weight - self._heaviest.weight
        largest = float(shares[place])
        self._weights[client_id] = others * largest / (1.0 - largest)
        excess = self._heaviest.weight - self._weights[client_id]
        self._mean.take_back(self._heaviest.reply.arrays[ARRAYS], excess)


def capped_shares(weights: Vector, largest: float | Vector) -> Vector:
    """Return weights as shares of 1 of which none is above its ``largest``.

    What is cut off goes to the others in proportion, so that the order stays. Where all
    limits of weights above 0 come to less than 1, these get shares in proportion to their
    limits.

    Parameters
    ----------
    weights
        At least one, >= 0, not all 0.
    largest
        Above 0: one limit for all, or one for each. 1 or more is no limit.
    """
    shares: Vector = weights / weights.sum()
    limits = np.broadcast_to(np.asarray(largest, np.float64), shares.shape)
    positive = shares > 0
    whole = limits[positive].sum()
    if whole <= 1:
        return np.where(positive, limits / whole, 0.0)
    fixed = np.zeros(len(shares), dtype=bool)
    scaled = shares
    while (over := (scaled > limits) & ~fixed).any():
        fixed |= over
        rest = 1.0 - limits[fixed].sum()
        scaled = np.where(fixed, limits, shares * (rest / shares[~fixed].sum()))
    return scaled


def _median_like(arrays: Sequence[np.ndarray], weights: Vector) -> np.ndarray:
    """Return the median of each number of some arrays, in their dtype."""
    first = arrays[0]
    rows = np.stack([np.asarray(a, dtype=np.float64).reshape(-1) for a in arrays])
    return cast_like(weighted_median(rows, weights).reshape(first.shape), first.dtype)
