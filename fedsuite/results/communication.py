"""Accuracy against parameters sent, from runs' folders.

Figure 2d of W. Chen, Q. Qiu, arXiv:2503.08652, section 7.2, plots "parameters transmitted"
without the direction, which is an option here. Figure 11 of P. Han, X. Shi, J. Huang,
"FedAL", arXiv:2311.16584, has bytes on a logarithmic axis (``--direction up``). The payload
of training counts, of all clients together, without evaluation. Ledgers of a run:

- ``sent``: the bytes of the messages, over four for parameters (float32);
- ``coded``: for CFD with ``cfd-bits``, the same with uploads at an ideal coder's bits;
- ``true``, ``nominal``: for filter decomposition, the parameters sent, and the paper's
  account, in which coefficients count only in the rounds of their upload.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsuite.core.errors import RunError
from fedsuite.core.vectors import Vector
from fedsuite.results.analysis_files import Cell, Output, Table, panels
from fedsuite.results.groups import Group, group_runs
from fedsuite.results.plots import LINE_STYLES, PALETTE, dress, escape_dollars
from fedsuite.results.reader import Run, load_run

BYTES_PER_PARAMETER = 4
CODED = "coded_bits_up"
_PARAMETERS = {
    **dict.fromkeys(("bytes_up", "bytes_down_train"), 1 / BYTES_PER_PARAMETER),
    CODED: 1 / (8 * BYTES_PER_PARAMETER),
}
"""float32 parameters per unit of a column, where not 1."""

LEDGERS = ("sent", "true", "nominal", "coded")
WHOLE_TEST = "evaluate_whole_test_accuracy"
SHARES = (0.5, 0.75, 0.9, 1.0)
"""Default targets, as shares of the best accuracy that all experiments reach."""


class Direction(StrEnum):
    """Direction of the messages that count."""

    BOTH = "both"
    UP = "up"
    DOWN = "down"

    @property
    def names(self) -> tuple[str, ...]:
        """``up``, ``down``, or both."""
        return ("down", "up") if self is Direction.BOTH else (self.value,)


@dataclass(frozen=True)
class Curve:
    """Mean accuracy (a fraction) over seeds of an experiment against parameters sent.

    ``deviations`` are sample standard deviations over seeds; None for one seed.
    """

    label: str
    ledger: str
    rounds: NDArray[np.int64]
    parameters: Vector
    accuracies: Vector
    num_seeds: int = 1
    deviations: Vector | None = None


class Row(NamedTuple):
    """First round and cost at which an experiment reaches a target (a fraction)."""

    label: str
    ledger: str
    target: float
    server_round: int
    parameters: float
    times_less: float


def costs(run: Run, direction: Direction) -> dict[str, dict[int, float]]:
    """Return the parameters sent until the end of each round, by ledger."""
    ledgers = {
        name: tuple(f"{name}_parameters_{way}" for way in direction.names)
        for name in ("true", "nominal")
    }
    if not run.column("true_parameters_up")[0].size:
        by_way = {"up": "bytes_up", "down": "bytes_down_train"}
        ledgers = {"sent": tuple(by_way[way] for way in direction.names)}
        if run.column(CODED)[0].size and direction is not Direction.DOWN:
            ledgers["coded"] = tuple({**by_way, "up": CODED}[w] for w in direction.names)
    by_ledger = {}
    for ledger, columns in ledgers.items():
        missing = [name for name in columns if not run.column(name)[0].size]
        if missing:
            raise RunError(
                f"{run.path}: no column {missing[0]} in its rounds: run it again with this "
                "fedsuite, or give --direction up"
            )
        total, sums = 0.0, {}
        for row in run.rounds:
            total += sum(
                (row.get(name) or 0) * _PARAMETERS.get(name, 1) for name in columns
            )
            sums[row["round"]] = total
        by_ledger[ledger] = sums
    return by_ledger


def curves(group: Group, metric: str, direction: Direction) -> list[Curve]:
    """Return an experiment's curve per ledger, over the rounds that all seeds evaluated."""
    scores = []
    for run in group.runs:
        scores.append(dict(zip(*run.column(metric), strict=True)))
        if not scores[-1]:
            raise RunError(
                f"{run.path}: no column {metric} in its rounds: name another by --metric"
            )
    rounds = sorted(set.intersection(*map(set, scores)))
    if not rounds:
        raise RunError(f"{group.label}: its seeds have no evaluated round in common")
    spent = [costs(run, direction) for run in group.runs]
    ledgers = [name for name in spent[0] if all(name in each for each in spent)]
    reached_in = np.array([[each[r] for r in rounds] for each in scores])
    deviations = reached_in.std(axis=0, ddof=1) if len(scores) > 1 else None
    return [
        Curve(
            group.label,
            ledger,
            np.array(rounds),
            np.mean([[each[ledger][r] for r in rounds] for each in spent], axis=0),
            reached_in.mean(axis=0),
            len(scores),
            deviations,
        )
        for ledger in ledgers
    ]


