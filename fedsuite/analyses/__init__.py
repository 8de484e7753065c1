"""Analyses of experiments and runs: each writes a table and a plot.

An analysis is one entry of :data:`ANALYSES`, and a module of that name in this package with
a function ``command``, whose parameters are typer's arguments and options. The module is
imported only when its command is called.
"""

from importlib import import_module

import typer

ANALYSES = {
    "aggregation-variance": "Variance of the aggregate of repeated rounds, dense and "
    "factored.",
    "class-probabilities": "Mean probability of each class per true class, at runs' ends.",
    "communication": "Accuracy against parameters and bytes sent so far, of runs.",
    "contributions": "Clients' contributions by a method, against their accuracies alone.",
    "covariate-shift": "Shift that three generators of covariate shift reach.",
    "discriminator-probe": "How well clients' final models can be told apart by outputs.",
    "gaussian-shift": "FedAKD's divergence: as printed, corrected, exact, simulated.",
    "gradient-variance": "Variance of mini-batch gradients of FedAL's loss terms.",
    "latent-variance": "Variance of a product of averages and an average of products.",
    "loss-plane": "Training loss of a dense and a factored run, and their paths over it.",
    "participation": "Accuracy against clients per round, dense and factored, by a sweep.",
    "round-time": "Time per round by method, and rounds in equal time.",
    "suspects": "Clients whose updates are far from the others', or were refused.",
    "synthetic-landscape": "FedAvg with few and many clients on a model of two weights.",
}
"""One line of help by the name on the command line."""


def command_group() -> typer.Typer:
    """Return the command group, without importing the analyses."""
    group = typer.Typer(
        help="Analyse experiments and runs: a table and a plot each.",
        no_args_is_help=True,
    )
    # The command itself reads all words after the name, --help included.
    raw = {
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "help_option_names": [],
    }
    for name, line in ANALYSES.items():
        group.command(name, help=line, context_settings=raw)(_call)
    return group


def _call(context: typer.Context) -> None:
    module = import_module(f"{__name__}.{str(context.info_name).replace('-', '_')}")
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(module.command)
    program(args=context.args, prog_name=context.command_path)
