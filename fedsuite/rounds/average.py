"""The average of clients' models: one primitive for every method that takes one.

The mean takes the models one at a time. A cap on one client's weight needs all weights
before the first model, and a robust rule all models: these hold the models of the round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsuite.core.keys import AUTO
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import ARRAYS, Arrays
from fedsuite.rounds.aggregation import WeightedMean, cast_like, weighted_mean
from fedsuite.rounds.average_keys import AverageKeys, fewest_clients, liars_of, too_few
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.quorum import QuorumMissed
from fedsuite.rounds.robust_rules import (
    geometric_median,
    krum_selection,
    mean_of,
    nearest_mixture,
    trimmed_mean,
    weighted_median,
)
from fedsuite.rounds.simplex import capped_shares
from fedsuite.rounds.updates import flatten, parameter_names, unflatten
from fedsuite.rounds.validation import ClientReply

_NOTHING_TO_TRIM = ("trimmed-mean", "multi-krum")


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

    def __init__(self, keys: AverageKeys) -> None:
        self.aggregator = keys.aggregator
        self._share = keys.liars
        self._mix = keys.mix
        self._cap = keys.max_client_weight

    @property
    def is_robust(self) -> bool:
        """Whether the rule is another than the mean."""
        return self.aggregator != "mean"

    @property
    def streams(self) -> bool:
        """Whether models are taken one at a time, each with its own weight."""
        return not self.is_robust and self._largest(1) >= 1

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

    def capped(self, weights: Vector) -> Vector:
        """Return weights of which none is above the largest share; as they are without.

        Parameters
        ----------
        weights
            One >= 0 a client.
        """
        largest = self._largest(int(np.count_nonzero(weights)))
        if largest >= 1 or not weights.any():
            return weights
        return capped_shares(weights, largest)

    def begin(self) -> "RunningAverage":
        """Return an average that takes models one at a time."""
        return RunningAverage(self)

    def of_all(self, pairs: Sequence[tuple[ClientReply, float]]) -> Averaged:
        """Return the average of replies that are all there, each with its weight."""
        average = Averaged(weights={reply.client_id: 0.0 for reply, _ in pairs})
        used = [(reply, weight) for reply, weight in pairs if weight > 0]
        if not used:
            return average
        self.check(len(used))
        replies = [reply for reply, _ in used]
        models = [reply.arrays[ARRAYS] for reply in replies]
        weights = self.capped(np.array([weight for _, weight in used]))
        liars = liars_of(self._share, len(used)) if self.is_robust else 0
        if self._is_mean(liars):
            average.arrays = weighted_mean(models, weights.tolist())
        else:
            average.arrays, weights = self._robust(models, weights, liars)
        counted = zip(replies, weights.tolist(), strict=True)
        average.weights |= {reply.client_id: weight for reply, weight in counted}
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
        made: Arrays = {
            name: _median_like([model[name] for model in models], weights)
            for name in first
            if name not in names
        }
        if self._mix == "nearest":
            points = nearest_mixture(points, weights, liars)
        centre, weights = self._centre(points, weights, liars)
        parts = unflatten(centre, first)
        made |= {name: cast_like(parts[name], first[name].dtype) for name in names}
        return {name: made[name] for name in first}, weights

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
        """Return the largest share that a client may have."""
        if self._cap != AUTO:
            return float(self._cap)
        if not self.is_robust:
            return 1.0
        return 1.0 / (2 * liars_of(self._share, num_clients) + 1)


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
        self._pairs: list[tuple[ClientReply, float]] = []

    def add(self, reply: ClientReply, weight: float) -> None:
        """Take in one client's model, with a weight >= 0."""
        if not self._averaging.streams:
            self._pairs.append((reply, weight))
            return
        self._weights[reply.client_id] = weight
        self._mean.add(reply.arrays[ARRAYS], weight)

    def result(self) -> Averaged:
        """Return the average; raise QuorumMissed of too few models for the rule."""
        if not self._averaging.streams:
            return self._averaging.of_all(self._pairs)
        return Averaged(self._mean.result(), self._weights)


def _median_like(arrays: Sequence[np.ndarray], weights: Vector) -> np.ndarray:
    """Return the median of each number of some arrays, in their dtype."""
    first = arrays[0]
    rows = np.stack([np.asarray(a, dtype=np.float64).reshape(-1) for a in arrays])
    return cast_like(weighted_median(rows, weights).reshape(first.shape), first.dtype)