def usual_metric(runs: Sequence[Run]) -> str:
    """Return the metric: mean accuracy on the whole test part, if all runs have it."""
    whole = all(run.column(WHOLE_TEST)[0].size for run in runs)
    return WHOLE_TEST if whole else "accuracy_mean"


def curve_table(cost_curves: Sequence[Curve], metric: str, words: str) -> Table:
    """Return accuracy and cost of every evaluated round."""
    columns = (
        *("experiment", "ledger", "seeds", "round", "parameters (M)", "MB"),
        *("accuracy %", "deviation"),
    )
    cells: list[tuple[Cell, ...]] = []
    for curve in cost_curves:
        for index, server_round in enumerate(curve.rounds.tolist()):
            run = curve.label, curve.ledger, curve.num_seeds, server_round
            score = 100 * float(curve.accuracies[index])
            spread = curve.deviations
            deviation = None if spread is None else 100 * float(spread[index])
            cells.append((*run, *_millions(curve.parameters[index]), score, deviation))
    note = (
        f"Payload sent {words} in training, by all clients together, until the end of the "
        f"round; {metric}, mean and sample standard deviation over seeds."
    )
    return Table(columns, cells, note)


def _millions(parameters: float) -> tuple[float, float]:
    """Return parameters and their bytes, in millions."""
    total = float(parameters)
    return total / 1e6, total * BYTES_PER_PARAMETER / 1e6


def common_targets(cost_curves: Sequence[Curve]) -> list[float]:
    """Return shares of the best accuracy that all curves reach, rounded down to 0.1 %."""
    best = min(float(curve.accuracies.max()) for curve in cost_curves)
    # The epsilon keeps 0.7 from becoming 0.699.
    targets = {np.floor(1000 * share * best + 1e-9) / 1000 for share in SHARES}
    return sorted(float(target) for target in targets if target > 0)


def reached(cost_curves: Sequence[Curve], targets: Sequence[float]) -> list[Row]:
    """Return each curve's first evaluated round and cost at each target.

    The last number is the first curve's cost over this cost. All curves must reach all
    targets.
    """
    rows = []
    for target in targets:
        base = None
        for curve in cost_curves:
            hits = np.flatnonzero(curve.accuracies >= target)
            if not hits.size:
                raise RunError(
                    f"{curve.label} never reaches {100 * target:g} %, its best is "
                    f"{100 * curve.accuracies.max():.2f} %: give a lower --target"
                )
            cost = float(curve.parameters[hits[0]])
            base = cost if base is None else base
            first = int(curve.rounds[hits[0]])
            ratio = base / cost if cost else float("inf")
            rows.append(Row(curve.label, curve.ledger, target, first, cost, ratio))
    return rows


