"""Commands that read runs again: a table and a plot each."""

from pathlib import Path
from typing import Annotated

import click
import typer

from fedsuite.experiment.command_options import (
    OutputOption,
    OverwriteOption,
    RunArgument,
    RunsArgument,
    StandaloneOption,
)

app = typer.Typer(
    help="Read runs again: a table and a plot each.",
    no_args_is_help=True,
)


@app.command()
def communication(
    runs: RunsArgument,
    output: OutputOption = Path("analysis"),
    target: Annotated[
        list[float] | None,
        typer.Option(
            help="Accuracy in per cent; may be repeated; default: what all reach."
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Column of rounds.jsonl, a fraction; default: the mean over clients of "
            "the accuracy on the whole test part where all runs have it, else on their own "
            "rows."
        ),
    ] = "",
    direction: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(["both", "up", "down"]),
            help="Count uploads, downloads, or both.",
        ),
    ] = "both",
    overwrite: OverwriteOption = False,
) -> None:
    """Plot accuracy against parameters and bytes sent, and tell what each target costs."""
    from fedsuite.results.communication import Direction, write_communication

    write_communication(
        runs,
        output,
        percent=target or [],
        metric=metric,
        direction=Direction(direction),
        overwrite=overwrite,
    )


@app.command()
def contributions(
    runs: RunsArgument,
    standalone: StandaloneOption = None,
    output: OutputOption = Path("analysis"),
    overwrite: OverwriteOption = False,
) -> None:
    """Set the contribution that a method gives a client against its accuracy alone."""
    from fedsuite.results.analysis_files import Output
    from fedsuite.results.contributions import write_contributions
    from fedsuite.results.reader import load_run
    from fedsuite.sweeps.standalone_runs import standalone_runs

    loaded = [load_run(path) for path in runs]
    files = Output.claim(output, "contributions", overwrite=overwrite)
    alone = standalone_runs(loaded, [load_run(path) for path in standalone or []])
    write_contributions(files, loaded, alone)


@app.command()
def round_time(
    runs: RunsArgument,
    output: OutputOption = Path("analysis"),
    baseline: Annotated[
        str | None,
        typer.Option(help="Label whose rounds are 1; default: that of fedavg."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Label that sets the time; default: that of fedakd."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=0, help="Its rounds; 0: as many as its runs have.")
    ] = 0,
    clock: Annotated[
        str,
        typer.Option(
            click_type=click.Choice(["wall", "cpu"]),
            help="Wall-clock time, or that of the processor.",
        ),
    ] = "wall",
    overwrite: OverwriteOption = False,
) -> None:
    """Time the rounds of methods, and tell the rounds that each gets in the same time."""
    from fedsuite.results.round_time import Clock, write_round_time

    write_round_time(
        runs,
        output,
        baseline=baseline,
        budget=budget,
        rounds=rounds,
        clock=Clock(clock),
        overwrite=overwrite,
    )


@app.command()
def suspects(
    run: RunArgument,
    output: OutputOption = Path("analysis"),
    overwrite: OverwriteOption = False,
) -> None:
    """Tell which clients' updates were far from the others', and whose were refused."""
    from fedsuite.results.suspects import write_suspects

    write_suspects(run, output, overwrite=overwrite)
