"""Functions that run and resume experiments, for Python programs and the command line."""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedsuite.core.errors import ConfigError, RunError, Stopped
from fedsuite.core.extras import naming_extras
from fedsuite.core.keys import AUTO, Value
from fedsuite.core.logs import harmless, write_line
from fedsuite.core.output import outliving_terminal
from fedsuite.core.progress import Work, shown
from fedsuite.engines.room import Room

if TYPE_CHECKING:
    from fedsuite.engines.trained.run import Run
    from fedsuite.experiment.experiment import Experiment
    from fedsuite.results.compare import Comparison
    from fedsuite.rounds.events import Callback

Engine = Literal["local", "ray", "deployment"]
ENGINES: tuple[Engine, ...] = ("local", "ray", "deployment")


def run(
    experiment: str | Path | Mapping[str, object],
    *,
    engine: Engine | None = None,
    seed: int | None = None,
    overrides: Mapping[str, object] | None = None,
    num_supernodes: int = 0,
    client_cpus: int = 1,
    client_gpus: float = 0.0,
    callbacks: Sequence["Callback"] = (),
    **keys: object,
) -> "Run":
    """Run an experiment and return the run.

    Parameters
    ----------
    experiment
        An experiment file, or its keys and values.
    engine
        ``local`` (this process), ``ray`` (``flwr run`` in Flower's simulation) or
        ``deployment`` (SuperLink and SuperNodes as processes on this machine). None takes
        the experiment's key ``engine``.
    seed
        Shorthand for ``overrides={"seed": ...}``.
    overrides
        Values that override the file's.
    num_supernodes
        Number of nodes. 0 is one node per client in the local engine, else one node per
        core. There are never more nodes than clients.
    client_cpus, client_gpus
        CPUs and GPUs that Ray reserves per working client.
    callbacks
        Objects of :class:`fedsuite.callbacks.Callback`, called at the start, after each
        round and at the end; of the engine local alone.
    **keys
        More overrides, in snake case, such as ``num_rounds=3``. Names of keys may have
        underscores everywhere here, and a function or class of a module may stand for its
        ``"module:name"``, such as ``model=Net``.

    Returns
    -------
    Run
        The run's folder, read: ``path``, ``rounds``, ``summary``, ...

    Raises
    ------
    FedsuiteError
        If the experiment is wrong or the run fails.
    Stopped
        If Ctrl-C ends the run; this ``KeyboardInterrupt`` says where the run stopped.
    """
    from fedsuite.experiment.experiment import Experiment

    changes = _kebab({**(overrides or {}), **keys})
    if seed is not None:
        changes["seed"] = seed
    if engine is not None:
        changes["engine"] = engine
    if isinstance(experiment, Mapping):
        values = {**_kebab(experiment), **changes}
        chosen = Experiment.from_values(values, tuple(changes))
    else:
        chosen = Experiment.load(Path(experiment), changes)
    if chosen.note:
        write_line(chosen.note)
    resolved = at_home(chosen)
    folder = Path(str(resolved["output-dir"])) / str(resolved["run-name"])
    room = Room(num_supernodes, client_cpus, client_gpus)
    if callbacks and resolved["engine"] != "local":
        raise ConfigError(
            f"callbacks: with engine = {resolved['engine']!r} the rounds go on in another "
            "process: take the engine local, or leave them out"
        )
    start = _engine_of(resolved, folder, room, callbacks)
    with _at_work(folder):
        start()
        return _finished(resolved, folder)


def _kebab(values: Mapping[str, object]) -> dict[str, Value]:
    """Return values of keys as an experiment has them, with names in kebab case."""
    return {name.replace("_", "-"): _named(name, v) for name, v in values.items()}


def _named(key: str, value: object) -> Value:
    """Return a value of a key; of a function or class its ``module:name``."""
    if not callable(value):
        return value  # type: ignore[return-value]  # Experiment checks it
    module = getattr(value, "__module__", None) or "__main__"
    name = getattr(value, "__qualname__", type(value).__name__)
    if module == "__main__" or "<" in name or not hasattr(value, "__qualname__"):
        raise ConfigError(
            f"key {key}: {name} is of this program alone, and workers, `fedsuite resume` "
            f"and load_run import it: put it into a module, such as networks.py, and give "
            f'"networks:{name.rpartition(".")[2]}"'
        )
    return f"{module}:{name}"


def load_run(path: str | Path) -> "Run":
    """Read the folder of a run that has ended, was killed, or goes on.

    Parameters
    ----------
    path
        The run's folder.

    Returns
    -------
    Run
        Its rows, and its model: ``model()``, ``client_model(NAME)``, ``predict(data)``.

    Raises
    ------
    RunError
        If the folder holds no run, or a file is missing or damaged.
    """
    from fedsuite.engines.trained.run import Run

    return Run.read(path)