def write_communication(
    runs: Sequence[Path],
    output: Path,
    *,
    percent: Sequence[float],
    metric: str,
    direction: Direction,
    overwrite: bool,
) -> None:
    """Write accuracy against parameters sent, and what each target costs.

    Parameters
    ----------
    runs, output
        Folders of the runs, and of tables and plots.
    percent
        Targets; empty for :func:`common_targets`.
    metric
        Column of ``rounds.jsonl``; empty for :func:`usual_metric`.
    direction
        Messages that count.
    overwrite
        Whether files of an earlier call are replaced.
    """
    loaded = [load_run(path) for path in runs]
    groups = group_runs(loaded)
    metric = metric or usual_metric(loaded)
    cost_curves = [c for group in groups for c in curves(group, metric, direction)]
    targets = [each / 100 for each in percent] or common_targets(cost_curves)
    rows = reached(cost_curves, targets)
    files, curve_files = (
        Output.claim(output, name, overwrite=overwrite)
        for name in ("communication", "communication_curves")
    )
    columns = (
        *("experiment", "ledger", "target %", "round", "parameters (M)", "MB"),
        "times less than the first",
    )
    cells = [
        (
            *(row.label, row.ledger, round(100 * row.target, 3), row.server_round),
            *(*_millions(row.parameters), row.times_less),
        )
        for row in rows
    ]
    words = {"both": "down and up", "up": "up", "down": "down"}[direction]
    note = (
        f"Parameters sent {words} in training, by all clients together, until {metric} "
        "first reaches the target; means over seeds. Ledgers: sent, bytes of the messages "
        "over 4; coded, the same with CFD's uploads as an ideal coder would send them; "
        "true, what filter decomposition sent; nominal, the paper's account of it."
    )
    table = Table(columns, cells, note)
    files.write(table, cost_figure(cost_curves, metric, words))
    table = curve_table(cost_curves, metric, words)
    ends = list({row[:2]: row for row in table.rows}.values())
    printed = Table(table.columns, ends, f"Ends of the curves. {table.note}")
    curve_files.write(table, bytes_figure(cost_curves, metric, words), printed=printed)


def cost_figure(cost_curves: Sequence[Curve], metric: str, words: str) -> Figure:
    """Draw accuracy against parameters, a colour per experiment, a style per ledger."""
    figure, axes = _curves_figure(
        cost_curves, 1, metric, f"parameters sent {words}, millions"
    )
    axes.set_xlim(left=0)
    return figure


def bytes_figure(cost_curves: Sequence[Curve], metric: str, words: str) -> Figure:
    """Draw accuracy, with one deviation over seeds, against bytes on a logarithmic axis."""
    label = f"megabytes sent {words}, all clients together"
    figure, axes = _curves_figure(cost_curves, BYTES_PER_PARAMETER, metric, label)
    for curve, style in _styles(cost_curves):
        if curve.deviations is not None:
            sent = curve.parameters * BYTES_PER_PARAMETER / 1e6
            low = 100 * (curve.accuracies - curve.deviations)
            high = 100 * (curve.accuracies + curve.deviations)
            axes.fill_between(sent, low, high, color=style["color"], alpha=0.2, lw=0)
    axes.set_xscale("log")
    return figure


def _curves_figure(
    cost_curves: Sequence[Curve], factor: int, metric: str, label: str
) -> tuple[Figure, Axes]:
    """Draw accuracies against millions of ``factor`` units per parameter."""
    figure, (axes,) = panels(1, 1, 7.6, 4.6)
    for curve, style in _styles(cost_curves):
        axes.plot(curve.parameters * factor / 1e6, 100 * curve.accuracies, **style)
    dress(axes, "Accuracy against communication", label, f"{metric} (%)")
    figure.legend(loc="outside lower center", ncols=1, frameon=False)
    return figure, axes


def _styles(cost_curves: Sequence[Curve]) -> Iterator[tuple[Curve, dict[str, Any]]]:
    """Yield curves with a colour per experiment and a style per ledger."""
    labels = list(dict.fromkeys(curve.label for curve in cost_curves))
    for curve in cost_curves:
        style = {
            "color": PALETTE[labels.index(curve.label) % len(PALETTE)],
            "linestyle": LINE_STYLES[LEDGERS.index(curve.ledger)],
            "marker": "o" if len(curve.rounds) <= 30 else "",
            "markersize": 3,
            "label": escape_dollars(f"{curve.label} ({curve.ledger})"),
        }
        yield curve, style
