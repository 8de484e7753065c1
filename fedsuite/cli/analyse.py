"""Commands that read runs again: a table each."""

from pathlib import Path
from typing import Annotated

import typer

from fedsuite.experiment.command_options import (
    FileArgument,
    OutputOption,
    OverwriteOption,
    RunArgument,
    RunsArgument,
    SetOption,
    WorkersOption,
    overrides,
)

app = typer.Typer(
    help="Read runs again: a table each.",
    no_args_is_help=True,
    suggest_commands=False,
)


@app.command()
def costs(
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
    overwrite: OverwriteOption = False,
) -> None:
    """Tell the bytes and seconds that accuracies cost; the report draws them."""
    from fedsuite.results.costs import write_costs

    write_costs(runs, output, percent=target or [], metric=metric, overwrite=overwrite)


@app.command()
def suspects(
    run: RunArgument,
    output: OutputOption = Path("analysis"),
    overwrite: OverwriteOption = False,
) -> None:
    """Tell which clients' updates were far from the others', and whose were refused."""
    from fedsuite.results.suspects import write_suspects

    write_suspects(run, output, overwrite=overwrite)


@app.command()
def privacy(
    file: FileArgument,
    canaries: Annotated[
        int, typer.Option(help="Clients of random directions; 0: no audit of noise.", min=0)
    ] = 100,
    shadows: Annotated[
        int, typer.Option(help="Runs on half of the rows; 0: no membership test.", min=0)
    ] = 16,
    workers: WorkersOption = 0,
    output: OutputOption = Path("analysis"),
    settings: SetOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Measure what models tell of clients and of rows; called again, it goes on."""
    from fedsuite.sweeps.privacy import audit_privacy

    audit_privacy(
        file,
        overrides(settings),
        output,
        canaries=canaries,
        shadows=shadows,
        workers=workers,
        overwrite=overwrite,
    )
