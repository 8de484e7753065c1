"""Accuracy against what was sent and against time, of experiments, from runs' folders."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsuite.core.errors import RunError
from fedsuite.core.vectors import Vector
from fedsuite.results.groups import Group
from fedsuite.results.reader import Run

COSTS = ("MB up", "MB down", "seconds", "CPU s", "virtual h")


@dataclass(frozen=True)
class Curve:
    """Accuracy and costs of an experiment, at the rounds that all seeds evaluated.

    Parameters
    ----------
    accuracies
        Means over seeds, fractions.
    costs
        Means over seeds of the sums until each of the rounds, by name in :data:`COSTS`; NaN
        where a run does not say.
    of_a_round
        Medians of one round, by name in :data:`COSTS`.
    """

    label: str
    rounds: NDArray[np.int64]
    accuracies: Vector
    costs: dict[str, Vector]
    of_a_round: dict[str, float]

    @property
    def megabytes(self) -> Vector:
        """Sums of both directions until each of the rounds."""
        return self.costs["MB up"] + self.costs["MB down"]

    def cells(self, target: float) -> list[int | float | None]:
        """Return the round at which a target (a fraction) is reached, and its costs."""
        reached = np.flatnonzero(self.accuracies >= target)
        if not reached.size:
            return [None] * (1 + len(COSTS))
        first = reached[0]
        costs = [known(self.costs[name][first]) for name in COSTS]
        return [int(self.rounds[first]), *costs]


def costs_of_rounds(run: Run) -> dict[str, Vector]:
    """Return what each round of a run cost, by name in :data:`COSTS`; NaN is unknown."""

    def column(name: str) -> Vector:
        values = (row.get(name) for row in run.rounds)
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)

    local = run.experiment.get("engine") == "local"
    return {
        "MB up": column("bytes_up") / 1e6,
        "MB down": column("bytes_down_train") / 1e6,
        "seconds": column("seconds") - np.nan_to_num(column("seconds_evaluate")),
        "CPU s": column("cpu_seconds") if local else np.full(len(run.rounds), np.nan),
        # In rounds.jsonl it is the time since the run began.
        "virtual h": np.diff(column("virtual_seconds"), prepend=0.0) / 3600,
    }


def cost_curve(group: Group, metric: str) -> Curve:
    """Return an experiment's curve; RunError if its seeds have no accuracy in common."""
    scores, sums, later = [], [], []
    for run in group.runs:
        rounds, accuracies = run.column(metric)
        if not rounds.size:
            raise RunError(
                f"{run.path}: no column {metric} in its rounds: name another by --metric"
            )
        scores.append(dict(zip(rounds.tolist(), accuracies.tolist(), strict=True)))
        costs = costs_of_rounds(run)
        numbers = [row["round"] for row in run.rounds]
        sums.append(
            {n: dict(zip(numbers, c.cumsum(), strict=True)) for n, c in costs.items()}
        )
        # Data are read and models built in a run's first round.
        later.append({n: c[1:] if len(c) > 1 else c for n, c in costs.items()})
    common = sorted(set.intersection(*map(set, scores)))
    if not common:
        raise RunError(f"{group.label}: its seeds have no evaluated round in common")
    return Curve(
        group.label,
        np.array(common),
        np.mean([[own[r] for r in common] for own in scores], axis=0),
        {n: np.mean([[own[n][r] for r in common] for own in sums], axis=0) for n in COSTS},
        {n: float(np.median(np.concatenate([own[n] for own in later]))) for n in COSTS},
    )


def known(value: float) -> float | None:
    """Return a cost, None for one that a run does not say."""
    return None if np.isnan(value) else float(value)
