"""Analyses of experiments and runs: each writes a table and a plot.

An analysis is a module of this package with a function ``command``, whose parameters are
typer's arguments and options, and one entry of :data:`ANALYSES`. The module is imported
only when its command is called.
"""

from dataclasses import dataclass
from importlib import import_module

import typer


@dataclass(frozen=True)
class Analysis:
    """One command of ``fedsuite analyse``.

    Parameters
    ----------
    name
        Name on the command line.
    help
        One line for the list of analyses.
    module
        Module in this package.
    """

    name: str
    help: str
    module: str


ANALYSES: tuple[Analysis, ...] = (
    Analysis(
        "aggregation-variance",
        "How much the aggregate varies when a round is repeated, dense and factored.",
        "aggregation_variance",
    ),
    Analysis(
        "class-probabilities",
        "Mean probability of each class on test samples of each, of clients' final models.",
        "class_probabilities",
    ),
    Analysis(
        "communication",
        "Accuracy against parameters and bytes sent so far, from the folders of runs.",
        "communication",
    ),
    Analysis(
        "contributions",
        "Contribution that a method gives each client, against its accuracy alone.",
        "contributions",
    ),
    Analysis(
        "covariate-shift",
        "Shift that three generators of covariate shift reach, against the one asked for.",
        "covariate_shift",
    ),
    Analysis(
        "gaussian-shift",
        "FedAKD's divergence by shift and sample size: as printed, corrected, exact, "
        "simulated.",
        "gaussian_shift",
    ),
    Analysis(
        "gradient-variance",
        "Variance of mini-batch gradients of each of FedAL's loss terms, at runs' ends.",
        "gradient_variance",
    ),
    Analysis(
        "latent-variance",
        "Variance of a product of averages and of an average of products: exact formula "
        "and simulation.",
        "latent_variance",
    ),
    Analysis(
        "loss-plane",
        "Training loss of a dense and a factored run, and their paths over its surface.",
        "loss_plane",
    ),
    Analysis(
        "participation",
        "Accuracy against clients a round, dense and factored, by a sweep.",
        "participation",
    ),
    Analysis(
        "round-time",
        "Time of a round by method, and rounds that fit into the same time, from runs.",
        "round_time",
    ),
    Analysis(
        "synthetic-landscape",
        "Paths of FedAvg with few and many clients on a model of two weights.",
        "synthetic_landscape",
    ),
)


def command_group() -> typer.Typer:
    """Return the command group, without importing the analyses."""
    group = typer.Typer(
        help="Analyse experiments and runs: a table and a plot each.",
        no_args_is_help=True,
    )
    for analysis in ANALYSES:
        _add(group, analysis)
    return group


def _add(group: typer.Typer, analysis: Analysis) -> None:
    # The command itself reads all words after the name, --help included.
    raw = {
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    }

    @group.command(analysis.name, help=analysis.help, context_settings=raw)
    def call(context: typer.Context) -> None:
        module = import_module(f"{__name__}.{analysis.module}")
        program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        program.command()(module.command)
        program(args=context.args, prog_name=context.command_path)
