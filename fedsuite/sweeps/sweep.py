"""Sweeps over the product of values and seeds, with one process per run.

The sweep's folder holds ``base.toml`` (what all points share), one run folder per point,
``logs/``, and at the end the comparison. A sweep that is started again runs missing points.
More values or seeds enlarge a sweep.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from statistics import fmean

import tomli_w

from fedsuite.core.errors import ConfigError, RunError, Stopped
from fedsuite.core.files import atomic_write, write_error
from fedsuite.core.keys import AUTO, Value, plain_text
from fedsuite.core.logs import harmless
from fedsuite.core.output import outliving_terminal, print_line
from fedsuite.core.own_process import cores, typed
from fedsuite.core.progress import Work
from fedsuite.engines.api import write_report_if_wanted
from fedsuite.engines.trained.experiment import experiment_of
from fedsuite.experiment.experiment import Experiment, naming, read_file
from fedsuite.results import paired
from fedsuite.results.compare import compare
from fedsuite.results.layout import MANIFEST, read_manifest
from fedsuite.results.reader import Run, load_run
from fedsuite.results.score import main_score
from fedsuite.results.summary import last_scores
from fedsuite.results.tables import print_table
from fedsuite.results.writer import LOCK, is_used
from fedsuite.sweeps.points import BASE, OWN_KEYS, Point, make_points, shared_values
from fedsuite.sweeps.workers import Outcome, Task, run_tasks

LOGS = "logs"


class Action(Enum):
    """Action that a point's run needs, in words."""

    SKIP = "finished before"
    RESUME = "to go on"
    START = "to start"


def run_sweep(
    file: Path,
    *,
    grid: Sequence[str],
    seeds: int,
    workers: int,
    output: Path,
    overrides: Mapping[str, Value],
    first_seed: int = 0,
) -> list[Path]:
    """Run a sweep's missing points, and compare all runs of the sweep.

    Parameters
    ----------
    file
        Experiment file of all points; its seed, run-name and output-dir do not count.
    grid
        Texts ``key=a,b,c``; every combination of values is run.
    seeds
        Number of seeds per combination.
    workers
        Runs at a time; 0 is one per core.
    output
        The sweep's folder, new or of the same base experiment.
    overrides
        Values that override the file's.
    first_seed
        First of the seeds.

    Returns
    -------
    list of Path
        The run folders of this call's points.

    Raises
    ------
    ConfigError
        Before anything starts, if a point cannot be run.
    RunError
        Before anything starts, if the folder is not this sweep's; at the end, if a run
        failed.
    Stopped
        If Ctrl-C or SIGTERM ends the sweep; the message has the command to go on.
    """
    overridden = (*overrides, *(text.partition("=")[0] for text in grid))
    with naming(file, overridden):
        base = base_values(file, overrides)
        left_out = [name for name in read_file(file) if name not in base]
        points = make_points(base, grid, range(first_seed, first_seed + seeds))
    if left_out:
        print_line(f"left out, as they have no effect here: {', '.join(left_out)}")
    folder = Path(os.path.abspath(output))
    work = Work("runs", len(points))
    failures = run_points(folder, base, points, workers, work, compared=True, scored=_score)
    if finished := _finished(folder, points):
        write_report_if_wanted({**read_file(file), **overrides}, finished, folder)
    if failures:
        raise RunError(
            f"{len(failures)} of {len(points)} runs failed; the first: {failures[0]}; "
            f"logs: {folder / LOGS}; the same sweep again retries them"
        )
    return [folder / point.name for point in points]


def run_points(
    folder: Path,
    base: Mapping[str, Value],
    points: Sequence[Point],
    workers: int,
    work: Work,
    *,
    compared: bool,
    scored: Callable[[Run], str],
) -> list[str]:
    """Run the missing ones of some points, and return the failures, one line each.

    Parameters
    ----------
    folder
        The sweep's folder, absolute, new or of the same base experiment.
    base
        Values that all points share.
    points
        The points.
    workers
        Runs at a time; 0 is one per core.
    work
        What the runs are part of, for the terminal.
    compared
        Whether all finished runs of the folder are compared at the end.
    scored
        Returns the number of a finished run that counts here, in words.

    Raises
    ------
    RunError
        Before anything starts, if the folder is not this sweep's.
    Stopped
        If Ctrl-C or SIGTERM ends the work.
    """
    shared_values(folder, base)
    with _claimed(folder) as lock, outliving_terminal():
        # A second time, now that no other sweep uses the folder.
        shared = shared_values(folder, base)
        actions = {point: _action(folder / point.name, point) for point in points}
        atomic_write(folder / BASE, tomli_w.dumps(shared).encode())
        try:
            engine = str(base.get("engine", AUTO))
            failures = _work(folder, actions, engine, workers, lock, work, scored)
            if compared:
                with harmless("comparison"):
                    _compare(folder, points)
        except (KeyboardInterrupt, SystemExit) as error:
            done = sum(is_finished(folder / point.name) for point in points)
            message = f"stopped with {done} of {len(points)} runs done: `{typed()}` goes on"
            code = error.code if isinstance(error, SystemExit) else None
            raise (
                Stopped(message, code) if isinstance(code, int) else Stopped(message)
            ) from None
    return failures


