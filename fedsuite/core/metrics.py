"""Fairness metrics over clients.

Two questions are kept apart:

- *Performance fairness* (:func:`fairness_report`): how evenly does one model serve
  all clients?
- *Collaborative fairness* (:func:`collaborative_fairness`): does a client that brings more
  get more out?

Accuracies in :func:`fairness_report` are **per cent**, because variances are published in
per cent squared. The rest of fedsuite holds fractions.

Clients say what they like. :func:`range_of` says what a metric can be, by its name, and
:func:`has_score` which numbers are a score.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsuite.core.tasks import ACCURACY, Score, score_of_column


def is_accuracy(name: str) -> bool:
    """Return whether a column of ``clients.jsonl`` holds accuracies, so fractions."""
    return name == "accuracy" or name.endswith("_accuracy")


Range = tuple[float, float]
"""The least and the largest value of a metric."""

_MEASURED_IN_TRAINING = ("trained_", "validation_", "whole_test_")


def range_of(name: str, phase: str, *, own: bool) -> Range:
    """Return what a client's metric can be; minus to plus infinity where nobody knows.

    Who names a metric as fedsuite's clients do declares what it is:

    - an accuracy, which is a fraction, of any app;
    - another declared score, of fedsuite's own clients alone;
    - a loss on rows that no step was taken on, a cross-entropy, so no less than 0; of
      fedsuite's own clients alone, for another app's loss may be anything;
    - a number of examples, no less than 0, of fedsuite's own clients.

    Parameters
    ----------
    name
        The metric, with dashes or as a column of ``clients.jsonl``.
    phase
        Type of the message: a loss in training may hold terms below 0.
    own
        Whether the clients are fedsuite's own.
    """
    column = name.replace("-", "_")
    if is_accuracy(column):
        return 0.0, 1.0
    if own and (score := score_of_column(column)):
        return score.least, score.largest
    measured = phase == "evaluate" or any(p in column for p in _MEASURED_IN_TRAINING)
    if own and measured and column.endswith(("loss", "examples")):
        return 0.0, math.inf
    return -math.inf, math.inf


def is_fraction(value: float) -> bool:
    """Return whether a number lies in 0 to 1; NaN does not."""
    return 0.0 <= value <= 1.0


def counted_in(name: str) -> str:
    """Return the column with the number of rows that a score is of; empty if none has."""
    if name == "received_training_loss":
        return "training_examples"
    for part in ("validation_", "whole_test_"):
        before, infix, _ = name.partition(part)
        if infix:
            return f"{before}{infix}examples"
    return "" if name.startswith("trained_") else "num_examples"


def has_score(row: Mapping[str, Any], name: str) -> bool:
    """Return whether a client's row has a number; a score or loss of no rows is none."""
    if row.get(name) is None:
        return False
    measured = "validation_" in name and not name.endswith("examples")
    measured = measured or is_accuracy(name) or score_of_column(name) is not None
    measured = measured or name == "loss" or name.endswith("_loss")
    return not measured or row.get(counted_in(name)) != 0


def of_clients(scored: int, asked: int) -> str:
    """Return ``5 of 8 clients``; empty where all that were asked have a score."""
    return f"{scored} of {asked} clients" if scored < asked else ""


@dataclass(frozen=True)
class FairnessReport:
    """Fairness of one model over ``num_clients`` clients; accuracies in per cent.

    Of another score the numbers are in the score's unit, worst clients are those with the
    highest number where less is better, and the last five are NaN where the score is no
    fraction.

    Parameters
    ----------
    num_clients
        Number of clients, m.
    mean, minimum, maximum
        Plain mean (each client counts once), worst and best accuracy.
    variance, std
        Population variance (divided by m) in per cent squared, and its root in per cent.
    worst_5, worst_10, best_5, best_10
        Mean accuracy of the ceil(p m) worst or best clients, p = 5 % or 10 %; never
        fewer than one client.
    coefficient_of_variation
        ``std / mean``. 0 is perfectly even; at most ``sqrt(m - 1)``.
    angle
        Angle between the accuracies and the vector of ones, in degrees: 0 is perfectly
        even; its tangent is the coefficient of variation.
    kl
        Kullback-Leibler divergence, in nats, of the normalised accuracies from the
        uniform distribution. 0 is perfectly even, ``log(m)`` is one client with all.
    jain
        Jain's index: 1 is perfectly even, 1/m is one client with all.
    gini
        Gini coefficient: 0 is perfectly even, ``(m - 1) / m`` is one client with all.

    Notes
    -----
    Equal accuracies, all zeros included, count as perfectly even: variance, angle, KL
    and Gini are then exactly 0 and Jain's index exactly 1.
    """

    num_clients: int
    mean: float
    variance: float
    std: float
    worst_5: float
    worst_10: float
    best_5: float
    best_10: float
    minimum: float
    maximum: float
    coefficient_of_variation: float
    angle: float
    kl: float
    jain: float
    gini: float

    def as_dict(self) -> dict[str, int | float]:
        """Return the metrics by name, in the order above."""
        return asdict(self)


def same_tails(num_clients: int) -> bool:
    """Return whether the worst 5 % of so many clients are the worst 10 %, as one or two."""
    return num_clients > 0 and _tail(5, num_clients) == _tail(10, num_clients)


def tail_words(end: str, percent: int, num_clients: int) -> str:
    """Return what a mean over the worst or best clients is: ``worst 10 %``, or one client.

    Parameters
    ----------
    end
        ``worst`` or ``best``.
    percent
        How many of the clients it is over, rounded up.
    num_clients
        How many clients have a score; 0 where that is not known.
    """
    is_one = _tail(percent, num_clients) == 1
    return f"{end} client" if is_one else f"{end} {percent} %"


