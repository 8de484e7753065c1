r"""What an attacker learns from models, in numbers.

*Canaries.* G. Andrew, P. Kairouz, S. Oh, A. Oprea, H. B. McMahan, V. M. Suriyakumar,
"One-shot Empirical Privacy Estimation for Federated Learning", ICLR 2024, arXiv:2302.03098.
Clients whose updates have random directions take part; the cosine of a direction with what
was released is N(0, 1/d) where the direction was never used, and lies higher where it was.
Two Gaussians at a distance of mu of their common deviation are what one Gaussian mechanism
of multiplier 1/mu makes of two neighbours: epsilon is the accountant's own function of mu.

The paper lets the canaries have a deviation of their own. Here both have that of directions
never used, which is the canaries' own where all take part in all rounds: of 100 canaries an
error of 7 % in it moves epsilon from 4.4 to more than 5.8 at delta 1e-5, in either
direction.

*Membership.* A row was trained on, or held out. Score of a row: its class's log odds. The
loss threshold puts one bar for all rows. LiRA (N. Carlini, S. Chien, M. Nasr, S. Song, A.
Terzis, F. Tramèr, "Membership Inference Attacks From First Principles", IEEE S&P 2022,
arXiv:2112.03570) asks of each row how it scores in runs with and without it, its equation
(4), with one deviation for all rows, as the paper does with few runs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.rng import numpy_stream
from fedsuite.core.vectors import Vector
from fedsuite.results.analysis_files import Cell, Table
from fedsuite.rounds.epsilon import gaussian_epsilon

Mask = NDArray[np.bool_]

FALSE_POSITIVES = (0.01, 0.001)
"""Shares of the rows held out that an attack may take for trained on."""

COLUMNS = ("by", "what", "measured", "low", "high", "beside")

NOTE = (
    "Low and high are the ends of 95 % intervals: of epsilon about the draw of the "
    "directions in this one run, of the attacks about the draw of the rows. Beside stands "
    "the accountant's epsilon, or what guessing gives."
)

_RESAMPLES = 200
_DEVIATIONS = 1.959964
"""Half the width of 95 % of a normal distribution."""


@dataclass(frozen=True)
class Interval:
    """A number, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Cosines:
    """Cosines of directions with a release.

    Parameters
    ----------
    used, unused
        Of the canaries that took part, and of directions that nobody sent: each at least 2.
    dimension
        Number of parameters d, where ``unused`` are draws of N(0, 1/d); 0 where their own
        mean and deviation stand for the null, as for the largest of several cosines.
    """

    used: Vector
    unused: Vector
    dimension: int = 0

    @property
    def null(self) -> tuple[float, float]:
        """Mean and deviation of a direction that was never used."""
        if self.dimension:
            return 0.0, self.dimension**-0.5
        return float(self.unused.mean()), float(self.unused.std(ddof=1))

    def mu(self) -> Interval:
        """Return the distance of the two means, in deviations of the null.

        The interval is about the draw of the directions: normal, of the standard errors of
        the means.
        """
        mean, deviation = self.null
        distance = (float(self.used.mean()) - mean) / deviation
        squared = float(self.used.var(ddof=1)) / len(self.used)
        if not self.dimension:
            squared += deviation**2 / len(self.unused)
        error = _DEVIATIONS * math.sqrt(squared) / deviation
        return Interval(distance, distance - error, distance + error)

    def epsilon(self, delta: float) -> Interval:
        """Return the epsilon at delta of the two Gaussians; 0 where they do not differ."""
        mu = self.mu()
        ends = (gaussian_epsilon(max(m, 1e-9), delta) for m in (mu.value, mu.low, mu.high))
        return Interval(*ends)


@dataclass(frozen=True)
class Curve:
    """An attack's receiver operating characteristic.

    Parameters
    ----------
    false_positives, true_positives
        Shares of the rows held out, and of those trained on, above each bar: rising from 0
        to 1.
    """

    false_positives: Vector
    true_positives: Vector

    @property
    def area(self) -> float:
        """Area below the curve: 0.5 is guessing."""
        return float(np.trapezoid(self.true_positives, self.false_positives))

    def at(self, share: float) -> float:
        """Return the true positives at no more than a share of false ones."""
        place = np.searchsorted(self.false_positives, share * (1 + 1e-9), side="right") - 1
        return float(self.true_positives[place])


