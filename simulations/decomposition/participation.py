"""Accuracy against the number of clients per round (figure 2c of the paper).

W. Chen, Q. Qiu, arXiv:2503.08652, section 7.2: m clients per round have m^2 - m latent
clients, and the paper says that the gain of decomposition grows with m. The paper gives
only the ends of the range, 2 and 40 clients, at round 200. The runs are two sweeps in the
output folder. The analysis runs missing points when started again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsuite.cli import main
from fedsuite.core.errors import RunError
from fedsuite.experiment.command_options import (
    FileArgument,
    OutputOption,
    OverwriteOption,
    SetOption,
    overrides,
)
from fedsuite.results.analysis_files import Table
from fedsuite.results.compare import spread
from fedsuite.results.plots import PALETTE, dress
from fedsuite.results.reader import load_run
from fedsuite.sweeps.sweep import run_sweep
from simulations.decomposition.variants import Models, ModelsOption, variant
from simulations.figures import DrawnOutput, panels

KEY = "clients-per-round"

Scores = Mapping[str, Mapping[int, Mapping[int, float]]]
"""Accuracy in per cent by network, clients per round, and seed."""


class Row(NamedTuple):
    """One network at one number of clients; accuracies in per cent over seeds."""

    clients: int
    latent: int | None
    model: str
    seeds: int
    accuracy: float
    deviation: float | None
    gain: float | None
    gain_deviation: float | None


COLUMNS = (
    *("clients per round", "latent clients", "model", "seeds", "accuracy %", "std"),
    *("gain over dense", "std of gain"),
)


def read_scores(
    folders: Mapping[str, Sequence[Path]], metric: str
) -> dict[str, dict[int, dict[int, float]]]:
    """Return the last accuracy of runs."""
    scores: dict[str, dict[int, dict[int, float]]] = {}
    for model, paths in folders.items():
        for path in paths:
            run = load_run(path)
            _, values = run.column(metric)
            if not values.size:
                raise RunError(
                    f"{path}: no column {metric} in its rounds: name another by --metric"
                )
            clients, seed = (int(run.experiment[key]) for key in (KEY, "seed"))
            by_seed = scores.setdefault(model, {}).setdefault(clients, {})
            by_seed[seed] = 100 * float(values[-1])
    return scores


def summarise(scores: Scores) -> list[Row]:
    """Return a row per number of clients and network, with gains paired by seed."""
    rows = []
    for clients in sorted({c for by_clients in scores.values() for c in by_clients}):
        for model, by_clients in scores.items():
            seed_scores = by_clients[clients]
            overall = spread(list(seed_scores.values()))
            assert overall is not None
            dense = scores.get("dense", {}).get(clients, {})
            paired = [
                seed_scores[seed] - dense[seed] for seed in seed_scores if seed in dense
            ]
            factored = model == "factored"
            gain = spread(paired) if factored else None
            latent = clients**2 - clients if factored else None
            own = (clients, latent, model, len(seed_scores), overall.mean, overall.std)
            rows.append(Row(*own, *((gain.mean, gain.std) if gain else (None, None))))
    return rows


def command(
    experiment: FileArgument,
    output: OutputOption = Path("analysis"),
    clients: Annotated[
        str, typer.Option(metavar="A,B,C", help="Numbers of clients per round.")
    ] = "2,5,10,20,30,40",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 to N-1 for each point.")] = 3,
    workers: Annotated[int, typer.Option(min=0, help="Runs at once; 0: one per core.")] = 0,
    metric: Annotated[
        str, typer.Option(help="Column of rounds.jsonl, a fraction.")
    ] = "accuracy_mean",
    models: ModelsOption = Models.BOTH,
    settings: SetOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Sweep the clients per round, dense and factored, and compare the last accuracies."""
    set_values = overrides(settings)
    files = DrawnOutput.claim(output, "participation", overwrite=overwrite)
    folders = {
        name: run_sweep(
            experiment,
            grid=[f"{KEY}={clients}"],
            seeds=seeds,
            workers=workers,
            output=output / f"sweep_{name}",
            overrides=variant(name, set_values),
        )
        for name in models.names
    }
    rows = summarise(read_scores(folders, metric))
    note = (
        f"{metric} at the last evaluation, mean and sample standard deviation over seeds; "
        "gains are differences paired by seed. Latent clients: m^2 - m of m clients."
    )
    files.draw(Table(COLUMNS, rows, note), participation_figure(rows, metric))


def participation_figure(rows: Sequence[Row], metric: str) -> Figure:
    """Draw accuracy against clients per round, and the gain of decomposition."""
    gains = [
        (row.clients, row.gain, row.gain_deviation or 0.0)
        for row in rows
        if row.gain is not None
    ]
    width = 2 if gains else 1
    figure, grid = panels(width, width, 5.0, 3.8)
    for index, model in enumerate(dict.fromkeys(row.model for row in rows)):
        own = [row for row in rows if row.model == model]
        points = [(row.clients, row.accuracy, row.deviation or 0.0) for row in own]
        _draw(grid[0], points, PALETTE[index], model)
    dress(grid[0], "Last accuracy", "clients per round", f"{metric} (%)")
    grid[0].legend(frameon=False)
    if gains:
        _draw(grid[1], gains, "black")
        grid[1].axhline(0, color="0.4", linewidth=0.8)
        dress(grid[1], "Gain of decomposition", "clients per round", "points of accuracy")
    return figure


def _draw(
    axes: Axes, points: Sequence[tuple[int, float, float]], colour: str, label: str = ""
) -> None:
    """Draw values with their deviations."""
    x, y, errors = zip(*points, strict=True)
    style: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 3}
    axes.errorbar(x, y, yerr=errors, color=colour, label=label or None, **style)


if __name__ == "__main__":
    main(lambda: typer.run(command))
