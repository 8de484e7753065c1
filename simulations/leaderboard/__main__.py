"""The leaderboard's command: ``python -m simulations.leaderboard SUITE``."""

from pathlib import Path
from typing import Annotated

import typer

from fedsuite.cli import main
from simulations.leaderboard.board import rewrite_page, run_leaderboard


def command(
    suite: Annotated[Path, typer.Argument(help="Suite (TOML): problems, methods, budget.")],
    problems: Annotated[str, typer.Option(help="Some of the problems, by name.")] = "",
    methods: Annotated[
        str, typer.Option(help="Some of the methods, by name; the references take part.")
    ] = "",
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Write the page again from its tables.")
    ] = False,
    into: Annotated[
        list[Path] | None, typer.Option(help="Page with the marks of the choices.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Runs at a time; 0: one per core.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder.")] = Path("leaderboard"),
) -> None:
    """Tune methods alike, train them on fresh seeds, and write a page; resumable."""
    if page_only:
        rewrite_page(suite, output, into or [])
    else:
        named = {"problems": _names(problems), "methods": _names(methods)}
        run_leaderboard(suite, output, workers=workers, **named)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    main(lambda: typer.run(command))
