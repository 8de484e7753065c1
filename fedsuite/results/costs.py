"""What accuracy costs: bytes and seconds until experiments reach it, from runs' folders.

Figure 2d of W. Chen, Q. Qiu, arXiv:2503.08652, and Figure 11 of P. Han, X. Shi, J. Huang,
"FedAL", arXiv:2311.16584, plot accuracy against what was sent; Figure 3a of FedAKD's paper
has the time of a round. The payload of training counts, of all clients together, and the
time of rounds without their evaluation.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsuite.results.analysis_files import Cell, Output, Table
from fedsuite.results.cost_curves import COSTS, Curve, cost_curve, known
from fedsuite.results.groups import group_runs
from fedsuite.results.reader import Run, load_run

WHOLE_TEST = "evaluate_whole_test_accuracy"
SHARES = (0.5, 0.75, 0.9, 1.0)
"""Default targets, as shares of the best accuracy that all experiments reach."""

TIMES = COSTS[2:]

NOTE = (
    "What training costs until {metric} first reaches the target: payload of all clients "
    "together, and time without evaluation; means over seeds. A round: median over rounds "
    "and seeds, without each run's first. Processor time is that of the process that runs "
    "the clients, so of the local engine alone. Only times on one machine, under one load, "
    "can be compared. Virtual hours are those of the world of the key devices."
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
            *(known(curve.of_a_round[name]) for name in TIMES),
        ]
        for target in targets
        for curve in curves
    ]
    return Table(columns, cells, NOTE.format(metric=metric))


def write_costs(
    runs: Sequence[Path],
    output: Path,
    *,
    percent: Sequence[float],
    metric: str,
    overwrite: bool,
) -> None:
    """Write what targets cost.

    Parameters
    ----------
    runs, output
        Folders of the runs, and of the table.
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
    files.write(cost_table(curves, targets, metric))