def resume(
    path: str | Path,
    *,
    engine: Engine | None = None,
    num_rounds: int | None = None,
    num_supernodes: int = 0,
    from_round: int | None = None,
    client_cpus: int = 1,
    client_gpus: float = 0.0,
) -> "Run":
    """Resume a run from its last checkpoint, to the same bits as without a stop.

    Parameters
    ----------
    path
        The run's folder.
    engine
        As for :func:`run`; None takes the run's engine.
    num_rounds
        Another number of rounds, to make a finished run longer.
    num_supernodes
        As for :func:`run`.
    from_round
        Round of an earlier checkpoint to go on from. Later checkpoints are passed over, and
        stay in the folder under names that end in ``.aside``.
    client_cpus, client_gpus
        As for :func:`run`.

    Raises
    ------
    RunError
        If the run is finished, or the checkpoint cannot be used.
    Stopped
        As for :func:`run`.
    """
    folder = Path(path).resolve()
    federation = federation_of(folder)
    if federation and engine is None:
        raise RunError(
            f"{folder} is a run of the federation {federation}: go on with it by the "
            f"command `fedsuite resume {folder}`, or name an engine"
        )
    changes: dict[str, Value] = {} if engine is None else {"engine": engine}
    resumed = at_home(resumable(folder, changes, num_rounds, from_round))
    start = _engine_of(resumed, folder, Room(num_supernodes, client_cpus, client_gpus))
    with _at_work(folder):
        start()
        return _finished(resumed, folder)


def federation_of(folder: Path) -> str:
    """Return the SuperLink's folder that a run was started at; "" for another run."""
    from fedsuite.results.layout import FEDERATION, read_manifest

    return str(read_manifest(folder).get(FEDERATION, ""))


def resumable(
    folder: Path,
    changes: Mapping[str, Value],
    num_rounds: int | None,
    from_round: int | None,
) -> "Experiment":
    """Return the experiment that goes on with a run.

    Parameters
    ----------
    folder
        The run's folder.
    changes
        Values that override the run's.
    num_rounds, from_round
        As for :func:`resume`.

    Raises
    ------
    RunError
        If the run is finished, or has no such checkpoint.
    """
    from fedsuite.engines.trained.experiment import experiment_of
    from fedsuite.experiment.experiment import Experiment
    from fedsuite.results.layout import APP_ENGINE

    run = load_run(folder)
    if run.manifest.get("engine") == APP_ENGINE:
        raise RunError(
            f"{folder} is the report of a Flower app, which has no checkpoint: run the app "
            "again with `fedsuite simulate APP --report FOLDER`"
        )
    ends = run.manifest["status"] == "finished" and from_round is None
    if ends and (num_rounds is None or num_rounds <= run.last_round):
        raise RunError(
            f"run {folder} is finished after round {run.last_round}: give more rounds "
            "with --num-rounds"
        )
    experiment = experiment_of(folder)
    if from_round is not None:
        _pass_over_later(folder, from_round)
    # The folder may have been moved since.
    place = {"output-dir": str(folder.parent), "run-name": folder.name, "resume": True}
    values = {**experiment.values, **place, **changes}
    if num_rounds is not None:
        values["num-rounds"] = num_rounds
    return Experiment.from_values(values)


def _pass_over_later(folder: Path, server_round: int) -> None:
    """Make a round's checkpoint the newest, unless a process writes this run."""
    from fedsuite.results.writer import CHECKPOINTS, RunFolder
    from fedsuite.rounds.checkpoint import go_back_to

    with RunFolder.unused(folder):
        go_back_to(folder / CHECKPOINTS, server_round)


def at_home(experiment: "Experiment") -> "Experiment":
    """Return the experiment with absolute folders, run name and engine."""
    from fedsuite.experiment.paths import absolute_paths

    values = dict(experiment.values)
    if values["output-dir"] == AUTO:
        values["output-dir"] = "runs"
    if values["data-dir"] == AUTO:
        values["data-dir"] = os.environ.get("FEDSUITE_DATA", "") or AUTO
    values |= absolute_paths(values)
    if values["dataset"] == "own-table":
        from fedsuite.data.table_at_home import at_home

        values |= at_home(values)
    if values["devices"]:
        from fedsuite.devices.world import content_of

        values["devices"] = content_of(str(values["devices"]))
    if values["run-name"] == AUTO:
        stem = f"{values['method']}-{values['dataset']}-s{values['seed']}"
        stem = stem.replace(":", "-")
        values["run-name"] = _free_name(Path(str(values["output-dir"])), stem)
    if values["engine"] == AUTO:
        values["engine"] = "local"
    return type(experiment).from_values(values)


