"""The ``fedsuite`` command."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from fedsuite import __version__
from fedsuite.cli.analyse import app as analyse_app
from fedsuite.cli.many_runs import sweep, tune
from fedsuite.cli.model_commands import export, predict
from fedsuite.core.errors import ConfigError, FedsuiteError, Stopped, printable
from fedsuite.core.extras import naming_extras
from fedsuite.core.output import outliving_readers, print_line
from fedsuite.core.progress import shown
from fedsuite.core.registry import METHODS
from fedsuite.deploy.commands import app as deploy_app
from fedsuite.engines.api import ENGINES, Engine
from fedsuite.engines.room import Room
from fedsuite.experiment.command_options import (
    FileArgument,
    RunsArgument,
    SetOption,
    overrides,
)
from fedsuite.results.tables import print_table


class _Commands(TyperGroup):
    """Command group that reports where a run or sweep stopped at a signal."""

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except Stopped as stopped:
            print(f"fedsuite: {printable(str(stopped))}", file=sys.stderr)
            raise typer.Exit(stopped.code) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # click has its own suggestions, and both would be printed.
    suggest_commands=False,
)

app.add_typer(analyse_app, name="analyse")
app.add_typer(deploy_app, name="deploy")

NodesOption = Annotated[
    int, typer.Option(help="Nodes that the clients live on; 0 chooses a number.")
]
CpusOption = Annotated[int, typer.Option(help="CPUs per client at work (ray).")]
GpusOption = Annotated[float, typer.Option(help="GPUs per client at work (ray).")]
EngineOption = Annotated[
    str | None,
    typer.Option(help=f"One of {', '.join(ENGINES)}; default: the file's, else local."),
]


def main(program: Callable[[], object] = app) -> None:
    """Run a program, the command; a fedsuite error is one line and exit code 1."""
    # Threads are a key of the experiment; further OpenMP threads would only contend.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with outliving_readers():
            try:
                with shown(), naming_extras("this command"):
                    program()
            except FedsuiteError as error:
                # It may name what a folder of others holds.
                print(f"fedsuite: error: {printable(str(error))}", file=sys.stderr)
                raise SystemExit(1) from None
    finally:
        # Python looks through all that torch made before it ends: half a second.
        gc.freeze()


@contextmanager
def _imports_uncollected() -> Iterator[None]:
    """Keep the collector from what imports make, which stays: a fifth of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedsuite {__version__}")
        raise typer.Exit


