"""Commands that use the model of a run."""

from pathlib import Path
from typing import Annotated

import typer

from fedsuite.core.output import print_line, print_text
from fedsuite.experiment.command_options import RunArgument

ClientOption = Annotated[
    str | None,
    typer.Option(help="Name or number of the client whose model; default: that of all."),
]


def predict(
    run: RunArgument,
    data: Annotated[
        Path,
        typer.Argument(help="Table (CSV, Parquet), array (NPY), picture, or a folder."),
    ],
    client: ClientOption = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File to write, .csv or .parquet; default: print CSV."),
    ] = None,
) -> None:
    """Predict with the model of a run, from columns in any order."""
    from fedsuite.engines.trained.predict import as_csv, write_predictions
    from fedsuite.engines.trained.predict import predict as predicted
    from fedsuite.results.reader import load_run

    columns = predicted(load_run(run), data, client)
    if output is None:
        print_text(as_csv(columns).removesuffix("\n"))
        return
    write_predictions(columns, output)
    print_line(f"predictions: {output}")


def export(
    run: RunArgument,
    output: Annotated[Path, typer.Option(help="File to write.")],
    format: Annotated[
        str,
        typer.Option(
            help="torch (a program for torch.export.load), onnx, or safetensors (arrays)."
        ),
    ] = "torch",
    client: ClientOption = None,
) -> None:
    """Write the model of a run to a file that needs no fedsuite, with a card beside it."""
    from fedsuite.engines.trained.export import export as write
    from fedsuite.results.reader import load_run

    print_line(f"model: {write(load_run(run), output, format, client)}")