def _free_name(output: Path, stem: str) -> str:
    """Return a new run name with the time."""
    name = f"{stem}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    count = 2
    unique = name
    while (output / unique).exists():
        unique, count = f"{name}-{count}", count + 1
    return unique


def _engine_of(
    experiment: "Experiment",
    folder: Path,
    room: Room,
    callbacks: Sequence["Callback"] = (),
) -> Callable[[], object]:
    """Return what runs an experiment; ConfigError if the engine has no room for it."""
    num_clients = experiment.num_clients
    if not 0 <= room.num_supernodes <= num_clients:
        raise ConfigError(
            f"--num-supernodes {room.num_supernodes}: expected at most the "
            f"{num_clients} clients"
        )
    room.check(str(experiment["engine"]), str(experiment["device"]))
    if experiment["engine"] != "local":
        return partial(_run_in_flower, experiment, folder, room)
    from fedsuite.engines.local import run_local

    nodes = room.num_supernodes
    return partial(run_local, experiment, folder, num_supernodes=nodes, callbacks=callbacks)


@contextmanager
def _at_work(folder: Path) -> Iterator[None]:
    """Show the progress of a run, and say where it stopped if Ctrl-C ends it."""
    from fedsuite.results.writer import RunFolder

    with outliving_terminal():
        try:
            with shown():
                yield
        except (KeyboardInterrupt, SystemExit) as error:
            # The run's other processes, if any, were killed.
            RunFolder.stop(folder)
            if isinstance(error, SystemExit):
                raise
            command = ["fedsuite", "resume", str(folder)]
            raise Stopped(where_it_stopped(folder, command)) from None


def _finished(experiment: "Experiment", folder: Path) -> "Run":
    """Return a run that has ended, and write its report."""
    run = load_run(folder)
    write_report_if_wanted(experiment.values, [folder], folder)
    return run


def write_report_if_wanted(
    values: Mapping[str, object],
    runs: Sequence[Path],
    folder: Path,
    comparison: "Comparison | None" = None,
) -> None:
    """Write the report of runs into a folder, if an experiment's keys ask for one.

    A report that cannot be written is no failure of the runs: a line says so. What is
    printed of a comparison and what the report shows is one object.
    """
    if not values.get("report", True):
        return
    # A Flower app's bundle has modules alone, and not the page's other files.
    with harmless("report"), naming_extras("the page"):
        # Its parts take a second, which no run waits for before it begins.
        from fedsuite.results.report import NAME, write_report

        with Work("writing the report"):
            write_report(runs, folder / NAME, comparison)
        write_line(f"report: {folder / NAME}")


def _run_in_flower(experiment: "Experiment", folder: Path, room: Room) -> None:
    """Run an experiment in processes of Flower's."""
    from fedsuite.engines.staging import check_code

    _check_folder(experiment, folder)
    check_code(experiment.values)
    config = dict(experiment.values)
    if config["state-dir"] == AUTO:
        # Flower's processes do not know the run's folder by themselves.
        config["state-dir"] = str(folder.parent / ".state")
    nodes = room.num_supernodes or min(experiment.num_clients, os.cpu_count() or 1)
    if experiment["engine"] == "ray":
        from fedsuite.engines.ray import run_ray

        room.check_here()
        run_ray(
            config,
            num_supernodes=nodes,
            client_cpus=room.client_cpus,
            client_gpus=room.client_gpus,
        )
    else:
        from fedsuite.engines.deployment import run_deployment

        run_deployment(config, num_supernodes=nodes)


def where_it_stopped(folder: Path, command: Sequence[str]) -> str:
    """Return the place where a run stopped, and the command to go on."""
    from fedsuite.results.layout import MANIFEST
    from fedsuite.results.writer import CHECKPOINTS
    from fedsuite.rounds.checkpoint import checkpoint_round, list_checkpoints

    if not (folder / MANIFEST).exists():
        return "stopped before the first round: nothing is lost"
    run = load_run(folder)
    if run.manifest["status"] == "finished":
        return f"stopped after the rounds: {folder} is finished, but for its report"
    checkpoints = list_checkpoints(folder / CHECKPOINTS)
    goes_on = (
        f"goes on after round {checkpoint_round(checkpoints[-1])}"
        if checkpoints
        else "starts it again, for there is no checkpoint yet"
    )
    return (
        f"stopped after round {run.last_round} of {run.experiment['num-rounds']}: "
        f"`{shlex.join(command)}` {goes_on}"
    )


def _check_folder(experiment: "Experiment", folder: Path) -> None:
    """Refuse the folder of another run before any process starts."""
    from fedsuite.results.writer import is_used

    if not experiment["resume"] and is_used(folder):
        raise RunError(
            f"run folder {folder} exists and is not empty: choose another run-name or "
            f"output-dir, or go on with its run by `fedsuite resume {folder}`"
        )
