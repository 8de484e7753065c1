"""Commands that make many runs: sweep, tune."""

from pathlib import Path
from typing import Annotated

import typer

from fedsuite.experiment.command_options import (
    FileArgument,
    SetOption,
    WorkersOption,
    overrides,
)


def sweep(
    file: FileArgument,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="KEY=A,B,C",
            help="Values of a key; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds per point.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="First of the seeds.", min=0)] = 0,
    workers: WorkersOption = 0,
    output: Annotated[Path, typer.Option(help="Folder of the sweep.")] = Path("sweep"),
    settings: SetOption = None,
) -> None:
    """Run the product of values and seeds; started again, it does what is missing."""
    from fedsuite.sweeps.sweep import run_sweep

    run_sweep(
        file,
        grid=grid or [],
        seeds=seeds,
        workers=workers,
        output=output,
        overrides=overrides(settings),
        first_seed=first_seed,
    )


def tune(
    file: FileArgument,
    methods: Annotated[
        str,
        typer.Option(help="Methods to tune, comma-separated."),
    ],
    keys: Annotated[
        str, typer.Option(help="Keys of options to tune too, comma-separated.")
    ] = "",
    trials: Annotated[
        int, typer.Option(min=1, help="Trials per method; the first has the defaults.")
    ] = 12,
    objective: Annotated[
        str,
        typer.Option(
            help="What is scored: mean, worst-10 or variance of the task's main score, or "
            "of another one, such as auroc-mean."
        ),
    ] = "mean",
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs per trial, each with a seed of its own.")
    ] = 1,
    first_seed: Annotated[int, typer.Option(help="First of the seeds.", min=0)] = 0,
    workers: WorkersOption = 0,
    output: Annotated[Path, typer.Option(help="Folder of the tuning.")] = Path("tuning"),
    settings: SetOption = None,
) -> None:
    """Choose methods' values on validation rows; started again, it does what is missing."""
    from fedsuite.sweeps.trials import objective_of
    from fedsuite.sweeps.tune import Budget, tune_file

    budget = Budget(
        trials,
        objective_of(objective),
        tuple(range(first_seed, first_seed + seeds)),
        workers,
    )
    tune_file(file, _names(methods), budget, output, overrides(settings), _names(keys))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