def fairness_report(accuracies: ArrayLike, score: Score = ACCURACY) -> FairnessReport:
    """Return the fairness metrics of one accuracy, or other score, per client.

    Parameters
    ----------
    accuracies
        Vector of shape (m,), one accuracy per client, in per cent (0 to 100).
    score
        What it is where it is no accuracy; the vector is in the unit that is shown.

    Raises
    ------
    ValueError
        If the vector is empty, not one-dimensional, or holds a value outside 0 to 100.
    """
    ascending = np.sort(_score_vector(accuracies, score))
    m = len(ascending)
    mean = _mean(ascending)
    above_lowest = ascending - ascending[0]
    # From the worst to the best.
    ranked = ascending if score.higher else ascending[::-1]
    is_fraction = (score.least, score.largest) == (0.0, 1.0)
    variance = float(np.mean((above_lowest - above_lowest.mean()) ** 2))
    std = float(np.sqrt(variance))
    variation = std / mean if mean > 0 else 0.0
    ranks = 2 * np.arange(1, m + 1) - m - 1
    report = FairnessReport(
        num_clients=m,
        mean=mean,
        variance=variance,
        std=std,
        worst_5=_mean(ranked[: _tail(5, m)]),
        worst_10=_mean(ranked[: _tail(10, m)]),
        best_5=_mean(ranked[-_tail(5, m) :]),
        best_10=_mean(ranked[-_tail(10, m) :]),
        minimum=float(ranked[0]),
        maximum=float(ranked[-1]),
        coefficient_of_variation=variation,
        angle=float(np.degrees(np.arctan2(std, mean))),
        kl=_kl_to_uniform(ascending, mean),
        jain=1 / (1 + variation**2),
        gini=float(ranks @ above_lowest) / (m * m * mean) if mean > 0 else 0.0,
    )
    if is_fraction:
        return report
    nan = math.nan
    return replace(
        report, coefficient_of_variation=nan, angle=nan, kl=nan, jain=nan, gini=nan
    )


def collaborative_fairness(
    standalone: Sequence[float] | NDArray[np.floating],
    federated: Sequence[float] | NDArray[np.floating],
) -> float | None:
    """Return 100 times the Pearson correlation of two accuracies per client.

    Parameters
    ----------
    standalone
        Accuracy that each client reaches alone, shape (m,), in any unit.
    federated
        Accuracy that the same clients, in the same order, get from the federation.

    Returns
    -------
    float or None
        Between -100 (the largest contributor gets least) and 100 (benefit follows
        contribution). None where the correlation is undefined: with fewer than two clients,
        or a vector of equal values.

    Raises
    ------
    ValueError
        If the lengths differ, or a vector is empty or not finite.
    """
    x, y = _finite_vector(standalone), _finite_vector(federated)
    if len(x) != len(y):
        raise ValueError(
            f"standalone and federated accuracies of {len(x)} and {len(y)} clients: "
            "expected the same clients in the same order"
        )
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    x, y = x - x.mean(), y - y.mean()
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(100 * np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def interval_over_clients(
    standalone: Sequence[float], federated: Sequence[float]
) -> tuple[float, float] | None:
    """Return Fisher's 95 % interval of CF for other clients, drawn as these clients were.

    It holds 0 where the clients' accuracies may be unrelated. None where the correlation is
    undefined, or of fewer than four clients. Clients whose sizes are fixed by design are no
    random draw.
    """
    from scipy.stats import pearsonr

    if len(standalone) < 4 or collaborative_fairness(standalone, federated) is None:
        return None
    with np.errstate(divide="ignore"):  # of a perfect correlation
        low, high = pearsonr(standalone, federated).confidence_interval(0.95)
    return 100 * float(low), 100 * float(high)


def participation_incentive(
    standalone: Sequence[float], federated: Sequence[float]
) -> float:
    """Return the share of clients that are no worse off than alone.

    Parameters
    ----------
    standalone, federated
        Accuracies by client, in any unit.
    """
    x, y = _finite_vector(standalone), _finite_vector(federated)
    if len(x) != len(y):
        raise ValueError(f"accuracies of {len(x)} and {len(y)} clients: expected the same")
    return float(np.mean(y >= x))


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean, exact for equal values."""
    return float(values[0] + (values - values[0]).mean())


def _tail(percent: int, num_clients: int) -> int:
    """Return ceil(percent of num_clients), in integers: 0.05 * 140 is 7.000000000000001."""
    return -(-percent * num_clients // 100)


def _kl_to_uniform(accuracies: NDArray[np.float64], mean: float) -> float:
    ratios = accuracies[accuracies > 0] / mean if mean > 0 else np.ones(1)
    # Rounding can leave a tiny negative sum; the divergence never is.
    return max(0.0, float(np.sum(ratios * np.log(ratios))) / len(accuracies))


def _finite_vector(values: ArrayLike) -> NDArray[np.float64]:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(
            f"accuracies of shape {vector.shape}: expected one number per client"
        )
    if not np.isfinite(vector).all():
        client = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise ValueError(f"accuracy {vector[client]} at position {client} is not finite")
    return vector


def _score_vector(values: ArrayLike, score: Score) -> NDArray[np.float64]:
    vector = _finite_vector(values)
    least, largest = score.factor * score.least, score.factor * score.largest
    outside = np.flatnonzero((vector < least) | (vector > largest))
    if outside.size:
        client = int(outside[0])
        unit = " per cent" if score.factor > 1 else ""
        raise ValueError(
            f"{score.title} {vector[client]:g} at position {client} is outside "
            f"{least:g} to {largest:g}{unit}"
        )
    return vector
