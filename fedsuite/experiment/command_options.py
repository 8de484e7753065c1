"""Arguments and options that commands share; costs nothing to import."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedsuite.core.keys import Value

FileArgument = Annotated[Path, typer.Argument(help="Experiment file (TOML).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key; may be repeated.",
    ),
]
RunArgument = Annotated[Path, typer.Argument(help="Folder of the run.")]
RunsArgument = Annotated[list[Path], typer.Argument(help="Folders of runs.")]
WorkersOption = Annotated[int, typer.Option(help="Runs at a time; 0: one per core.", min=0)]
OutputOption = Annotated[Path, typer.Option(help="Folder for the table.")]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace the table of an earlier call.")
]


def overrides(settings: Sequence[str] | None) -> dict[str, Value]:
    """Return what ``--set`` says."""
    from fedsuite.experiment.experiment import parse_assignment

    return dict(parse_assignment(setting) for setting in settings or [])