def base_values(file: Path, overrides: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values that all points share, of a file and of overrides that win.

    Keys that lose their effect by overrides are left out.

    Raises
    ------
    ConfigError
        If an override is a key that the sweep sets itself, or a value has a wrong type.
    """
    for name in sorted(OWN_KEYS & set(overrides)):
        raise ConfigError(
            f"--set {name}: a sweep sets this key itself; use --seeds and --output"
        )
    shared_values = {**read_file(file), **overrides}
    try:
        left_out = Experiment.from_values(shared_values, tuple(overrides)).left_out
    except ConfigError:
        # The grid may complete the experiment, so each point is checked by itself.
        left_out = ()
    kept = {name: value for name, value in shared_values.items() if name not in left_out}
    return {name: _value(name, value) for name, value in kept.items()}


def _value(name: str, value: object) -> Value:
    if not isinstance(value, bool | int | float | str):
        raise ConfigError(f"key {name} = {value!r}: expected a number, a string or a bool")
    return value


@contextmanager
def _claimed(folder: Path) -> Iterator[int]:
    """Lock the folder for this sweep and yield the lock's descriptor.

    Workers inherit the lock, so that it outlives a killed sweep until the workers end.
    """
    try:
        _refuse_foreign(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOGS).mkdir(exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise RunError(
            f"a sweep is already at work in {folder}: wait for its end"
        ) from None
    try:
        yield lock
    finally:
        os.close(lock)


def _refuse_foreign(folder: Path) -> None:
    if (folder / BASE).exists() or not folder.exists():
        return
    if any(entry.name not in (LOCK, LOGS) for entry in folder.iterdir()):
        raise RunError(
            f"{folder} exists, is not empty and holds no sweep: choose another --output"
        )


def _action(folder: Path, point: Point) -> Action:
    """Return the action that a point needs; refuse another run's folder."""
    if (folder / MANIFEST).exists():
        if experiment_of(folder).fingerprint != point.fingerprint:
            raise RunError(
                f"run folder {folder} holds another experiment: choose another --output"
            )
        return Action.SKIP if is_finished(folder) else Action.RESUME
    if is_used(folder):
        raise RunError(
            f"{folder} is in the way of a run: move it, or choose another --output"
        )
    return Action.START


def _work(
    folder: Path,
    actions: Mapping[Point, Action],
    engine: str,
    workers: int,
    lock: int,
    work: Work,
    scored: Callable[[Run], str],
) -> list[str]:
    """Run missing points and return the failures, one line each."""
    counts = [(action, list(actions.values()).count(action)) for action in Action]
    words = ", ".join(f"{count} {action.value}" for action, count in counts if count)
    print_line(f"{len(actions)} runs: {words}")
    for note in dict.fromkeys(point.note for point in actions if point.note):
        print_line(note)
    missing = [point for point, action in actions.items() if action is not Action.SKIP]
    tasks = [_task(folder, point, actions[point], engine) for point in missing]
    failures: list[str] = []
    work.done += len(actions) - len(missing)
    num_ended = 0

    def on_end(outcome: Outcome) -> None:
        nonlocal num_ended
        num_ended += 1
        work.advance()
        if outcome.error is not None:
            failures.append(f"{outcome.name}: {outcome.error}")
        result = outcome.error
        if result is None:
            words = scored(load_run(folder / outcome.name))
            result = f"finished, {words}" if words else "finished"
        how = "failed: " if outcome.error is not None else ""
        place = f"[{num_ended}/{len(tasks)}]"
        print_line(f"{place} {outcome.name}  {how}{result}  {outcome.seconds:.1f} s")

    with work:
        run_tasks(tasks, workers or cores(), on_end, (lock,))
    for failure in failures:
        print_line(f"failed: {failure}")
    return failures


def _task(folder: Path, point: Point, action: Action, engine: str) -> Task:
    run_folder = folder / point.name
    if action is Action.RESUME:
        arguments = ["resume", str(run_folder)]
        arguments += [] if engine == AUTO else ["--engine", engine]
    else:
        settings = {
            **dict(point.settings),
            "seed": point.seed,
            "output-dir": str(folder),
            "run-name": point.name,
            # The sweep writes one of all points.
            "report": False,
        }
        arguments = ["run", str(folder / BASE)]
        arguments += set_options(settings)
    return Task(point.name, tuple(arguments), folder / LOGS / f"{point.name}.log")


def set_options(settings: Mapping[str, Value]) -> list[str]:
    """Return values as options ``--set`` of the command line."""
    words = [("--set", f"{name}={plain_text(value)}") for name, value in settings.items()]
    return [word for pair in words for word in pair]


def is_finished(folder: Path) -> bool:
    """Return whether a run's folder holds a run that ended well."""
    return (folder / MANIFEST).exists() and read_manifest(folder)["status"] == "finished"


def _score(run: Run) -> str:
    """Return the mean of a run's main score in words; empty without one."""
    score = main_score(run.experiment)
    scores = last_scores(run, score.column)
    if not scores.of:
        return f"mean {score.title} of {scores.short}" if scores.short else ""
    mean = f"mean {score.title} {score.shown(fmean(scores.of.values()))}"
    return f"{mean} of {scores.short}" if scores.short else mean


def _finished(folder: Path, points: Sequence[Point]) -> list[Path]:
    """Return the finished runs of a sweep, those of the points first."""
    own = [folder / point.name for point in points]
    others = sorted(path for path in folder.iterdir() if path not in own)
    return [path for path in (*own, *others) if is_finished(path)]


def _compare(folder: Path, points: Sequence[Point]) -> None:
    """Show and write the comparison of a sweep's finished runs."""
    finished = _finished(folder, points)
    if not finished:
        return
    comparison = compare(finished)
    for table in paired.tables(comparison):
        print_table(table)
    paired.write(comparison, folder)
    print_line(f"tables: {folder}")