def _methods_like(incomplete: str) -> list[str]:
    """Return the methods that begin so, for the shell."""
    return [name for name in METHODS if name.startswith(incomplete)]


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Federated learning methods for Flower, tested and measured."""


@app.command()
def init(
    method: Annotated[
        str,
        typer.Argument(help="Method to begin with.", autocompletion=_methods_like),
    ] = "fedavg",
    own_app: Annotated[
        bool,
        typer.Option(
            "--app", help="A Flower app with model, data and training of your own, instead."
        ),
    ] = False,
) -> None:
    """Write an experiment to begin with into this folder: METHOD.toml."""
    from fedsuite.cli.starter_files import ABOUT_DEPENDENCIES, write_app, write_experiment

    if own_app:
        for path in write_app(method, Path()):
            print(path)
        print(f"run it: flwr run . --stream\n{ABOUT_DEPENDENCIES}")
    else:
        path = write_experiment(method, Path())
        print(f"{path}\nrun it: fedsuite run {path}")


@app.command()
def run(
    file: FileArgument,
    engine: EngineOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed; overrides the file's.")] = None,
    settings: SetOption = None,
    num_supernodes: NodesOption = 0,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
) -> None:
    """Run an experiment."""
    with _imports_uncollected():
        import fedsuite.engines.local  # noqa: F401
        from fedsuite.engines.api import run as start

    start(
        file,
        engine=_engine(engine),
        seed=seed,
        overrides=overrides(settings),
        num_supernodes=num_supernodes,
        client_cpus=client_cpus,
        client_gpus=client_gpus,
    )


@app.command()
def simulate(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a Flower app, or a bundle (.fab).")
    ],
    num_supernodes: Annotated[
        int, typer.Option(help="Nodes; 0 is what the app says, else 10.")
    ] = 0,
    run_config: Annotated[
        str,
        typer.Option(help="Overrides in Flower's syntax, \"lr=0.1 name='a'\", or a .toml."),
    ] = "",
    workers: Annotated[
        int, typer.Option(help="Processes that the nodes live in; 1 is this one.")
    ] = 1,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of random, NumPy, torch and the node ids; else the app's."),
    ] = None,
    drop_out: Annotated[
        float, typer.Option(help="Probability that a node answers nothing in a round.")
    ] = 0.0,
    straggler: Annotated[
        float, typer.Option(help="Probability that a node's training comes too late.")
    ] = 0.0,
    report: Annotated[
        Path | None, typer.Option(help="Folder for what replies held; see `report`.")
    ] = None,
) -> None:
    """Run any Flower app, unchanged, in this process: no Ray, no SuperLink."""
    from fedsuite.engines.apps.simulate import simulate_app

    simulate_app(
        folder,
        num_supernodes=num_supernodes,
        run_config=run_config,
        workers=workers,
        seed=seed,
        drop_out=drop_out,
        straggler=straggler,
        report=report,
    )


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    engine: EngineOption = None,
    num_rounds: Annotated[
        int | None, typer.Option(help="Another number of rounds.")
    ] = None,
    num_supernodes: NodesOption = 0,
    from_round: Annotated[
        int | None,
        typer.Option(help="Go on from this round's checkpoint, not from the last."),
    ] = None,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
) -> None:
    """Go on with a run from its last checkpoint, at its federation if it has one."""
    with _imports_uncollected():
        import fedsuite.engines.local  # noqa: F401
        from fedsuite.engines.api import federation_of
        from fedsuite.engines.api import resume as go_on

    folder = run.resolve()
    federation = federation_of(folder)
    if federation and engine is None:
        from fedsuite.deploy.rehearsal import resume_there

        Room(0, client_cpus, client_gpus).check("deployment")
        resume_there(folder, Path(federation), num_rounds, from_round)
        return
    go_on(
        run,
        engine=_engine(engine),
        num_rounds=num_rounds,
        num_supernodes=num_supernodes,
        from_round=from_round,
        client_cpus=client_cpus,
        client_gpus=client_gpus,
    )


@app.command()
def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="A method: prints its keys.", autocompletion=_methods_like),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also the keys that every experiment has.")
    ] = False,
) -> None:
    """List the methods and their needs of clients, or the keys of one method."""
    from fedsuite.cli.listings import method_keys_table, methods_table, needs_table

    if name is not None:
        print_table(method_keys_table(name, every=every))
        return
    print_table(methods_table())
    print_table(needs_table())
    _print_broken()


@app.command()
def datasets() -> None:
    """List the data sets, and where their files belong."""
    from fedsuite.cli.listings import datasets_table

    print_table(datasets_table())
    _print_broken()


@app.command()
def models() -> None:
    """List the networks, with the keys of each."""
    from fedsuite.cli.listings import models_table

    print_table(models_table())
    _print_broken()


def _print_broken() -> None:
    """Print what installed packages add and cannot be used, if anything."""
    from fedsuite.cli.listings import broken_table

    broken = broken_table()
    if broken is not None:
        print_table(broken)


@app.command()
def partition(
    file: FileArgument,
    settings: SetOption = None,
    output: Annotated[Path, typer.Option(help="HTML file to write.")] = Path(
        "partition.html"
    ),
) -> None:
    """Show who holds what: a table, and an HTML file with figures of it."""
    from fedsuite.cli.listings import partition_listing, shift_listing
    from fedsuite.experiment.data_and_models import federated_data
    from fedsuite.experiment.experiment import Experiment
    from fedsuite.results.report import write_partition

    data = federated_data(Experiment.load(file, overrides(settings)))
    print_table(partition_listing(data))
    print(f"fingerprint {data.fingerprint}")
    if data.partition.shifts:
        print_table(shift_listing(data.partition.shifts))
    write_partition(data, f"Partition of {file}", output)
    print(f"figures: {output}")


EvaluationsOption = Annotated[
    int, typer.Option(min=1, help="Last evaluations that the numbers are means of.")
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        help="Label of the experiment to subtract, pair by pair; default: the first."
    ),
]
PlaceboOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL",
        help="Label of an experiment that can only differ from the baseline by chance; may "
        "be repeated. A difference counts beyond what these differ by.",
    ),
]
ScoreOption = Annotated[
    str | None,
    typer.Option(
        help="Score of clients to compare, such as auroc or whole_test_accuracy; default: "
        "the main score of the runs' task."
    ),
]


@app.command()
def compare(
    runs: RunsArgument,
    output: Annotated[Path | None, typer.Option(help="Folder for the tables.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="File for the curves, for a paper: .pdf or .svg.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="File for the table, for a paper: .tex (booktabs).")
    ] = None,
    evaluations: EvaluationsOption = 1,
    baseline: BaselineOption = None,
    placebo: PlaceboOption = None,
    score: ScoreOption = None,
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write report.html there too.")
    ] = True,
) -> None:
    """Compare runs: mean and spread over seeds, paired differences, curves for a paper."""
    from fedsuite.engines.api import write_report_if_wanted
    from fedsuite.results import paired
    from fedsuite.results.compare import compare as compare_runs
    from fedsuite.results.paper_figure import (
        check_figure,
        check_table,
        write_figure,
        write_table,
    )
    from fedsuite.results.verdict import verdict

    if figure is not None:
        check_figure(figure)
    if table is not None:
        check_table(table)
    comparison = compare_runs(runs, evaluations, score, baseline, placebo or ())
    for line in verdict(comparison).lines:
        print_line(line)
    for each in paired.tables(comparison):
        print_table(each)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        paired.write(comparison, output)
        print(f"tables: {output}")
        write_report_if_wanted({"report": with_report}, runs, output, comparison)
    if figure is not None:
        caption = write_figure(comparison, figure)
        print(f"figure: {figure} ({caption})")
    if table is not None:
        write_table(comparison, table)
        print(f"table: {table}")


@app.command()
def report(
    runs: RunsArgument,
    output: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    evaluations: EvaluationsOption = 1,
    baseline: BaselineOption = None,
    placebo: PlaceboOption = None,
    score: ScoreOption = None,
) -> None:
    """Write runs as one HTML file that needs no network; also of a run that goes on."""
    from fedsuite.results.compare import compare as compare_runs
    from fedsuite.results.report import write_report

    options = evaluations, score, baseline, placebo or ()
    compares = len(runs) > 1 or options != (1, None, None, ())
    write_report(runs, output, compare_runs(runs, *options) if compares else None)
    print(f"report: {output}")


@app.command()
def fairness(
    runs: RunsArgument,
    standalone: Annotated[
        list[Path],
        typer.Option(help="Folder of a run of Standalone: one per seed and partition."),
    ],
    evaluations: Annotated[
        int, typer.Option(min=1, help="Last evaluations that accuracies are means of.")
    ] = 1,
    at_round: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=N",
            help="Let an experiment end at round N, for equal time; may be repeated.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the tables.")] = None,
) -> None:
    """Set clients' accuracies against those they reach alone."""
    from fedsuite.results.fairness import (
        LEGEND,
        TEXTS,
        by_seed_table,
        fairness_rows,
        over_seeds_table,
        standalone_of,
        write_fairness,
    )
    from fedsuite.results.reader import load_run
    from fedsuite.results.tables import console_table

    ends = _at_rounds(at_round)
    loaded = [load_run(path) for path in runs]
    alone = standalone_of(loaded, [load_run(path) for path in standalone])
    rows = fairness_rows(loaded, alone, evaluations, ends)
    print_table(console_table(over_seeds_table(rows), left=TEXTS))
    print_table(console_table(by_seed_table(rows), [LEGEND], TEXTS))
    if output is not None:
        write_fairness(rows, output)
        print(f"tables: {output}")


for command in (predict, export, sweep, tune):
    app.command()(command)


@app.command()
def doctor() -> None:
    """Say what is installed, what will work, and what to mend."""
    from fedsuite.cli.listings import doctor_report

    table, mend_first = doctor_report()
    print_table(table)
    begin = "nothing to mend: begin with `fedsuite run simulations/quickstart.toml`"
    print_line(f"mend first: {mend_first}" if mend_first else begin)
    if mend_first:
        raise typer.Exit(1)


def _engine(name: str | None) -> Engine | None:
    if name is None:
        return None
    for engine in ENGINES:
        if engine == name:
            return engine
    raise ConfigError(f"--engine {name}: expected one of {', '.join(ENGINES)}")


def _at_rounds(texts: list[str] | None) -> dict[str, int]:
    """Return round by label of texts ``LABEL=N``; a label may hold equals signs."""
    ends = {}
    for text in texts or []:
        label, _, number = text.rpartition("=")
        if not label or not number.isdecimal() or int(number) < 1:
            raise ConfigError(f"--at-round {text}: expected LABEL=N, such as fedavg=80")
        ends[label] = int(number)
    return ends
