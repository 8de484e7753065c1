"""Scores of survival models: Harrell's concordance and the integrated Brier score.

F. Harrell, R. Califf, D. Pryor, K. Lee, R. Rosati, "Evaluating the Yield of Medical Tests",
JAMA 247(18):2543-2546, 1982. Two rows are comparable where it is known which event comes
first: the earlier time is an event, or the times are equal and only one is an event, which
then comes first. Equal risks count as half right.

E. Graf, C. Schmoor, W. Sauerbrei, M. Schumacher, "Assessment and comparison of prognostic
classification schemes for survival data", Statistics in Medicine 18:2529-2545, 1999. The
squared error of the predicted survival at a time, weighted by the inverse probability of
being uncensored (Kaplan and Meier's estimate on the rows that are scored), and its mean
over the time from 0 to the last event among these rows.

N. Breslow, discussion of D. Cox, "Regression Models and Life-Tables", JRSS B 34:216-217,
1972: the cumulative hazard that belongs to a Cox model's risks.
"""

from dataclasses import dataclass

import numpy as np

from fedsuite.core.vectors import Vector

_AT_ONCE = 1 << 22
"""Most pairs of rows that are compared at once."""


@dataclass(frozen=True)
class Steps:
    """A function of time that is constant between jumps.

    Parameters
    ----------
    times
        Times of the jumps ``[jumps]``, ascending.
    values
        Value from each jump on, ``[jumps]`` or ``[rows, jumps]`` for a function per row.
    before
        Value before the first jump.
    """

    times: Vector
    values: Vector
    before: float

    def at(self, times: Vector, *, left: bool = False) -> Vector:
        """Return the values at times, or just before them."""
        first = np.full((*self.values.shape[:-1], 1), self.before)
        known = np.concatenate([first, self.values], axis=-1)
        side = np.searchsorted(self.times, times, side="left" if left else "right")
        return np.asarray(known[..., side])


def concordance(times: Vector, events: Vector, risks: Vector) -> float:
    """Return Harrell's concordance; NaN where no two rows are comparable.

    Parameters
    ----------
    times, events
        Time of each row ``[rows]``, and 1 where the event was seen, 0 where it is censored.
    risks
        A number per row, larger for an earlier event.
    """
    earlier = np.flatnonzero(events)
    rows_at_once = max(_AT_ONCE // max(len(times), 1), 1)
    right = pairs = 0.0
    for start in range(0, len(earlier), rows_at_once):
        rows = earlier[start : start + rows_at_once, None]
        comparable = (times > times[rows]) | ((times == times[rows]) & (events == 0))
        halves = (risks[rows] > risks) * 1.0 + (risks[rows] == risks) * 0.5
        right += float(halves[comparable].sum())
        pairs += float(comparable.sum())
    return right / pairs if pairs else float("nan")


def kaplan_meier(times: Vector, events: Vector) -> Steps:
    """Return Kaplan and Meier's estimate of the probability of no event until a time."""
    jumps = np.unique(times[events > 0])
    at_risk = (times[:, None] >= jumps).sum(axis=0)
    seen = ((times[:, None] == jumps) & (events[:, None] > 0)).sum(axis=0)
    return Steps(jumps, np.cumprod(1.0 - seen / at_risk), 1.0)


def cox_survival(times: Vector, events: Vector, risks: Vector) -> Steps:
    """Return each row's survival by Breslow's cumulative hazard on the same rows.

    ``risks`` are log hazard ratios ``[rows]``.
    """
    relative = np.exp(risks - risks.max(initial=-np.inf))
    jumps = np.unique(times[events > 0])
    at_risk = ((times[:, None] >= jumps) * relative[:, None]).sum(axis=0)
    seen = ((times[:, None] == jumps) & (events[:, None] > 0)).sum(axis=0)
    # A risk of 0 after rounding would be divided by 0.
    hazard = np.cumsum(seen / np.maximum(at_risk, np.finfo(np.float64).tiny))
    return Steps(jumps, np.exp(-relative[:, None] * hazard), 1.0)


def integrated_brier_score(times: Vector, events: Vector, survival: Steps) -> float:
    """Return the mean Brier score from time 0 to the last event; NaN without events.

    Parameters
    ----------
    times, events
        As of :func:`concordance`.
    survival
        Predicted survival of each row, values ``[rows, jumps]``.
    """
    seen = events > 0
    horizon = float(times[seen].max(initial=0.0))
    if horizon <= 0:
        return float("nan")
    knots = np.unique(np.concatenate([[0.0], times, survival.times]))
    grid = knots[(knots >= 0) & (knots < horizon)]
    uncensored = kaplan_meier(times, np.where(seen, 0.0, 1.0))
    predicted = survival.at(grid)
    died = (times[:, None] <= grid) & seen[:, None]
    alive = times[:, None] > grid
    # Rows that are censored before a time have weight 0 at it.
    own = uncensored.at(times, left=True)[:, None]
    weights = died / np.maximum(own, np.finfo(np.float64).tiny)
    weights = weights + alive / uncensored.at(grid)
    errors = (weights * (alive - predicted) ** 2).mean(axis=0)
    return float((errors * np.diff(np.append(grid, horizon))).sum() / horizon)
