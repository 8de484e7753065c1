"""Accuracy against the number of clients per round (figure 2c of the paper).

W. Chen, Q. Qiu, arXiv:2503.08652, section 7.2: m clients per round have m^2 - m latent
clients, and the paper says that the gain of decomposition grows with m. The paper gives
only the ends of the range, 2 and 40 clients, at round 200. The runs are two sweeps in the
output folder. The analysis runs missing points when started again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from matplotlib.figure import Figure

from fedsuite.analyses.options import (
    Models,
    ModelsOption,
    OutputOption,
    OverwriteOption,
    variant,
)
from fedsuite.analyses.output import Output, Table
from fedsuite.core.errors import RunError
from fedsuite.experiment.command_options import FileArgument, SetOption, overrides
from fedsuite.results.compare import spread
from fedsuite.results.plots import PALETTE, dress
from fedsuite.results.reader import load_run
from fedsuite.sweeps.sweep import run_sweep

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
    *("clients a round", "latent clients", "model", "seeds", "accuracy %", "std"),
    *("gain over dense", "std of gain"),
)


def read_scores(
    folders: Mapping[str, Sequence[Path]], metric: str
) -> dict[str, dict[int, dict[int, float]]]:
    """Return the last accuracy of runs.

    Raises
    ------
    RunError
        If a run has no such metric.
    """
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
            found = by_clients[clients]
            overall = spread(list(found.values()))
            assert overall is not None
            dense = scores.get("dense", {}).get(clients, {})
            paired = [found[seed] - dense[seed] for seed in found if seed in dense]
            factored = model == "factored"
            gain = spread(paired) if factored else None
            rows.append(
                Row(
                    clients,
                    clients**2 - clients if factored else None,
                    model,
                    len(found),
                    overall.mean,
                    overall.std,
                    gain.mean if gain else None,
                    gain.std if gain else None,
                )
            )
    return rows


def command(
    experiment: FileArgument,
    output: OutputOption = Path("analysis"),
    clients: Annotated[
        str, typer.Option(metavar="A,B,C", help="Numbers of clients a round.")
    ] = "2,5,10,20,30,40",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 to N-1 for each point.")] = 3,
    workers: Annotated[int, typer.Option(min=0, help="Runs at a time; 0: one a core.")] = 0,
    metric: Annotated[
        str, typer.Option(help="Column of rounds.jsonl, a fraction.")
    ] = "accuracy_mean",
    models: ModelsOption = Models.BOTH,
    settings: SetOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Sweep the clients a round, dense and factored, and compare the last accuracies."""
    given = overrides(settings)
    files = Output.claim(output, "participation", overwrite=overwrite)
    folders = {
        name: run_sweep(
            experiment,
            grid=[f"{KEY}={clients}"],
            seeds=seeds,
            workers=workers,
            output=output / f"sweep_{name}",
            overrides=variant(name, given),
        )
        for name in models.names
    }
    rows = summarise(read_scores(folders, metric))
    note = (
        f"{metric} at the last evaluation, mean and sample standard deviation over seeds; "
        "gains are differences paired by seed. Latent clients: m^2 - m of m clients."
    )
    files.write(Table(COLUMNS, rows, note), participation_figure(rows, metric))


def participation_figure(rows: Sequence[Row], metric: str) -> Figure:
    """Draw accuracy against clients per round, and the gain of decomposition."""
    gains = [row for row in rows if row.gain is not None]
    width = 2 if gains else 1
    figure = Figure(figsize=(5.0 * width, 3.8), layout="constrained")
    grid = figure.subplots(1, width, squeeze=False)[0]
    for index, model in enumerate(dict.fromkeys(row.model for row in rows)):
        chosen = [row for row in rows if row.model == model]
        grid[0].errorbar(
            [row.clients for row in chosen],
            [row.accuracy for row in chosen],
            yerr=[row.deviation or 0.0 for row in chosen],
            color=PALETTE[index],
            marker="o",
            markersize=4,
            capsize=3,
            label=model,
        )
    dress(grid[0], "Last accuracy", "clients a round", f"{metric} (%)")
    grid[0].legend(frameon=False)
    if gains:
        grid[1].errorbar(
            [row.clients for row in gains],
            [row.gain for row in gains],
            yerr=[row.gain_deviation or 0.0 for row in gains],
            color="black",
            marker="o",
            markersize=4,
            capsize=3,
        )
        grid[1].axhline(0, color="0.4", linewidth=0.8)
        dress(grid[1], "Gain of decomposition", "clients a round", "points of accuracy")
    return figure