def roc(scores: Vector, members: Mask, weights: Vector | None = None) -> Curve:
    """Return the curve of the bar that goes down over scores.

    Rows of one score are taken together.

    Parameters
    ----------
    scores
        ``[rows]``, finite; higher for a row that looks trained on.
    members
        Whether it was, some and not all.
    weights
        How often each row counts; None is once.
    """
    order = np.argsort(-scores, kind="stable")
    counts = np.ones(len(scores)) if weights is None else weights
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    shares = []
    for of in (~members, members):
        total = np.cumsum((counts * of)[order])[ends]
        shares.append(np.append(0.0, total / total[-1]))
    return Curve(*shares)


@dataclass(frozen=True)
class Scores:
    """Scores of rows in several runs, each of which trained on another half of them.

    Parameters
    ----------
    scores
        ``[runs, rows]``; NaN where a run has none of a row.
    members
        ``[runs, rows]``: whether the run trained on the row.
    """

    scores: Vector
    members: Mask

    def threshold(self) -> "Attack":
        """Return the attack by one bar for all rows."""
        return Attack.of(self.scores, self.members)

    def likelihood_ratio(self) -> "Attack":
        """Return LiRA, with each run in turn attacked by means of the others."""
        return Attack.of(self.ratios(), self.members)

    def ratios(self) -> Vector:
        """Return LiRA's log likelihood ratios ``[runs, rows]``.

        NaN stands for rows that all other runs trained on, or none.
        """
        ratios = np.full(self.scores.shape, np.nan)
        known = np.isfinite(self.scores)
        for run in range(len(self.scores)):
            others = np.arange(len(self.scores)) != run
            sides = []
            for side in (self.members, ~self.members):
                held = known[others] & side[others]
                sides.append(_gaussian(self.scores[others], held, self.scores[run]))
            ratios[run] = sides[0] - sides[1]
        return ratios


def _gaussian(scores: Vector, held: Mask, at: Vector) -> Vector:
    """Return the log density of each row's Gaussian; NaN where no run tells its mean."""
    counts = held.sum(axis=0)
    values = np.where(held, scores, 0.0)
    means = np.where(counts > 0, values.sum(axis=0) / np.maximum(counts, 1), np.nan)
    squares = np.where(held, (scores - means) ** 2, 0.0).sum()
    freedom = float((counts - 1)[counts > 1].sum())
    deviation = math.sqrt(max(squares / freedom, 1e-12)) if freedom else 1.0
    log_density: Vector = -(((at - means) / deviation) ** 2) / 2 - math.log(deviation)
    return log_density


@dataclass(frozen=True)
class Attack:
    """How well an attack tells rows that were trained on from rows that were not.

    Parameters
    ----------
    curve
        Over the rows of all attacked runs.
    area
        Area below it, with an interval.
    true_positives
        At each of :data:`FALSE_POSITIVES`, with intervals: 95 % of samples of as many rows,
        each row with its scores in all runs. They are about other rows, not about other
        partitions, networks or seeds.
    """

    curve: Curve
    area: Interval
    true_positives: Sequence[Interval] = field(default_factory=tuple)

    @classmethod
    def of(cls, scores: Vector, members: Mask) -> "Attack":
        """Return the attack by scores ``[runs, rows]``; NaN is left out."""
        known = np.isfinite(scores)
        rows = np.nonzero(known)[1]
        flat, inside = scores[known], members[known]
        curve = roc(flat, inside)
        stream = numpy_stream(0, "rows-of-an-attack")
        size = scores.shape[1]
        drawn = []
        for _ in range(_RESAMPLES):
            counts = np.bincount(stream.integers(size, size=size), minlength=size)
            one = roc(flat, inside, counts[rows].astype(np.float64))
            drawn.append([one.area, *map(one.at, FALSE_POSITIVES)])
        low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
        values = [curve.area, *map(curve.at, FALSE_POSITIVES)]
        area, *shares = map(Interval, values, low.tolist(), high.tolist())
        return cls(curve, area, tuple(shares))


