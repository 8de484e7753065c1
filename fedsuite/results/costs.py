"""What accuracy costs: bytes and seconds until experiments reach it, from runs' folders.

Figure 2d of W. Chen, Q. Qiu, arXiv:2503.08652, and Figure 11 of P. Han, X. Shi, J. Huang,
"FedAL", arXiv:2311.16584, plot accuracy against what was sent; Figure 3a of FedAKD's paper
has the time of a round. The payload of training counts, of all clients together, and the
time of rounds without their evaluation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsuite.core.errors import RunError
from fedsuite.core.vectors import Vector
from fedsuite.results.analysis_files import Cell, Output, Table, panels
from fedsuite.results.groups import Group, group_runs
from fedsuite.results.plots import dress, escape_dollars, line_style
from fedsuite.results.reader import Run, load_run

WHOLE_TEST = "evaluate_whole_test_accuracy"
SHARES = (0.5, 0.75, 0.9, 1.0)
"""Default targets, as shares of the best accuracy that all experiments reach."""

COSTS = ("MB up", "MB down", "seconds", "CPU s")
TIMES = COSTS[2:]

NOTE = (
    "What training costs until {metric} first reaches the target: payload of all clients "
    "together, and time without evaluation; means over seeds. A round: median over rounds "
    "and seeds, without each run's first. Processor time is that of the process that runs "
    "the clients, so of the local engine alone. Only times on one machine, under one load, "
    "can be compared."
)


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

    def cells(self, target: float) -> list[Cell]:
        """Return the round at which a target (a fraction) is reached, and its costs."""
        reached = np.flatnonzero(self.accuracies >= target)
        if not reached.size:
            return [None] * (1 + len(COSTS))
        first = reached[0]
        costs = [_known(self.costs[name][first]) for name in COSTS]
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


def usual_metric(runs: Sequence[Run]) -> str:
    """Return the metric: mean accuracy on the whole test part, if all runs have it."""
    whole = all(run.column(WHOLE_TEST)[0].size for run in runs)
    return WHOLE_TEST if whole else "accuracy_mean"


def common_targets(curves: Sequence[Curve]) -> list[float]:
    """Return shares of the best accuracy that all curves reach, rounded down to 0.1 %."""
    best = min(float(curve.accuracies.max()) for curve in curves)
    # The epsilon keeps 0.7 from becoming 0.699.
    targets = {np.floor(1000 * share * best + 1e-9) / 1000 for share in SHARES}
    return sorted(float(target) for target in targets if target > 0)


def cost_table(curves: Sequence[Curve], targets: Sequence[float], metric: str) -> Table:
    """Return what each target costs each experiment."""
    columns = (
        *("experiment", "target %", "round", *COSTS),
        *(f"{name} a round" for name in TIMES),
    )
    cells: list[list[Cell]] = [
        [
            *(curve.label, round(100 * target, 3), *curve.cells(target)),
            *(_known(curve.of_a_round[name]) for name in TIMES),
        ]
        for target in targets
        for curve in curves
    ]
    return Table(columns, cells, NOTE.format(metric=metric))


def cost_figure(curves: Sequence[Curve], metric: str) -> Figure:
    """Draw accuracy against bytes, on a logarithmic axis, and against seconds."""
    figure, (sent, time) = panels(2, 2, 4.8, 3.8, extra=0.3)
    for index, curve in enumerate(curves):
        style = {**line_style(index), "marker": "o" if len(curve.rounds) <= 30 else ""}
        style |= {"markersize": 3, "label": escape_dollars(curve.label)}
        megabytes = curve.costs["MB up"] + curve.costs["MB down"]
        sent.plot(megabytes, 100 * curve.accuracies, **style)
        time.plot(curve.costs["seconds"], 100 * curve.accuracies, **style)
    sent.set_xscale("log")
    dress(sent, "Against traffic", "MB down and up, all clients", f"{metric} (%)")
    dress(time, "Against time", "seconds without evaluation", f"{metric} (%)")
    handles, labels = sent.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=1, frameon=False)
    return figure


def write_costs(
    runs: Sequence[Path],
    output: Path,
    *,
    percent: Sequence[float],
    metric: str,
    overwrite: bool,
) -> None:
    """Write what targets cost, and accuracy against bytes and seconds.

    Parameters
    ----------
    runs, output
        Folders of the runs, and of table and plot.
    percent
        Targets; empty for :func:`common_targets`.
    metric
        Column of ``rounds.jsonl``; empty for :func:`usual_metric`.
    overwrite
        Whether files of an earlier call are replaced.
    """
    loaded = [load_run(path) for path in runs]
    metric = metric or usual_metric(loaded)
    curves = [cost_curve(group, metric) for group in group_runs(loaded)]
    targets = [each / 100 for each in percent] or common_targets(curves)
    files = Output.claim(output, "costs", overwrite=overwrite)
    files.write(cost_table(curves, targets, metric), cost_figure(curves, metric))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