@dataclass(frozen=True)
class NoiseAudit:
    """What canaries show of a run with noise at the server.

    Parameters
    ----------
    final, largest
        Cosines with the change of the final model, and the largest ones with a round's.
    rounds, clients
        Rounds of the run, and clients beside the canaries.
    delta, accounted
        Delta, and the epsilon that the run's own accountant gives for it.
    """

    final: Cosines
    largest: Cosines
    rounds: int
    clients: int
    delta: float
    accounted: float

    @property
    def releases(self) -> dict[str, Cosines]:
        """The releases that are looked at, by name."""
        several = {f"largest of {self.rounds} rounds": self.largest}
        return {"final model": self.final, **(several if self.rounds > 1 else {})}

    def sentence(self) -> str:
        """Return in words how the two epsilons lie."""
        name, epsilon = max(
            ((name, c.epsilon(self.delta)) for name, c in self.releases.items()),
            key=lambda pair: pair[1].value,
        )
        place, end = "contains", "."
        if epsilon.low > self.accounted:
            place, end = "lies above", ": the noise is less than the accountant was told."
        elif epsilon.high < self.accounted:
            place = "lies below"
        return (
            f"Canaries show an epsilon of {epsilon} at delta {self.delta:g} ({name}). The "
            f"interval {place} the accountant's {self.accounted:.4g}{end}"
        )


@dataclass(frozen=True)
class Findings:
    """An experiment's audit; a part that was not made is empty.

    Parameters
    ----------
    noise
        What canaries show.
    attacks
        Membership tests by what was attacked and how.
    left_out
        What was not made, and why, a sentence each.
    """

    noise: NoiseAudit | None
    attacks: Mapping[tuple[str, str], Attack]
    left_out: Sequence[str] = ()

    def sentences(self) -> tuple[str, ...]:
        """Return the findings in words, a sentence or two each."""
        noise = (self.noise.sentence(),) if self.noise is not None else ()
        return (*noise, *self._of_attacks(), *self.left_out)

    def _of_attacks(self) -> Iterator[str]:
        if self.attacks:
            strongest = max(self.attacks, key=lambda name: self.attacks[name].area.value)
            attack, (model, how) = self.attacks[strongest], strongest
            yield (
                f"Rows that were trained on are told from others with an AUC of "
                f"{attack.area} ({model}, {how}; guessing is 0.5)."
            )

    def noise_table(self) -> Table:
        """Return what canaries show; without rows where there was no run with canaries."""
        rows: list[tuple[Cell, ...]] = []
        if self.noise is not None:
            noise = self.noise
            for name, cosines in noise.releases.items():
                epsilon = cosines.epsilon(noise.delta)
                what = f"epsilon at delta {noise.delta:g}"
                rows.append((f"canaries, {name}", what, *_ends(epsilon), noise.accounted))
            scaled = noise.final.unused * math.sqrt(noise.final.dimension)
            spread = float(scaled.std(ddof=1))
            null = "directions never used"
            rows.append((null, "mean x sqrt(d)", float(scaled.mean()), None, None, 0.0))
            rows.append((null, "deviation x sqrt(d)", spread, None, None, 1.0))
        return Table(COLUMNS, rows, NOTE)

    def attack_table(self) -> Table:
        """Return how well rows that were trained on are told."""
        rows: list[tuple[Cell, ...]] = []
        for (model, how), attack in self.attacks.items():
            name = f"{model}, {how}"
            rows.append((name, "AUC", *_ends(attack.area), 0.5))
            for share, positives in zip(
                FALSE_POSITIVES, attack.true_positives, strict=True
            ):
                what = f"true positives at {100 * share:g} % false"
                rows.append((name, what, *_ends(positives), share))
        return Table(COLUMNS, rows, NOTE)

    def table(self) -> Table:
        """Return all numbers, each beside the one that it is compared with."""
        rows = [*self.noise_table().rows, *self.attack_table().rows]
        return Table(COLUMNS, rows, NOTE)


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high
